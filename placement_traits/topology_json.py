# SPDX-License-Identifier: Apache-2.0
"""Topologies as JSON: by their schema, to shapes and back."""

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

from placement_traits.errors import InvalidValueError


def first_error(data: Mapping[str, Any]) -> Any:
    """Return the most telling finding of jsonschema, None when the data fit."""
    from jsonschema.exceptions import best_match

    return best_match(_validator().iter_errors(data))


@cache
def _validator() -> Any:
    import jsonschema

    text = resources.files("placement_traits").joinpath("schemas/host_topology.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


def schema_error(where: str, error: Any) -> InvalidValueError:
    """Turn a finding of jsonschema into our error; an unknown key is named by its own path."""
    path = where + "".join(
        f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.absolute_path
    )
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = next(key for key in error.instance if key not in known)
        return InvalidValueError(
            f"{path}.{unknown}", error.instance[unknown], f"keys {', '.join(known)}"
        )
    return InvalidValueError(path, error.instance, error.message)


def json_of(value: Any) -> Any:
    """Return JSON types of a shape; what has its default is left out."""
    if is_dataclass(value):
        return {
            f.name: json_of(getattr(value, f.name))
            for f in fields(value)
            if f.init and getattr(value, f.name) != f.default
        }
    if isinstance(value, tuple):
        return [json_of(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return value


def shape_of(kind: Any, value: Any) -> Any:
    """Build ``kind`` (dataclass, tuple, optional, enum or plain type) from JSON types that the schema accepted."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        inner = next(arg for arg in typing.get_args(kind) if arg is not types.NoneType)
        return None if value is None else shape_of(inner, value)
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(shape_of(inner, item) for item in value)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{key: shape_of(hints[key], item) for key, item in value.items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
