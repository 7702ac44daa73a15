# SPDX-License-Identifier: Apache-2.0
"""What flavors may say, and the sentences about what they may not."""

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_traits.interference import NEIGHBOURHOOD_UNITS, may_share
from placement_traits.names import (
    WHOLE_NEIGHBOURHOOD,
    InterferenceClass,
    MemoryPolicy,
    RemoteGpuApi,
    ServiceLevel,
    Tier,
)
from placement_traits.remote_gpu_request import RemoteGpuRequest
from placement_traits.request import (
    EXTRA_SPECS,
    MOST_PROBLEMS,
    InvalidRequestError,
    concerns_us,
    parse,
    problem,
)

LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "4",
    "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "8000",
}
REMOTE = {"numa_ext:remote_gpu": "required", "numa_ext:remote_gpu_memory_mb": "4000"}


def request(extra_specs, **image):
    return parse(extra_specs, vcpus=2, memory_mb=1024, **image)


def problems(extra_specs, **image):
    with pytest.raises(InvalidRequestError) as caught:
        request(extra_specs, **image)
    return caught.value.problems


def test_an_lc_flavor_with_everything_it_needs():
    wanted = request({**LC, "numa_ext:slo_p99_us": "500"})
    assert (wanted.tier, wanted.clos, wanted.ways, wanted.bandwidth_mbps) == (Tier.LC, 1, 4, 8000)
    assert wanted.memory_policy is MemoryPolicy.LOCAL
    assert not wanted.floating


def test_f_001_02_classes_come_from_the_flavor_and_wrong_ones_are_refused():
    found = request({"numa_ext:tier": "BE"})
    assert (found.interference_class, found.remote_memory) == ("sheep", "insensitive")
    declared = {"numa_ext:interference_class": "devil", "numa_ext:remote_memory": "sensitive"}
    found = request({"numa_ext:tier": "BE", **declared})
    assert (found.interference_class, found.remote_memory) == ("devil", "sensitive")
    (sentence,) = problems({"numa_ext:tier": "BE", "numa_ext:interference_class": "wolf"})
    assert "numa_ext:interference_class" in sentence
    assert "sheep" in sentence


def test_a_be_flavor_floats_and_spreads_unless_it_has_a_numa_topology():
    assert request({"numa_ext:tier": "BE"}).memory_policy is MemoryPolicy.BWAP
    strict = request({"numa_ext:tier": "BE", "hw:numa_nodes": "1"})
    assert strict.memory_policy is MemoryPolicy.LOCAL


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hw:cpu_policy": "shared"}, "needs hw:cpu_policy=dedicated"),
        ({"hw:cpu_policy": "mixed"}, "needs hw:cpu_policy=dedicated"),
        ({"hw:numa_nodes": None}, "needs hw:cpu_policy=dedicated and hw:numa_nodes"),
        ({"resources:CUSTOM_RDT_CLOS": None}, "needs resources:CUSTOM_RDT_CLOS=1"),
        ({"numa_ext:managed": "false"}, "exclude each other"),
        ({"numa_ext:tier": "BE"}, "are for numa_ext:tier=LC only"),
        ({"resources:CUSTOM_LLC_WAY": "2"}, "must be asked for in a named group"),
        ({"resources_N1:CUSTOM_LLC_WAY": "2"}, "need group_policy=isolate"),
        ({"hw:numa_nodes": "2"}, "hw:numa_nodes=2 with CUSTOM_LLC_WAY in 1 groups"),
        (
            {"resources_N1:CUSTOM_LLC_WAY": "2", "group_policy": "isolate"},
            "hw:numa_nodes=1 with CUSTOM_LLC_WAY in 2 groups",
        ),
        ({"numa_ext:memory_policy": "bwap"}, "NUMA topology has one node"),
        (
            {"numa_ext:remote_gpu": "required"},
            "numa_ext:remote_gpu=required needs numa_ext:remote_gpu_memory_mb",
        ),
        (
            {"numa_ext:remote_gpu": "allowed", "numa_ext:remote_gpu_count": "2"},
            "numa_ext:remote_gpu_count needs numa_ext:remote_gpu_memory_mb",
        ),
        (
            {**REMOTE, "numa_ext:remote_gpu_service_level": "silver"},
            "numa_ext:tier=LC needs numa_ext:remote_gpu_service_level=gold: with silver others share the GPU.",
        ),
        ({"numa_ext:remote_gpu_network_share": "0.5"}, "has no meaning with"),
        ({"numa_ext:remote_gpu_memory_mb": "500"}, "has no meaning with"),
        ({**REMOTE, "numa_ext:remote_gpu_count": "0"}, "allowed: an integer from 1 to 16"),
        ({**REMOTE, "numa_ext:remote_gpu_count": "17"}, "allowed: an integer from 1 to 16"),
        ({**REMOTE, "numa_ext:remote_gpu_memory_mb": "0"}, "allowed: an integer >= 1"),
        ({**REMOTE, "numa_ext:remote_gpu_api": "vulkan"}, "allowed: opencl, cuda"),
        ({**REMOTE, "numa_ext:remote_gpu_vgpus_per_gpu": "13"}, "an integer from 1 to 12"),
        (
            {"resources:CUSTOM_RGPU_MEM_MB": "1000"},
            "resources:CUSTOM_RGPU_MEM_MB is not allowed: leases claim it, no server",
        ),
        ({"hw:numa_nodes": "two"}, "hw:numa_nodes=two is not allowed; allowed: an integer >= 1."),
        (
            {"resources1:CUSTOM_NUMA_EXT_PROBE": "1"},
            "resources1:CUSTOM_NUMA_EXT_PROBE is not allowed: with it the view of Placement counts hosts, "
            "and no server may take it.",
        ),
    ],
)
def test_a_combination_without_meaning_has_a_sentence(changes, words):
    """F-004-45."""
    flavor = {key: value for key, value in {**LC, **changes}.items() if value is not None}
    assert any(words in sentence for sentence in problems(flavor))


