# SPDX-License-Identifier: Apache-2.0
"""Code, commands and pages use the field's words; those of a private dialect do not come back.

Only words without another use stand here.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PLACES = (
    *("host_agent", "nova_numa_ext", "placement_traits", "benchmarks", "emulation", "devstack"),
    *("doc/source", "etc/nova", "README.md"),
)
HISTORY = CHECKOUT / "doc/source/reference/release-notes.rst"  # says what things were called before
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
    "in force": "effective",
    "bandwidth (?:controller|qos)": "SLO controller",
    "(?:green|yellow)_[a-z]+": "the state of the objective, or its slack",
    "signs? of life": "in control (dead-man switch), notification (watchdog) or beat (Placement)",
    "strangers?": "foreign groups",
    "the source's": "the system's name, with author and section",
    "told(?! apart)": "reported, or the passive of another verb",
    "wanted": "desired, requested or expected",
    "wish|wishes": "request, spec or desired state",
}
# in the agent, where each stood for several things
IN_THE_AGENT = {
    "pressure": "reserved bandwidth",
    "said": "reported",
}
_OLD_STATE = re.compile(
    r"renamed\b[^{\n]*\{[^}]*\}|formerly=\"\w+\"|(?<=\* - ``)\[\w+\]\w+(?=``\n)", re.IGNORECASE
)  # names in files of an older version; an option's cell of a table: test_documentation.py knows which there may be


def instead_of(word: str, dialect: Mapping[str, str]) -> str:
    """What to write instead of a word that was found."""
    return next(say for words, say in dialect.items() if re.fullmatch(words, word, re.IGNORECASE))


def found_in(text: str, dialect: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield line number and sentence for each word of the dialect; names of several words are taken apart."""
    one = re.compile(rf"(?<![a-z])(?:{'|'.join(dialect)})(?![a-z])", re.IGNORECASE)
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    for match in one.finditer(apart):
        line = apart.count("\n", 0, match.start()) + 1
        yield line, f"{match[0]!r}: write {instead_of(match[0], dialect)}"


def _files(place: str) -> Iterator[Path]:
    path = CHECKOUT / place
    if path.is_file():
        yield path
    for file in path.rglob("*"):
        if file.suffix in SUFFIXES and "__pycache__" not in file.parts and file != HISTORY:
            yield file


@pytest.mark.parametrize("place", PLACES)
def test_the_words_are_those_of_the_field(place: str) -> None:
    files = list(_files(place))
    assert files, f"{place} is gone"
    dialect = WORDS | IN_THE_AGENT if place == "host_agent" else WORDS
    assert [
        f"{file.relative_to(CHECKOUT)}:{number}: {sentence}"
        for file in files
        for number, sentence in found_in(_OLD_STATE.sub("", file.read_text("utf-8")), dialect)
    ] == []


def test_words_are_found_in_prose_and_in_names() -> None:
    assert [number for number, _ in found_in("a GpuWish\nits_wishes\nanew\n", WORDS)] == [1, 2, 3]
    assert list(found_in("a swish, a renewal; the latest sources\n", WORDS)) == []


def test_what_an_older_state_file_called_it_may_stand_where_it_is_renamed() -> None:
    text = '_RENAMED: Final = {"wanted": "targets"}\nwanted = 1\n'
    assert [number for number, _ in found_in(_OLD_STATE.sub("", text), WORDS)] == [2]
