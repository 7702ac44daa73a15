# SPDX-License-Identifier: Apache-2.0
"""The lines that we print for nova.conf, read by nova."""

import json

from nova.pci import devspec
from support.hosts import four_nodes

from placement_traits.device_spec import device_spec_lines


def test_nova_accepts_the_lines():
    """Nova's own parser of the option reads them and finds the device."""
    line = next(device_spec_lines(four_nodes(), "CUSTOM_GPU"))
    spec = devspec.PciDeviceSpec(json.loads(line.removeprefix("device_spec = ")))
    device = {
        "address": "0000:05:00.0",
        "vendor_id": "10de",
        "product_id": "20b0",
        "dev_type": "type-PCI",
    }
    assert spec.match(device)
    assert spec.get_tags()["resource_class"] == "CUSTOM_GPU"
