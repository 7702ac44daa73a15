# SPDX-License-Identifier: Apache-2.0
"""The lines that operators paste into nova.conf."""

import json

from emulation.hosts import four_nodes
from placement_traits.device_spec import device_spec_lines


def test_each_gpu_is_one_line_with_its_place_and_links():
    lines = list(device_spec_lines(four_nodes(), "CUSTOM_GPU"))
    specs = [json.loads(line.removeprefix("device_spec = ")) for line in lines]
    assert specs == [
        {
            "address": "0000:05:00.0",
            "resource_class": "CUSTOM_GPU",
            "traits": "CUSTOM_GPU_LINK_NV2_0_1,CUSTOM_NUMA_EXT_NODE_0",
        },
        {
            "address": "0000:85:00.0",
            "resource_class": "CUSTOM_GPU",
            "traits": "CUSTOM_GPU_LINK_NV2_0_1,CUSTOM_NUMA_EXT_NODE_2",
        },
    ]
