# SPDX-License-Identifier: Apache-2.0
"""CPU lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host_agent.model import cpus
from placement_traits.errors import InvalidValueError


@settings(deadline=None)
@given(st.frozensets(st.integers(0, 4095)))
def test_a_list_is_read_back_as_it_was(numbers: frozenset[int]) -> None:
    assert cpus.parse(cpus.text(numbers)) == numbers


def test_runs_are_written_as_ranges() -> None:
    assert cpus.text({7, 0, 2, 3, 4}) == "0,2-4,7"


def test_libvirt_takes_numbers_away() -> None:
    assert cpus.parse("0-3,^2") == {0, 1, 3}


@pytest.mark.parametrize(
    "text", ["a", "3-1", "0-", "-1", "0-99999999999999", "1 2", "0-65535," * 30_000]
)
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        cpus.parse(text)