def test_gold_is_not_for_best_effort():
    flavor = {"numa_ext:tier": "BE", **REMOTE, "numa_ext:remote_gpu_service_level": "gold"}
    assert problems(flavor) == (
        "numa_ext:remote_gpu_service_level=gold is not for numa_ext:tier=BE, which guarantees nothing.",
    )


def test_remote_gpus_are_asked_for_by_memory():
    assert request({"numa_ext:remote_gpu": "allowed"}).remote_gpus is None
    assert request(REMOTE).remote_gpus == RemoteGpuRequest(
        1, 4000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL, 0, 0.0, 1, 0, False
    )
    assert request({**LC, **REMOTE}).remote_gpus.level is ServiceLevel.GOLD
    whole = {
        **REMOTE,
        "numa_ext:remote_gpu_count": "2",
        "numa_ext:remote_gpu_service_level": "bronze",
        "numa_ext:remote_gpu_api": "cuda",
        "numa_ext:remote_gpu_network_mbps": "500",
        "numa_ext:remote_gpu_network_share": "0.25",
        "numa_ext:remote_gpu_vgpus_per_gpu": "3",
        "numa_ext:remote_gpu_priority": "9",
        "numa_ext:remote_gpu_migratable": "true",
    }
    assert request(whole).remote_gpus == RemoteGpuRequest(
        2, 4000, ServiceLevel.BRONZE, RemoteGpuApi.CUDA, 500, 0.25, 3, 9, True
    )


def test_an_lc_flavor_on_two_nodes_asks_for_ways_on_both_or_on_none():
    two = {**LC, "hw:numa_nodes": "2", "group_policy": "isolate"}
    del two["resources_NODE:CUSTOM_LLC_WAY"]
    assert request(two).ways == 0
    ways = {"resources_N0:CUSTOM_LLC_WAY": "6", "resources_N1:CUSTOM_LLC_WAY": "2"}
    assert request({**two, **ways}).ways == 8


STRICT = {
    "numa_ext:tier": "BE",
    "numa_ext:interference_class": "devil",
    "hw:numa_nodes": "1",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1",
}
UNITS_ON_TWO = {
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": None,
    "resources_N0:CUSTOM_LLC_NEIGHBOURHOOD": "1",
    "resources_N1:CUSTOM_LLC_NEIGHBOURHOOD": "1",
    "group_policy": "isolate",
}


