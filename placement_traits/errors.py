# SPDX-License-Identifier: Apache-2.0
"""The errors of this project.

Every error that a user or operator may meet derives from :class:`NumaExtError` and states in one sentence what was
requested, where, and what is allowed. Code that can go on without the missing thing catches the narrow class; nothing
catches ``Exception`` except the outermost guard of a service loop, which counts and logs.

A class with arguments of its own hands all of them to ``super().__init__`` and makes its sentence in ``__str__``: an
error that crosses a process (the privileged helper, pickle) is made again there as ``type(error)(*error.args)``.

A sentence is for a log line or an API's answer, whatever was given: long values are shown by their beginning, and what
is no printable character is written out.
"""

import reprlib
from typing import Final

_LONGEST_VALUE: Final = 200
LONGEST_TEXT: Final = 2000
# Visits few parts of a value: YAML's aliases make 10⁹ out of ten lines.
_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST_VALUE


def cut(text: str, most: int = _LONGEST_VALUE) -> str:
    """Return a text, or its beginning with an ellipsis; line ends and all that a terminal obeys are written out."""
    if len(text) > most:
        return f"{cut(text[:most], most)}…"
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def shown(value: object) -> str:
    """Return the beginning of a value as Python writes it; of what cannot be written (10⁵ digits) its type."""
    if isinstance(value, str | bytes) and len(value) > _LONGEST_VALUE:
        return f"{value[:_LONGEST_VALUE]!r}…"
    try:
        return cut(_SHORT.repr(value))
    except (ValueError, RecursionError):
        return f"a value of type {type(value).__name__}"


class NumaExtError(Exception):
    """Base of all errors raised on purpose by nova-numa-ext."""


class InvalidValueError(NumaExtError):
    """A value given by a user or found in a file is outside what is allowed.

    :param where: the key, file or option that holds the value
    :param value: the value as it was given
    :param allowed: what would be accepted, as text
    """

    def __init__(self, where: str, value: object, allowed: str) -> None:
        super().__init__(where, value, allowed)
        self.where = where
        self.value = value
        self.allowed = allowed

    def __str__(self) -> str:
        where, allowed = cut(self.where), cut(self.allowed, LONGEST_TEXT)
        return f"{where}: {shown(self.value)} is not allowed; allowed: {allowed}"


class CapabilityMissingError(NumaExtError):
    """The host or service lacks something that the requested action needs."""


class ConflictError(NumaExtError):
    """Another client changed the same object at the same time and retries did not help."""


class ServiceUnavailableError(NumaExtError):
    """A service that we depend on (Placement, libvirt, a guest channel) does not answer now."""
