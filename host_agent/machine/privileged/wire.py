# SPDX-License-Identifier: Apache-2.0
"""The agent's shapes as plain values and back, for a wire that knows numbers, texts and lists only.

Named tuples and frozen dataclasses travel as the list of their fields, mappings as lists of pairs. The receiver knows
the shape by the table of operations and takes nothing else: what it gets is built field by field.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from placement_traits.errors import InvalidValueError, shown

_PLAIN: Final = (str, int, float, bool, NoneType)


def encode(value: Any) -> Any:
    """Return a value of numbers, texts, None and tuples only.

    :raises InvalidValueError: it is of a kind that does not travel
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    if is_dataclass(value):
        return tuple(encode(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, Mapping):
        return tuple((encode(key), encode(found)) for key, found in value.items())
    if isinstance(value, Sequence):
        return tuple(encode(found) for found in value)
    if isinstance(value, Set):
        return tuple(encode(found) for found in sorted(value))
    raise InvalidValueError("value on the wire", type(value).__name__, "plain values and shapes")


def decode(shape: Any, value: Any) -> Any:
    """Build a value of a shape from what :func:`encode` gave.

    :param shape: an annotation
    :raises InvalidValueError: the value is not of that shape
    """
    try:
        return _decoder(shape)(value)
    except (TypeError, ValueError) as error:
        raise InvalidValueError("value on the wire", shown(value), str(shape)) from error


@cache
def _decoder(shape: Any) -> Callable[[Any], Any]:
    if shape is None or shape in _PLAIN:
        return _plain(NoneType if shape is None else shape)
    origin = get_origin(shape)
    return _class(shape) if origin is None else _generic(origin, get_args(shape))


def _generic(origin: Any, inner: tuple[Any, ...]) -> Callable[[Any], Any]:
    if origin in (Union, UnionType):
        return _either([_decoder(each) for each in inner])
    if origin is tuple and inner[-1] is not Ellipsis:
        return _record(tuple, inner)
    if issubclass(origin, Mapping):
        return _many(dict, GenericAlias(tuple, inner))
    return _many(frozenset if issubclass(origin, Set) else tuple, inner[0])


def _class(shape: Any) -> Callable[[Any], Any]:
    if issubclass(shape, Enum):
        known: Callable[[Any], Any] = shape
        return known
    hints = get_type_hints(shape)
    names = [field.name for field in fields(shape)] if is_dataclass(shape) else shape._fields
    return _record(lambda values: shape(*values), [hints[name] for name in names])


def _plain(kind: type) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        # Not isinstance: True is no number here; but a whole number is a fraction, too.
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise TypeError(value)
        return value

    return build


def _either(builders: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        for each in builders:
            try:
                return each(value)
            except (TypeError, ValueError):
                continue
        raise TypeError(value)

    return build


def _many(whole: Callable[[Any], Any], shape: Any) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        each = _decoder(shape)
        return whole(each(found) for found in _listed(value))

    return build


def _record(whole: Callable[[Any], Any], shapes: Sequence[Any]) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        return whole(
            [_decoder(shape)(found) for shape, found in zip(shapes, _listed(value), strict=True)]
        )

    return build


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(value)
    return value
