# SPDX-License-Identifier: Apache-2.0
"""The form of Placement's answers, as far as they are read: one of another form is not Placement's, or of a broken one.

Forms are checked by columns, all values of one place at once: a fleet's list has 10⁵ rows.

Source: Placement API reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of values of one form."""

    form: "Form"


@dataclass(frozen=True, slots=True)
class Named:
    """An object with any names and values of one form."""

    form: "Form"


Form: TypeAlias = "Listed | Named | Mapping[str, Form] | tuple[type, ...]"
"""A list, an object by any names, an object with at least these members, or one of some types."""

_TEXT: Final = (str,)
_WHOLE: Final = (int,)
_INVENTORY: Final = {
    **dict.fromkeys(("total", "reserved", "min_unit", "max_unit", "step_size"), _WHOLE),
    "allocation_ratio": (int, float),
}
_PROVIDER: Final = {
    **dict.fromkeys(("uuid", "name", "root_provider_uuid"), _TEXT),
    "generation": _WHOLE,
}
_MEMBERS: Final[Mapping[str, Form]] = {
    "allocations": Named({"resources": Named(_WHOLE)}),
    "inventories": Named(_INVENTORY),
    "resource_classes": Listed({"name": _TEXT}),
    "resource_provider_generation": _WHOLE,
    "resource_providers": Listed(_PROVIDER),
    "traits": Listed(_TEXT),
    "usages": Named(_WHOLE),
}


_OF_PROJECT: Final[Mapping[str, Form]] = {**_MEMBERS, "usages": Named(Named(_WHOLE))}


def malformed(answer: Mapping[str, Any], *, of_project: bool = False) -> str:
    """Return the first member of an answer that has another form than Placement gives it, "" when none has.

    :param of_project: it tells what a project uses, which is by type of consumer since microversion 1.38
    """
    for name, form in (_OF_PROJECT if of_project else _MEMBERS).items():
        if name in answer and not _fit((answer[name],), form):
            return name
    return ""


def _fit(column: Sequence[Any], form: Form) -> bool:
    if isinstance(form, tuple):
        return set(map(type, column)) <= set(form)  # not isinstance(): JSON's true is no number
    if isinstance(form, Listed):
        return _fit(column, (list,)) and _fit([*chain.from_iterable(column)], form.form)
    if not _fit(column, (dict,)):
        return False
    if isinstance(form, Named):
        return _fit([value for row in column for value in row.values()], form.form)
    return all(
        all(name in row for row in column) and _fit([row[name] for row in column], inner)
        for name, inner in form.items()
    )
