# SPDX-License-Identifier: Apache-2.0
"""Stacks of Heat, asked and resized with the rights of one user.

A stack is resized by one of its parameters, from which its template takes the ``desired_capacity`` of a group:
``PATCH`` of the stack leaves template, environment and all other parameters as they are. It has to be the user who has
made or updated the stack last: for another one Heat makes a trust of its own, which it cannot do with a token that
comes of a trust.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from nova_numa_ext.orchestrator.cloud.asking import answered, strange
from placement_traits.client import HttpAdapter
from placement_traits.errors import NumaExtError, cut

SERVICE: Final = "Heat"
ENDPOINT: Final = "orchestration"
"""Service type in the catalogue."""

_DEEPEST: Final = 5  # nested stacks; Heat's own limit, max_nested_stack_depth
_SERVER: Final = "OS::Nova::Server"
_OK: Final = 200
_ACCEPTED: Final = 202
_NOT_FOUND: Final = 404
_STANDS: Final = ("DELETE_", "SUSPEND_")


class StackRefusedError(NumaExtError):
    """Heat does not resize a stack, in its own words."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as its user sees it.

    :param status: Heat's: ``CREATE_COMPLETE``, ``UPDATE_IN_PROGRESS``, ``UPDATE_FAILED`` …
    :param reason: Heat's words on it
    :param parameters: their values, as text
    """

    uuid: str
    name: str
    status: str
    reason: str
    parameters: Mapping[str, str]

    @property
    def is_moving(self) -> bool:
        """Heat has something under way."""
        return self.status.endswith("_IN_PROGRESS")

    @property
    def has_failed(self) -> bool:
        """What Heat was asked for last has failed, and Heat has left it so."""
        return self.status.endswith("_FAILED")

    @property
    def went_back(self) -> bool:
        """What Heat was asked for last has failed, and all is as before."""
        return self.status == "ROLLBACK_COMPLETE"

    @property
    def can_be_resized(self) -> bool:
        """Nothing is under way, nothing has failed, and it is neither gone nor suspended."""
        return self.status.endswith("_COMPLETE") and not self.status.startswith(_STANDS)

    def size(self, parameter: str) -> int | None:
        """Return what a parameter says; None where it is none, or no whole number."""
        value = self.parameters.get(parameter, "")
        return int(value) if value.isascii() and value.isdecimal() else None


class UserStacks:
    """Heat with one user's rights.

    All methods raise :class:`.asking.SilentError` when Heat does not answer, or is not there.

    :param orchestration: a keystoneauth1 adapter for service type ``orchestration``
    """

    def __init__(self, orchestration: HttpAdapter) -> None:
        self._orchestration = orchestration

    def get(self, stack: str, name: str) -> Stack | None:
        """Return a stack, None where there is none.

        :param stack: uuid
        """
        path = f"{_path(stack, name)}?{urlencode({'resolve_outputs': 'False'})}"
        found = self._asked(path)
        return None if found is None else _read(found, f"GET {_path(stack, name)}", stack_of)

    def servers(self, stack: str, name: str) -> frozenset[str] | None:
        """Return the uuids of all servers that Heat has made for a stack, those of its groups, too; None without stack.

        Such as nova has deleted meanwhile may be among them.
        """
        query = {"type": _SERVER, "nested_depth": str(_DEEPEST)}
        path = f"{_path(stack, name)}/resources"
        found = self._asked(f"{path}?{urlencode(query)}")
        return None if found is None else _read(found, f"GET {path}", _servers)

    def resize(self, stack: str, name: str, parameter: str, size: int) -> None:
        """Have Heat update a stack with another value of one parameter; all else stays.

        :raises StackRefusedError: it does not
        """
        path = _path(stack, name)
        body = {"parameters": {parameter: size}}
        answer = answered(self._orchestration, SERVICE, "PATCH", path, body)
        if answer.status_code == _ACCEPTED:
            return
        if 400 <= answer.status_code < 500:
            raise StackRefusedError(
                f"Heat answered PATCH {path} with {answer.status_code}: {cut(_words(answer))}"
            )
        raise strange(answer, SERVICE, f"PATCH {path}")

    def _asked(self, path: str) -> Any:
        answer = answered(self._orchestration, SERVICE, "GET", path)
        if answer.status_code == _NOT_FOUND:
            return None
        if answer.status_code != _OK:
            raise strange(answer, SERVICE, f"GET {path.partition('?')[0]}")
        return answer


def stack_of(body: Mapping[str, Any]) -> Stack:
    """Return the stack in Heat's answer to a request for one."""
    shown = body["stack"]
    return Stack(
        str(shown["id"]),
        str(shown["stack_name"]),
        str(shown["stack_status"]),
        cut(str(shown.get("stack_status_reason") or "")),
        {str(name): str(value) for name, value in shown["parameters"].items()},
    )


def _servers(body: Mapping[str, Any]) -> frozenset[str]:
    found = (str(each["physical_resource_id"]) for each in body["resources"])
    return frozenset(filter(None, found))


def _read(answer: Any, request: str, read: Any) -> Any:
    """Return what is read of an answer; a proxy in between may answer with a page of its own."""
    try:
        return read(answer.json())
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise strange(answer, SERVICE, request) from error


def _path(stack: str, name: str) -> str:
    return f"/stacks/{quote(name, safe='')}/{quote(stack, safe='')}"


def _words(answer: Any) -> str:
    """Return Heat's own sentence: the body is {"error": {"message": …}}."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, TypeError, LookupError):
        return str(answer.text)
