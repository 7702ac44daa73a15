# SPDX-License-Identifier: Apache-2.0
"""What flavor and hints of a server group request together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_traits.names import NetClass, UplinkShare
from placement_traits.network_request import HINTS, KEYS, NetworkRequest, network_request
from placement_traits.request import InvalidRequestError


def refused(flavor, hints):
    with pytest.raises(InvalidRequestError) as error:
        network_request(flavor, hints)
    return str(error.value)


def test_a_flavor_and_hints_that_say_nothing_request_nothing():
    assert network_request({"numa_ext:tier": "BE"}, {"group": ["g"]}) is None


def test_the_flavor_sets_what_counts_without_a_hint():
    flavor = {
        "numa_ext:net_within": "pod",
        "numa_ext:net_share": "quiet",
        "numa_ext:net_slice": "8",
        "numa_ext:net_balance": "true",
        "numa_ext:net_class": "extreme",
    }
    assert network_request(flavor) == NetworkRequest(
        "pod", "pod", UplinkShare.QUIET, 8, balance=True, net_class=NetClass.EXTREME
    )


def test_hints_choose_less():
    flavor = {"numa_ext:net_share": "exclusive", "numa_ext:net_slice": "8"}
    hints = {
        "numa_ext_share": ["quiet"],
        "numa_ext_slice": ["4"],
        "numa_ext_within": ["leaf"],
        "group": ["g"],
    }
    assert network_request(flavor, hints) == NetworkRequest("leaf", "", UplinkShare.QUIET, 4)


def test_a_latency_critical_server_uses_little_of_the_network_unless_its_flavor_says_more():
    flavor = {"numa_ext:tier": "LC", "numa_ext:net_share": "shared"}
    assert network_request(flavor).net_class is NetClass.LOW
    assert (
        network_request({**flavor, "numa_ext:net_class": "extreme"}).net_class is NetClass.EXTREME
    )


@pytest.mark.parametrize(
    ("flavor", "hints", "sentence"),
    [
        (
            {},
            {"numa_ext_share": ["quiet"]},
            "The scheduler hint numa_ext_share=quiet is more than the flavor allows; allowed: shared.",
        ),
        (
            {"numa_ext:net_share": "quiet"},
            {"numa_ext_share": ["exclusive"]},
            "The scheduler hint numa_ext_share=exclusive is more than the flavor allows; allowed: shared, quiet.",
        ),
        (
            {"numa_ext:net_slice": "4"},
            {"numa_ext_slice": ["8"]},
            "The scheduler hint numa_ext_slice=8 is more than the flavor allows; allowed: 1 to 4.",
        ),
        (
            {},
            {"numa_ext_share": ["loud"]},
            "The scheduler hint numa_ext_share=loud is not allowed; allowed: shared, quiet, exclusive.",
        ),
        (
            {},
            {"numa_ext_within": ["leaf", "pod"]},
            "The scheduler hint numa_ext_within is given 2 times; allowed: once.",
        ),
        (
            {"numa_ext:net_slice": "0"},
            {},
            "numa_ext:net_slice=0 is not allowed; allowed: an integer >= 1.",
        ),
        (
            {"numa_ext:net_within": "a pod"},
            {},
            "numa_ext:net_within=a pod is not allowed; allowed: a name of small letters, digits and _, 31 at most.",
        ),
    ],
)
def test_what_is_not_allowed_gets_one_sentence(flavor, hints, sentence):
    assert refused(flavor, hints) == sentence


@given(
    st.dictionaries(st.sampled_from(sorted(KEYS)), st.text(max_size=8)),
    st.dictionaries(st.sampled_from(sorted(HINTS)), st.lists(st.text(max_size=8), max_size=3)),
)
def test_nonsense_gives_sentences_and_never_another_error(flavor, hints):
    try:
        network_request(flavor, hints)
    except InvalidRequestError as error:
        assert error.problems
