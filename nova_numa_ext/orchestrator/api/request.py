# SPDX-License-Identifier: Apache-2.0
"""What a request says beside its body: who asks, and the query; and how often what it changes is tried.

Read of flask's request at hand; each raises :class:`placement_traits.errors.InvalidValueError` for what is malformed.
"""

import math
import re
import uuid as uuids
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import flask
from oslo_context.context import RequestContext

from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError
from nova_numa_ext.orchestrator.store.database import LostRaceError
from placement_traits.errors import InvalidValueError

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_TRIES: Final = 10  # of a change, while others change the same
# Jobs' uuids are made of their clients' keys in it.
_KEYS: Final = uuids.UUID("7d0c6d3e-6b0c-4f0a-9d39-6a0f6a1f2a57")
_State = TypeVar("_State", bound=StrEnum)
_Changed = TypeVar("_Changed")


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks.

    :param project: of the token, '' where it has another scope
    """

    user: str
    project: str
    context: RequestContext


def changed(what: str, attempt: Callable[[], _Changed]) -> _Changed:
    """Return what a change returns; it is made again where another one was faster.

    :param what: is changed
    :param attempt: reads it, changes it, and raises :class:`LostRaceError` where another was faster
    :raises RefusedRequestError: another was each time
    """
    for _ in range(_TRIES):
        try:
            return attempt()
        except LostRaceError:
            continue
    raise RefusedRequestError(409, f"{what} changes all the time: try again.")


def asking() -> Asking:
    """Return who asks, of keystonemiddleware's headers."""
    found = context()
    if not found.user_id:
        raise RefusedRequestError(401, "A token of Keystone is needed.")
    return Asking(found.user_id, found.project_id or "", found)


def context() -> RequestContext:
    """Return what keystonemiddleware and oslo.middleware say of the request, with one id as long as it lasts."""
    if "context" not in flask.g:
        flask.g.context = RequestContext.from_environ(flask.request.environ)
    found: RequestContext = flask.g.context
    return found


def keyed_uuid(asked_by: Asking) -> str | None:
    """Return the uuid that a job has by its client's key, None without a key: one of a user, a project and a key."""
    key = flask.request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return None
    if not re.fullmatch(r"[!-~]{1,255}", key):
        raise InvalidValueError(
            IDEMPOTENCY_KEY, key, "1 to 255 printed characters of ASCII, none of them blank"
        )
    return str(uuids.uuid5(_KEYS, f"{asked_by.project} {asked_by.user} {key}"))


def flag(name: str) -> bool:
    """Return a parameter of the query that is true or false, false where it is not given."""
    given = flask.request.args.get(name, "false").lower()
    if given not in ("true", "false"):
        raise InvalidValueError(f"query {name}", given, "true or false")
    return given == "true"


def number(name: str, default: int, least: int, most: int) -> int:
    """Return a whole number of the query."""
    given = flask.request.args.get(name)
    if given is None:
        return default
    if not (
        given.isascii() and given.isdecimal() and len(given) < 20 and least <= int(given) <= most
    ):
        raise InvalidValueError(f"query {name}", given, f"a whole number from {least} to {most}")
    return int(given)


def seconds(name: str) -> float | None:
    """Return a time of the query, None where it is not given."""
    given = flask.request.args.get(name)
    try:
        found = None if given is None else float(given)
    except ValueError:
        found = math.nan
    if found is not None and not math.isfinite(found):
        raise InvalidValueError(f"query {name}", given, "a number of seconds")
    return found


def states(known: type[_State]) -> tuple[_State, ...]:
    """Return the states that the query names, all of them where it names none."""
    given = flask.request.args.getlist("state")
    unknown = [each for each in given if each not in list(known)]
    if unknown:
        raise InvalidValueError("query state", unknown[0], ", ".join(known))
    return tuple(map(known, given)) or tuple(known)


def kind(known: type[_State]) -> _State | None:
    """Return the kind that the query names, None where it names none."""
    given = flask.request.args.get("kind")
    if given is not None and given not in list(known):
        raise InvalidValueError("query kind", given, ", ".join(known))
    return None if given is None else known(given)
