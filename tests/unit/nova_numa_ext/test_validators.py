# SPDX-License-Identifier: Apache-2.0
"""Nova's API asks our validators through its own registry."""

import pytest
from nova import exception
from nova.api.validation.extra_specs import validators as nova_validators

from nova_numa_ext.validators import register
from placement_traits.request import EXTRA_SPECS, problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("numa_ext:tier", "fast"),
        ("numa_ext:slo_p99_us", "soon"),
        ("numa_ext:min_utility", "2"),
        ("numa_ext:managed", "perhaps"),
        ("numa_ext:teir", "LC"),
        ("numa_ext:", "LC"),
        ("resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD", "7"),
        ("resources_N1:CUSTOM_LLC_NEIGHBOURHOOD", "all"),
        ("resources:CUSTOM_NUMA_EXT_PROBE", "1"),
        ("resources:CUSTOM_RGPU_MEM_MB", "1000"),
        ("numa_ext:remote_gpu_count", "17"),
        ("numa_ext:remote_gpu_service_level", "platinum"),
        ("numa_ext:remote_gpu_api", "vulkan"),
    ],
)
def test_the_api_refuses_in_our_words(key, value):
    with pytest.raises(exception.ValidationError) as refused:
        nova_validators.validate(key, value)
    assert refused.value.format_message() == problem(key, value)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("numa_ext:tier", "BE"),
        ("numa_ext:min_utility", "0.75"),
        ("numa_ext:remote_gpu", "required"),
        ("numa_ext:remote_gpu_memory_mb", "4000"),
        ("numa_ext:remote_gpu_service_level", "bronze"),
        ("numa_ext:remote_gpu_migratable", "true"),
        ("numa_ext:managed", "False"),
        ("hw:numa_nodes", "2"),
        ("resources_NODE:CUSTOM_LLC_WAY", "4"),
        ("resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD", "1"),
        ("resources_N0:CUSTOM_LLC_NEIGHBOURHOOD", "1000"),
        ("other:namespace", "anything"),
    ],
)
def test_the_api_accepts_what_is_right_and_what_is_not_ours(key, value):
    nova_validators.validate(key, value)


def test_every_key_has_a_validator_with_its_description():
    descriptions = {validator.name: validator.description for validator in register()}
    for key, spec in EXTRA_SPECS.items():
        assert descriptions[key] == spec.description
