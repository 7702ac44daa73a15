# SPDX-License-Identifier: Apache-2.0
"""What a part of a job may request beyond its flavor."""

import pytest

from nova_numa_ext.policy.jobs.part_specs import PART_KEYS, for_scheduler, of_part
from placement_traits.names import Key
from placement_traits.request import EXTRA_SPECS, InvalidRequestError

FLAVOR = {"numa_ext:tier": "BE", "numa_ext:min_utility": "0.5", "hw:numa_nodes": "1"}


def test_a_part_adds_what_nova_scheduler_alone_decides():
    added = {"numa_ext:gpu_policy": "topo_p", "numa_ext:gpu_comm": "4"}
    assert of_part(FLAVOR, added) == {**FLAVOR, **added}
    assert of_part(FLAVOR, {"numa_ext:min_utility": "0.5"}) == FLAVOR
    assert of_part(FLAVOR, {}) == FLAVOR


@pytest.mark.parametrize(
    ("added", "sentence"),
    [
        (
            {"numa_ext:min_utility": "0"},
            "numa_ext:min_utility=0 is not allowed: the flavor sets 0.5.",
        ),
        ({"numa_ext:gpu_policy": "best"}, "numa_ext:gpu_policy=best is not allowed; allowed: "),
        ({"numa_ext:gpu_polcy": "pack"}, "did you mean numa_ext:gpu_policy?"),
        ({"resources:CUSTOM_LLC_WAY": "1"}, "resources:CUSTOM_LLC_WAY is for flavors only"),
    ],
)
def test_what_a_part_may_not_set_is_a_sentence(added, sentence):
    with pytest.raises(InvalidRequestError) as raised:
        of_part(FLAVOR, added)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("key", sorted(set(Key) - PART_KEYS))
def test_all_else_is_for_flavors_only(key):
    """The tier first of all: for a latency-critical job others may be stopped."""
    spec = EXTRA_SPECS[key]
    value = spec.choices[0] if spec.choices else "true" if spec.kind is bool else "1"
    with pytest.raises(InvalidRequestError, match=f"{key} is for flavors only"):
        of_part({}, {key: value})


def test_nova_scheduler_learns_what_it_decides():
    extra_specs = of_part(FLAVOR, {"numa_ext:gpu_policy": "pack"})
    assert for_scheduler(extra_specs) == {
        "numa_ext:gpu_policy": "pack",
        "numa_ext:min_utility": "0.5",
    }
