# SPDX-License-Identifier: Apache-2.0
"""Code, commands and pages use the field's words; those of a private dialect do not come back.

Only words without another use stand here.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PLACES = (
    *("host_agent", "nova_numa_ext", "placement_traits", "benchmarks", "emulation", "devstack"),
    *("doc/source", "etc/nova", "README.md"),
)
SUFFIXES = frozenset({".conf", ".py", ".rst", ".md", ".yaml", ".sample"})

# word of the dialect (in identifiers, too) -> what the field says
WORDS = {
    "anew": "again",
    "anybody|nobody|somebody|whoever": "the component's name, or the passive voice",
    "animals": "interference classes",
    "doubted|doubtful": "suspect",
    "errands?": "background tasks",
    "farewells?": "shutdown",
    "hopeless": "unsatisfiable",
    "lest": "so that … not",
    "overtaken": "superseded",
    "rubbish": "malformed",
    "signs? of life": "heartbeat",
    "strangers?": "foreign groups",
    "the source's": "the system's name, with author and section",
    "wish|wishes": "request, spec or desired state",
}
_ONE = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)


def instead_of(word: str) -> str:
    """What to write instead of a word that was found."""
    return next(say for words, say in WORDS.items() if re.fullmatch(words, word, re.IGNORECASE))


def found_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and sentence for each word of the dialect; names of several words are taken apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    for match in _ONE.finditer(apart):
        line = apart.count("\n", 0, match.start()) + 1
        yield line, f"{match[0]!r}: write {instead_of(match[0])}"


def _files(place: str) -> Iterator[Path]:
    path = CHECKOUT / place
    if path.is_file():
        yield path
    for file in path.rglob("*"):
        if file.suffix in SUFFIXES and "__pycache__" not in file.parts:
            yield file


@pytest.mark.parametrize("place", PLACES)
def test_the_words_are_those_of_the_field(place: str) -> None:
    files = list(_files(place))
    assert files, f"{place} is gone"
    assert [
        f"{file.relative_to(CHECKOUT)}:{number}: {sentence}"
        for file in files
        for number, sentence in found_in(file.read_text(encoding="utf-8"))
    ] == []


def test_words_are_found_in_prose_and_in_names() -> None:
    assert [number for number, _ in found_in("a GpuWish\nits_wishes\nanew\n")] == [1, 2, 3]
    assert list(found_in("a swish, a renewal; the latest sources\n")) == []
