# SPDX-License-Identifier: Apache-2.0
"""A request's body as JSON says it (RFC 8259), which is less than what Python's parser takes."""

import json
from typing import Any, Final, NoReturn

from placement_traits.errors import InvalidValueError

_WHERE: Final = "body"
_AROUND: Final = 20


def parsed(data: bytes) -> Any:
    """Return what a body says.

    :raises InvalidValueError: it is no JSON: numbers that are none, halves of characters, nested too deep
    """
    try:
        found = json.loads(data, parse_constant=_no_number)
        text = json.dumps(found, ensure_ascii=False)
    except RecursionError:
        raise InvalidValueError(_WHERE, data, "JSON that is not nested so deep") from None
    except UnicodeDecodeError:
        raise InvalidValueError(_WHERE, data, "JSON in UTF-8") from None
    except ValueError as error:
        raise InvalidValueError(_WHERE, data, f"JSON ({error})") from None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        part = text[max(error.start - _AROUND, 0) : error.end + _AROUND]
        allowed = "characters of Unicode, no half of a surrogate pair"
        raise InvalidValueError(_WHERE, part, allowed) from None
    return found


def _no_number(name: str) -> NoReturn:
    raise InvalidValueError(_WHERE, name, "a number that JSON knows")