def changed(flavor, changes):
    return {key: value for key, value in {**flavor, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"numa_ext:tier": None},
        {"hw:numa_nodes": "2", **UNITS_ON_TWO},
        {
            **LC,
            "numa_ext:interference_class": "rabbit",
            "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
        },
    ],
)
def test_a_flavor_is_strict_by_the_units_that_placement_counts(changes):
    assert request(changed(STRICT, changes)).strict
    without = {key: value for key, value in STRICT.items() if not key.startswith("resources")}
    assert not request(without).strict, "the class alone only ranks"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hw:numa_nodes": None}, "CUSTOM_LLC_NEIGHBOURHOOD needs hw:numa_nodes"),
        (
            {"hw:numa_nodes": None, "hw:mem_page_size": "large"},
            "CUSTOM_LLC_NEIGHBOURHOOD needs hw:numa_nodes",
        ),
        (
            {"numa_ext:interference_class": "rabbit"},
            "numa_ext:interference_class=rabbit needs CUSTOM_LLC_NEIGHBOURHOOD=1000 in each",
        ),
        (
            {"resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000"},
            "numa_ext:interference_class=devil needs CUSTOM_LLC_NEIGHBOURHOOD=1 in each",
        ),
        (
            {
                "numa_ext:interference_class": "rabbit",
                "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
                "numa_ext:managed": "false",
            },
            "CUSTOM_LLC_NEIGHBOURHOOD=1000 and numa_ext:managed=false exclude each other",
        ),
        ({"numa_ext:interference_class": None}, "is for numa_ext:interference_class=rabbit and"),
        (
            {"resources_W:CUSTOM_MEMORY_BANDWIDTH_MBPS": "9", "group_policy": "isolate"},
            "resources_W: CUSTOM_LLC_NEIGHBOURHOOD must stand in each group with",
        ),
        ({"hw:numa_nodes": "2"}, "hw:numa_nodes=2 with CUSTOM_LLC_NEIGHBOURHOOD in 1 groups"),
        (UNITS_ON_TWO, "hw:numa_nodes=1 with CUSTOM_LLC_NEIGHBOURHOOD in 2 groups"),
        (
            {"resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "7"},
            "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD=7 is not allowed; allowed: 1000 (rabbit), 1 (devil).",
        ),
    ],
)
def test_what_is_wrong_with_a_strict_flavor_is_one_sentence(changes, words):
    (sentence,) = problems(changed(STRICT, changes))
    assert words in sentence


def test_units_of_a_neighbourhood_come_from_a_named_group():
    (sentence,) = problems(
        changed(
            STRICT,
            {
                "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": None,
                "resources:CUSTOM_LLC_NEIGHBOURHOOD": "1",
            },
        )
    )
    assert "must be asked for in a named group" in sentence


def test_units_together_fit_a_neighbourhood_when_the_classes_may_share_it():
    """The table of Lakew et al. as amounts: no pair of classes is judged otherwise by Placement's count."""
    for one, other in itertools.product(InterferenceClass, repeat=2):
        together = NEIGHBOURHOOD_UNITS[one] + NEIGHBOURHOOD_UNITS[other]
        assert (together <= WHOLE_NEIGHBOURHOOD) == may_share(one, other), (one, other)


@pytest.mark.parametrize("group", ["1", "_RDT"])
def test_a_class_of_service_cannot_hide_in_a_group(group):
    """Placement would give it to a best-effort server all the same."""
    hidden = {"numa_ext:tier": "BE", f"resources{group}:CUSTOM_RDT_CLOS": "1"}
    told = " ".join(problems(hidden))
    assert f"resources{group}: CUSTOM_RDT_CLOS belongs to the whole server" in told
    assert "are for numa_ext:tier=LC only" in told
    twice = problems({**LC, f"resources{group}:CUSTOM_RDT_CLOS": "1"})
    assert any("needs resources:CUSTOM_RDT_CLOS=1" in sentence for sentence in twice)


@pytest.mark.parametrize(
    "key",
    [
        "resources:CUSTOM_RDT_CLOS",
        "resources_NODE:CUSTOM_LLC_WAY",
        "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS",
    ],
)
@pytest.mark.parametrize("value", ["4x", "", "-1", "1.5"])
def test_an_amount_of_ours_that_is_no_number_is_told(key, value):
    assert problems({**LC, key: value}) == (
        f"{key}={value} is not allowed; allowed: an integer >= 0.",
    )
    assert request({"resources:CUSTOM_OTHER": "4x"}).clos == 0


def test_all_problems_are_told_at_once():
    assert (
        len(problems({"numa_ext:tier": "XX", "numa_ext:gpu_comm": "9", "numa_ext:teir": "LC"})) == 3
    )


