# SPDX-License-Identifier: Apache-2.0
"""Reading and writing schemata, and what is refused before the kernel sees it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host_agent.model.rdt import (
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    Monitoring,
    Schemata,
    Unknown,
    format_schemata,
    is_contiguous,
    parse_counter,
    parse_mask,
    parse_schemata,
    validate,
    validate_budget,
)
from placement_traits.errors import InvalidValueError

INTEL = Capabilities(
    (CacheControl("L3", 0xFFF, 2, 0xC00, 8, (0, 1)),),
    BandwidthControl(10, 100, 10, True, "max", 8, BandwidthUnit.PERCENT, (0, 1)),
    Monitoring(32, ("llc_occupancy",)),
)
AMD = Capabilities((CacheControl("L3", 0xFFFF, 0, 0, 16, (0,), sparse_masks=True),))


def test_padded_names_and_numbers_are_read() -> None:
    text = "    MB:0=100;1= 70\n    L3:0=0ff;1=f\nL3CODE:0=    1\n"

    found = parse_schemata(text)

    assert found == {"MB": {0: 100, 1: 70}, "L3": {0: 0xFF, 1: 0xF}, "L3CODE": {0: 1}}


def test_a_group_on_its_way_to_pseudo_locking_has_no_values() -> None:
    assert parse_schemata("MB:0=100\nL3:uninitialized\n") == {"MB": {0: 100}}


@pytest.mark.parametrize("text", ["L3 0=f", "L3:0", "L3:x=f", "L3:0=zz", "MB:0=f"])
def test_rubbish_is_refused_with_the_line(text: str) -> None:
    with pytest.raises(InvalidValueError, match="NAME:domain=value") as caught:
        parse_schemata(text)
    assert caught.value.value == text


RESOURCES = st.sampled_from(["L3", "L3CODE", "L3DATA", "L2", "MB", "SMBA"])
VALUES = st.dictionaries(st.integers(0, 300), st.integers(0, 2**32 - 1), min_size=1)


@given(st.dictionaries(RESOURCES, VALUES, min_size=1))
def test_what_is_written_is_read_again(schemata: Schemata) -> None:
    assert parse_schemata(format_schemata(schemata)) == schemata


@given(st.integers(0, 2**20))
def test_contiguous_is_one_run_of_ones(mask: int) -> None:
    assert is_contiguous(mask) == ("1" in f"{mask:b}" and "0" not in f"{mask:b}".strip("0"))


@pytest.mark.parametrize(
    ("schemata", "sentence"),
    [
        (
            {"L3": {0: 0xF0F}},
            "RDT group a, L3 domain 0: '0xf0f' is not allowed; allowed: a mask of neighbouring",
        ),
        (
            {"L3": {1: 0}},
            "RDT group a, L3 domain 1: '0x0' is not allowed; allowed: a non-empty mask within 0xfff",
        ),
        ({"L3": {0: 0x1FFF}}, "allowed: a non-empty mask within 0xfff"),
        ({"L3": {0: 0x1}}, "allowed: at least 2 ways"),
        ({"L3": {7: 0xF}}, "RDT group a, L3 domain: 7 is not allowed; allowed: one of [0, 1]"),
        ({"L2": {0: 0xF}}, "allowed: one of ['L3', 'MB'] on this host"),
        (
            {"MB": {0: 5}},
            "RDT group a, MB domain 0: 5 is not allowed; allowed: 10 to 100 percent in steps of 10",
        ),
        ({"MB": {0: 55}}, "in steps of 10"),
        ({"MB": {0: 110}}, "10 to 100"),
    ],
)
def test_what_the_kernel_would_refuse_is_refused_first(schemata: Schemata, sentence: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        validate(INTEL, "a", schemata)
    assert sentence in str(caught.value)


def test_what_the_kernel_would_take_is_taken() -> None:
    validate(INTEL, "a", {"L3": {0: 0x3, 1: 0xFFF}, "MB": {0: 10, 1: 100}})
    validate(AMD, "a", {"L3": {0: 0xF0F}})
    validate(AMD, "a", {"L3": {0: 0}})


def test_budgets_of_classes_and_monitoring_ids() -> None:
    validate_budget(INTEL, 7, 24)
    with pytest.raises(InvalidValueError, match="at most 7 beside root"):
        validate_budget(INTEL, 8, 0)
    with pytest.raises(InvalidValueError, match="at most 32 with root"):
        validate_budget(INTEL, 7, 25)


def test_unknown_counters_are_words_and_never_zero() -> None:
    assert parse_counter("123\n") == 123
    assert parse_counter("Unavailable\n") is Unknown.UNAVAILABLE
    assert parse_counter("Error\n") is Unknown.ERROR
    with pytest.raises(InvalidValueError):
        parse_counter("-1\n")
    with pytest.raises(InvalidValueError):
        parse_mask("-f")
