# SPDX-License-Identifier: Apache-2.0
"""The table of privileged operations: what each is called, takes and gives, and what a dry run makes of it.

A method of :class:`~.operations.HostOperations`, or of a part of it, becomes an operation by one of the decorators
here; its annotations are the shapes of its arguments and its result. All ways to an operation – in this process, in
the helper, in a dry run – are made of the table, so that a new operation is written down there and, for mypy, in
:class:`~.api.Privileged`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Signature, signature
from typing import Any, Final, TypeVar, get_type_hints

_MARK: Final = "_in_dry_run"

_Method = TypeVar("_Method", bound=Callable[..., Any])

DryRun = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
"""Given the real operation and its arguments: what a dry run answers."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the table.

    :param name: of the method
    :param shape: names and order of the arguments
    :param arguments: annotation of each argument, in order
    :param result: annotation of the result
    :param dry_run: what a dry run makes of it
    """

    name: str
    shape: Signature
    arguments: tuple[Any, ...]
    result: Any
    dry_run: DryRun

    def positional(self, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """Return the arguments of a call in the order of the table.

        :raises TypeError: they do not fit
        """
        if not named and len(arguments) == len(self.arguments):
            return arguments  # most calls by far; to bind takes longer than all else here
        return self.shape.bind(*arguments, **named).args


def reads(method: _Method) -> _Method:
    """Mark an operation that changes nothing: a dry run calls it as it is."""
    return _marked(method, lambda operation, arguments: operation(*arguments))


def writes_if_asked(method: _Method) -> _Method:
    """Mark an operation whose last argument is ``write``: in a dry run that is False, and it says what it would do."""
    return _marked(method, lambda operation, arguments: operation(*arguments[:-1], False))


def writes(answer: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Mark an operation that changes the host: a dry run does not call it.

    :param answer: what a dry run gets, by the arguments
    """

    def mark(method: _Method) -> _Method:
        return _marked(method, lambda _operation, arguments: answer(*arguments))

    return mark


def _marked(method: _Method, dry_run: DryRun) -> _Method:
    setattr(method, _MARK, dry_run)
    return method


def operations_of(owner: type) -> dict[str, Operation]:
    """Return the table of a class and of what it is made of: name -> operation."""
    return {
        name: _operation(name, method)
        for part in reversed(owner.__mro__)
        for name, method in vars(part).items()
        if hasattr(method, _MARK)
    }


def _operation(name: str, method: Callable[..., Any]) -> Operation:
    whole = signature(method)
    shape = whole.replace(parameters=list(whole.parameters.values())[1:])  # without self
    hints = get_type_hints(method)
    arguments = tuple(hints[parameter] for parameter in shape.parameters)
    return Operation(name, shape, arguments, hints["return"], getattr(method, _MARK))


class Way:
    """An object that has every operation of a table as a method.

    :param table: name -> operation
    :param call: carries out an operation with its arguments in the order of the table
    """

    def __init__(
        self,
        table: Mapping[str, Operation],
        call: Callable[[Operation, tuple[Any, ...]], Any],
    ) -> None:
        self._call = call
        for operation in table.values():
            setattr(self, operation.name, partial(self._bound, operation))

    def _bound(self, operation: Operation, *arguments: Any, **named: Any) -> Any:
        return self._call(operation, operation.positional(*arguments, **named))