def test_of_thousands_of_problems_some_are_told_and_soon():
    began = time.process_time()
    assert len(problems({f"numa_ext:slo_p99_{n}": "1" for n in range(10_000)})) == MOST_PROBLEMS
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("mask", "vcpus", "pinned"),
    [
        ("0-3,^1", 8, 3),
        ("^0-1", 8, 6),
        ("9" * 5000, 8, 0),
        ("6-99999", 8, 2),
        ("^0", 10**15, 65535),
        ("0-65535," * 30_000, 10**15, 65536),
    ],
    ids=["some", "all but", "digits", "more than there are", "vCPUs", "repeated"],
)
def test_the_dedicated_cpus_of_a_mask_are_counted_whatever_it_names(mask, vcpus, pinned):
    specs = {"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": mask}
    began = time.process_time()
    assert parse(specs, vcpus=vcpus, memory_mb=1).pinned == pinned
    assert time.process_time() - began < 1


def test_the_image_can_ask_for_the_tier_but_not_contradict_the_flavor():
    traits = frozenset({"CUSTOM_NUMA_EXT_TIER_LC"})
    without = {key: value for key, value in LC.items() if key != "numa_ext:tier"}
    assert request(without, image_traits=traits).tier is Tier.LC
    assert "contradicts the image" in problems({"numa_ext:tier": "BE"}, image_traits=traits)[0]


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("numa_ext:tier", "LC", None),
        ("numa_ext:tier", "lc", "numa_ext:tier=lc is not allowed; allowed: LC, BE."),
        (
            "numa_ext:teir",
            "LC",
            "numa_ext:teir is not an extra spec of numa_ext; did you mean numa_ext:tier?",
        ),
        (
            "numa_ext:slo_p99_us",
            "0",
            "numa_ext:slo_p99_us=0 is not allowed; allowed: an integer >= 1.",
        ),
        (
            "numa_ext:gpu_comm",
            "5",
            "numa_ext:gpu_comm=5 is not allowed; allowed: an integer from 0 to 4.",
        ),
        (
            "numa_ext:min_utility",
            "1.5",
            "numa_ext:min_utility=1.5 is not allowed; allowed: a number from 0.0 to 1.0.",
        ),
        (
            "numa_ext:managed",
            "maybe",
            "numa_ext:managed=maybe is not allowed; allowed: true, false.",
        ),
    ],
)
def test_one_key_and_its_value(key, value, sentence):
    """F-000-06, F-004-45."""
    assert problem(key, value) == sentence


def test_a_key_like_no_other_is_answered_with_all_keys():
    sentence = problem("numa_ext:zzz", "1")
    assert all(key in sentence for key in EXTRA_SPECS)


@given(st.dictionaries(st.sampled_from([*EXTRA_SPECS, *LC, "hw:numa_nodes"]), st.text(max_size=8)))
def test_nonsense_gives_sentences_and_never_another_error(extra_specs):
    try:
        request(extra_specs)
    except InvalidRequestError as error:
        assert error.problems


def test_only_our_keys_resources_and_traits_concern_us():
    assert not concerns_us({"hw:numa_nodes": "1", "resources:VGPU": "1"})
    assert concerns_us({"resources_A:CUSTOM_LLC_WAY": "1"})
    assert concerns_us({}, frozenset({"CUSTOM_NUMA_EXT_TIER_BE"}))


@pytest.mark.parametrize(
    "specs",
    [
        {"numa_ext:tier": "x" * 10_000_000},
        {"numa_ext:" + "x" * 10_000_000: "1"},
        {"hw:numa_nodes": "x" * 10_000_000},
        {"resources_NODE:CUSTOM_LLC_WAY": "x" * 10_000_000},
        {"resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "x" * 10_000_000},
        {"resources_" + "x" * 10_000_000 + ":CUSTOM_LLC_WAY": "many"},
    ],
    ids=["value", "key", "nodes", "amount", "units", "group"],
)
def test_ten_megabytes_are_refused_in_one_short_sentence(specs):
    with pytest.raises(InvalidRequestError) as caught:
        parse(specs, vcpus=1, memory_mb=1)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "specs",
    [
        {"hw:numa_nodes": "9" * 5000},
        {"resources:PCPU": "9" * 5000},
        {"resources:VGPU": "9" * 5000},
        {"pci_passthrough:alias": f"a100:{'9' * 5000}"},
    ],
    ids=["nodes", "CPUs", "class", "alias"],
)
def test_a_number_of_5000_digits_is_one_that_no_host_has(specs):
    request = parse(specs, vcpus=1, memory_mb=1)
    assert request.numa_nodes in (0, 2**31 - 1)
    assert all(part <= 2**31 - 1 for device in request.devices for part in device.parts)
