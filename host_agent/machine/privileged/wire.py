# SPDX-License-Identifier: Apache-2.0
"""The agent's shapes as plain values and back, for a wire that knows numbers, texts and lists only.

Named tuples and frozen dataclasses travel as the list of their fields, mappings as lists of pairs. The receiver knows
the shape by the table of operations and takes nothing else: what it gets is built field by field. A round has
thousands of fields: what a message can hold is not taken apart, and fields of plain kinds are checked together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import GenericAlias, NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from placement_traits.errors import InvalidValueError, shown

_PLAIN: Final = frozenset({str, int, float, bool, NoneType})


def encode(value: Any) -> Any:
    """Return a value of numbers, texts, None and sequences only, as :func:`.frames.pack` takes it.

    :raises InvalidValueError: it is of a kind that does not travel
    """
    kind: Any = type(value)
    if kind in _PLAIN or _as_it_is(kind):
        return value
    if kind in (tuple, list):
        return tuple(map(encode, value))
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str | int | float):
        return value
    return tuple(map(encode, _entries(value)))


def _entries(value: Any) -> Iterable[Any]:
    if is_dataclass(value):
        return (getattr(value, field.name) for field in fields(value))
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, Sequence):
        return value
    if isinstance(value, Set):
        return sorted(value)
    raise InvalidValueError("value on the wire", type(value).__name__, "plain values and shapes")


@cache
def _as_it_is(shape: Any) -> bool:
    """Tell whether a message can hold all values of a shape: plain ones, tuples, and named tuples of these."""
    if shape is None or shape in _PLAIN:
        return True
    origin, inner = get_origin(shape), get_args(shape)
    if origin is tuple or origin in (Union, UnionType):
        return all(_as_it_is(each) for each in inner if each is not Ellipsis)
    named = isinstance(shape, type) and issubclass(shape, tuple) and hasattr(shape, "_fields")
    return named and all(map(_as_it_is, get_type_hints(shape).values()))


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
    hints, make = get_type_hints(shape), shape
    if is_dataclass(shape):
        names = [field.name for field in fields(shape)]
        return _record(lambda values: make(*values), [hints[name] for name in names])
    return _record(partial(tuple.__new__, shape), [hints[name] for name in shape._fields])


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
    each = _decoder(shape)
    kinds = {shape} if shape in _PLAIN else None

    def build(value: Any) -> Any:
        found = _listed(value)
        if kinds and kinds.issuperset(map(type, found)):
            return whole(found)
        return whole(map(each, found))

    return build


def _record(whole: Callable[[Any], Any], shapes: Sequence[Any]) -> Callable[[Any], Any]:
    builders = tuple(map(_decoder, shapes))
    kinds = tuple(shapes) if all(shape in _PLAIN for shape in shapes) else None

    def build(value: Any) -> Any:
        found = _listed(value)
        if kinds and tuple(map(type, found)) == kinds:
            return whole(found)
        return whole([each(part) for each, part in zip(builders, found, strict=True)])

    return build


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(value)
    return value
