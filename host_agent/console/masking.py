# SPDX-License-Identifier: Apache-2.0
"""Takes secrets out of what leaves the host: by the options that hold them, by their names, and by their values."""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

MASK: Final = "***"

# Values that are too short would take parts of words out of everything.
_SHORTEST: Final = 4

_NAMES: Final = (
    r"[\w-]*(?:passw(?:or)?d|passphrase|secret|token|credential|private_key|api_key)[\w-]*"
)
_ASSIGNED: Final = re.compile(
    rf"""(?P<before>\b{_NAMES}["']?\s*[:=]\s*)(?P<value>"[^"]*"|'[^']*'|[^\s"',;}}]+)""",
    re.IGNORECASE,
)
_IN_URL: Final = re.compile(r"(?P<before>\w://[^\s/:@]*:)(?P<value>[^\s@/]+)(?=@)")
_LINE: Final = re.compile(r"^\s*(?P<name>[\w-]+)\s*[:=]\s*(?P<value>.*?)\s*$")


def secrets(texts: Iterable[str], names: Collection[str]) -> frozenset[str]:
    """Return the secrets in configuration files.

    :param texts: of the files
    :param names: of options that hold one, as the configuration spells them with ``_``
    """
    return frozenset(value for text in texts for value in _values(text, names))


def _values(text: str, names: Collection[str]) -> Iterator[str]:
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, value = found["name"].replace("-", "_"), found["value"].strip("\"'")
        in_urls = [match["value"] for match in _IN_URL.finditer(value)]
        yield from in_urls
        if (name in names and not in_urls) or re.fullmatch(_NAMES, name, re.IGNORECASE):
            yield value


class Masks:
    """Takes secrets out of texts.

    :param known: secrets, wherever they stand
    """

    def __init__(self, known: Iterable[str]) -> None:
        # The longest first: one may be a part of another.
        values = sorted({each for each in known if len(each) >= _SHORTEST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, values))) if values else None

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for pattern in (_IN_URL, _ASSIGNED):
            text = pattern.sub(lambda found: found["before"] + MASK, text)
        return text
