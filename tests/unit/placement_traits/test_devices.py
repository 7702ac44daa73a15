# SPDX-License-Identifier: Apache-2.0
"""Which devices flavors ask for, and what nova's aliases stand for."""

import json

import pytest
from nova.compute import pci_placement_translator

from placement_traits.devices import By, DeviceRequest, classes_of_aliases, requested
from placement_traits.errors import InvalidValueError
from placement_traits.request import parse


@pytest.mark.parametrize(
    ("extra_specs", "expected"),
    [
        ({"pci_passthrough:alias": "a100:2"}, [(By.ALIAS, "a100", (1, 1))]),
        (
            {"pci_passthrough:alias": "nic:1, h100 : 1"},
            [(By.ALIAS, "nic", (1,)), (By.ALIAS, "h100", (1,))],
        ),
        ({"resources:VGPU": "2"}, [(By.RESOURCE_CLASS, "VGPU", (2,))]),
        ({"resources_A:CUSTOM_A100": "1"}, [(By.RESOURCE_CLASS, "CUSTOM_A100", (1,))]),
        ({"accel:device_profile": "h100"}, [(By.PROFILE, "h100", (1,))]),
        ({"resources:VCPU": "2", "resources_NODE:CUSTOM_LLC_WAY": "2"}, []),
        ({"pci_passthrough:alias": "gpu"}, []),
    ],
)
def test_devices_are_asked_for_by_alias_class_or_profile(extra_specs, expected):
    assert list(requested(extra_specs)) == [DeviceRequest(*each) for each in expected]


def test_a_senseless_number_of_devices_costs_no_memory():
    [found] = requested({"pci_passthrough:alias": f"a100:{10**12}"})
    assert len(found.parts) < 1000


def test_many_aliases_ask_for_no_more_together():
    found = requested({"pci_passthrough:alias": ",".join(f"a{n}:256" for n in range(10_000))})
    assert sum(len(each.parts) for each in found) == 256


@pytest.mark.parametrize(
    "how", [{"pci_passthrough:alias": "a100:2"}, {"accel:device_profile": "h100"}]
)
def test_a_remote_gpu_may_be_of_any_name(how):
    assert parse({"numa_ext:remote_gpu": "allowed", **how}, vcpus=1, memory_mb=1).devices


@pytest.mark.parametrize(
    "alias",
    [
        {"vendor_id": "10de", "product_id": "20b0"},
        {"resource_class": "CUSTOM_A100"},
        {"resource_class": "a100 80gb"},
        {"resource_class": "PGPU", "vendor_id": "10de", "product_id": "20b0"},
    ],
)
def test_an_alias_stands_for_the_class_that_nova_asks_for(alias):
    novas = pci_placement_translator.get_resource_class(
        alias.get("resource_class"), alias.get("vendor_id"), alias.get("product_id")
    )
    definitions = [json.dumps({"name": "x", **alias}), json.dumps({"name": "x", **alias})]
    assert classes_of_aliases(definitions) == {"x": {novas}}


@pytest.mark.parametrize("text", ["", "[]", '{"vendor_id": "10de"}', "[" * 100_000])
def test_a_definition_without_sense_is_named(text):
    with pytest.raises(InvalidValueError, match="pci"):
        classes_of_aliases([text])
