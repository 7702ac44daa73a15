# SPDX-License-Identifier: Apache-2.0
"""Entry point ``nova.api.extra_spec_validators``: nova's API refuses a typo in our keys, with our message.

Nova (compute API microversion 2.86 or later) looks a key up by its exact name and else by each validator's name
pattern, one key at a time. So there is one validator per key of :data:`~placement_traits.request.EXTRA_SPECS`, and one
whose pattern is the whole namespace: it only ever sees keys that do not exist, and can name the key that was meant.
Amounts of ``CUSTOM_LLC_NEIGHBOURHOOD`` are checked in the groups that our documentation names, and classes that no
server may take, such as ``CUSTOM_NUMA_EXT_PROBE``, are refused there: nova's own validator, which takes any integer,
has a pattern for all custom classes, and only an exact name is sure to come before it.
Nova turns its ``ValidationError`` into HTTP 400.
"""

from typing import Any, Final

from nova import exception
from nova.api.validation.extra_specs import base

from placement_traits import names, request

_GROUPS: Final = ("_NODE", *(f"_N{node}" for node in range(8)))


class _Validator(base.ExtraSpecValidator):  # type: ignore[misc]
    """Nova's validator with our check and our sentence."""

    def validate(self, name: str, value: str) -> None:
        """Raise nova's ValidationError with our sentence when the key or its value is not allowed."""
        sentence = request.problem(name, value)
        if sentence is not None:
            raise exception.ValidationError(sentence)


def register() -> list[base.ExtraSpecValidator]:
    """Return a validator for each of our keys, the one that catches unknown keys, and those of amounts."""
    known = [
        _Validator(name=key, description=spec.description, value=_nova_type(spec))
        for key, spec in request.EXTRA_SPECS.items()
    ]
    unknown = _Validator(
        name=f"{names.EXTRA_SPEC_NAMESPACE}:{{key}}",
        description="Refuses every other key of the namespace.",
        value={"type": str},
        parameters=[{"name": "key", "pattern": ".*"}],
    )
    neighbourhoods = [
        _Validator(
            name=f"resources{group}:{names.LLC_NEIGHBOURHOOD}",
            description="The cache neighbourhood of one L3 domain: all of it (rabbit) or a place in it (devil).",
            value={"type": int},
        )
        for group in _GROUPS
    ]
    refused = [
        _Validator(
            name=f"resources{group}:{each}",
            description="Not for flavors: no server may take it.",
            value={"type": int},
        )
        for each in names.NOT_FOR_FLAVORS
        for group in ("", *_GROUPS)
    ]
    return [*known, unknown, *neighbourhoods, *refused]


def _nova_type(spec: request.ExtraSpec) -> dict[str, Any]:
    """What nova's own tools (and its documentation) read about a value; the check itself is ours."""
    if spec.kind is int:
        limits = {"min": spec.minimum, "max": spec.maximum}
        return {"type": int, **{name: limit for name, limit in limits.items() if limit is not None}}
    if spec.kind is bool:
        return {"type": bool}
    return {"type": str, "enum": list(spec.choices)} if spec.choices else {"type": str}
