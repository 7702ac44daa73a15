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


def test_what_the_kernel_shows_again_and_again_is_parsed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A round sees the same few lists of hundreds of threads."""
    parsed: list[str] = []
    really = cpus.parse
    cpus.seen.cache_clear()
    monkeypatch.setattr(cpus, "parse", lambda text: parsed.append(text) or really(text))
    for _thread in range(300):
        assert cpus.seen("0-3,8") == {0, 1, 2, 3, 8}
        assert cpus.seen("5") == {5}
    assert parsed == ["0-3,8", "5"]
