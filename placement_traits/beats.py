# SPDX-License-Identifier: Apache-2.0
"""Beats: how Placement shows that a host's agent is there, slowly and at little cost.

Nothing else that an agent publishes is younger than the last change on its host. A host whose agent has ended withdraws
its tiers by itself (``numa-host-agent-ctl withdraw``); where that does not work either, the beat shows it::

    beat:compute1    CUSTOM_NUMA_EXT_BEAT_MINUTE: total = minutes since 1970-01-01 UTC; trait CUSTOM_NUMA_EXT_BEAT

With it comes what the host's objectives cost since the beat before, at no further request::

    beat:compute1    CUSTOM_NUMA_EXT_BE_BANDWIDTH_PERMILLE: total = 1000, reserved = part of the memory bandwidth of its
                     best-effort servers that was withheld from them by throttling; none where none ran

What of it is for whose sake stands in its children, see :mod:`placement_traits.server_costs`.

It is a root of its own: a write there raises no generation in nova's tree, which every view would read again, and it
lives on when nova makes the tree again. It carries no ``CUSTOM_NUMA_EXT_OWNER``, by which views list what they compare.
Its uuid follows from the host's name.

An agent beats every :data:`EVERY_MINUTES`, give or take :data:`SPREAD`, so that a fleet that was started at one moment
spreads out. It is silent after three of the longest intervals. The clocks of agent and reader are compared: one that is
ahead is missed later by as much, one that is more than an hour behind may be taken for silent.

Readers ask which providers have at least so many minutes left: one list of those that live, in one request, whatever
the size of the fleet. Minutes fit Placement's 32 bits until the year 6053.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from placement_traits import names
from placement_traits.client import (
    CODE_DUPLICATE,
    GenerationConflictError,
    NotFoundError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import ConflictError

EVERY_MINUTES: Final = 30.0
SPREAD: Final = 0.2
SILENT_AFTER_MINUTES: Final = round(3 * EVERY_MINUTES * (1 + SPREAD))

_NAMESPACE: Final = uuid.UUID("6b6f1c43-6d0e-4f0a-9b52-0b2f3f6a4c1e")
_PREFIX: Final = "beat:"
_TRIES: Final = 4
PERMILLE: Final = 1000

Clock = Callable[[], float]
"""Seconds since 1970."""


def provider(host: str) -> str:
    """Name of the provider with a host's beat.

    :param host: name of nova's root provider
    """
    return f"{_PREFIX}{host}"


def provider_uuid(host: str) -> str:
    """Return the uuid of the provider with a host's beat."""
    return str(uuid.uuid5(_NAMESPACE, provider(host)))


def host_of(name: str) -> str:
    """Return the host whose beat a provider of this name is."""
    return name.removeprefix(_PREFIX)


class BeatWriter:
    """Writes the beat of one host.

    :param client: Placement
    :param host: name of nova's root provider
    """

    def __init__(self, client: PlacementClient, host: str, clock: Clock = time.time) -> None:
        self._client = client
        self._name, self._uuid = provider(host), provider_uuid(host)
        self._clock = clock
        self._generation: int | None = None
        self._has_classes = False

    def age_minutes(self) -> float | None:
        """Return how old the beat in Placement is, None when there is none; negative when a clock was ahead."""
        body = self._read()
        beat = body["inventories"].get(names.BEAT_MINUTE) if body else None
        return None if beat is None else self._clock() / 60 - beat["total"]

    def beat(self, withheld_permille: int | None = None) -> None:
        """Write the present minute; one request where nothing else wrote since the last time.

        :param withheld_permille: of the bandwidth of best-effort servers, since the last beat; None: not known
        :raises PlacementError: the provider's name is taken by another one
        :raises ConflictError: others wrote again and again
        """
        for attempt in range(_TRIES):
            try:
                if self._generation is None:
                    self._make(self._read())
                self._write(withheld_permille)
                return
            except (NotFoundError, GenerationConflictError):
                self._generation = None
                self._client.pause(attempt)
        raise ConflictError(f"The provider {self._name} was changed {_TRIES} times meanwhile.")

    def _read(self) -> Any:
        """Return the inventories, None when there is no provider."""
        try:
            body = self._client.get(f"/resource_providers/{self._uuid}/inventories")
        except NotFoundError:
            return None
        self._generation = body["resource_provider_generation"]
        return body

    def _make(self, body: Any) -> None:
        """Make what is not there; a creation that was cut has left a provider without inventories.

        :param body: the inventories as read, None without a provider
        """
        if body is not None and body["inventories"]:
            return
        self._client.put(f"/resource_classes/{names.BEAT_MINUTE}")
        self._client.put(f"/traits/{names.BEAT}")
        try:
            if body is None:
                self._client.post("/resource_providers", {"name": self._name, "uuid": self._uuid})
        except PlacementError as error:
            if error.code != CODE_DUPLICATE or self._read() is None:
                raise
        path = f"/resource_providers/{self._uuid}/traits"
        there = self._client.get(path)["resource_provider_generation"]
        body = {"resource_provider_generation": there, "traits": [names.BEAT]}
        self._generation = self._client.put(path, body)["resource_provider_generation"]

    def _write(self, withheld_permille: int | None) -> None:
        inventories = {names.BEAT_MINUTE: {"total": int(self._clock() // 60)}}
        if withheld_permille is not None:
            if not self._has_classes:  # a beat of an earlier release had this one not
                self._client.put(f"/resource_classes/{names.BE_BANDWIDTH_PERMILLE}")
                self._has_classes = True
            inventories[names.BE_BANDWIDTH_PERMILLE] = {
                "total": PERMILLE,
                "reserved": min(withheld_permille, PERMILLE),
            }
        body = {"resource_provider_generation": self._generation, "inventories": inventories}
        answer = self._client.put(f"/resource_providers/{self._uuid}/inventories", body)
        self._generation = answer["resource_provider_generation"]


def living(client: PlacementClient, clock: Clock = time.time) -> frozenset[str] | None:
    """Return the providers, by uuid, with the beats of agents that are there, in one request.

    None before the first beat of a cloud: agents that never beat are of an earlier release, and none of them is missed.
    """
    least = int(clock() // 60) - SILENT_AFTER_MINUTES
    try:
        found = client.get(f"/resource_providers?resources={names.BEAT_MINUTE}:{least}")
    except PlacementError as error:
        if error.status == HTTPStatus.BAD_REQUEST:  # the class does not exist
            return None
        raise
    return frozenset(each["uuid"] for each in found["resource_providers"])


def is_silent(host: str, those_living: frozenset[str] | None) -> bool:
    """Return whether a host's agent is missed, by what :func:`living` returned."""
    return those_living is not None and provider_uuid(host) not in those_living


def hosts(client: PlacementClient) -> frozenset[str]:
    """Return the hosts that have a beat, of whatever age."""
    if not client.get(f"/traits?name=in:{names.BEAT}")["traits"]:
        return frozenset()
    found = client.get(f"/resource_providers?required={names.BEAT}")["resource_providers"]
    return frozenset(host_of(each["name"]) for each in found)


def remove(client: PlacementClient, host: str) -> bool:
    """Remove a host's beat, whose children have gone; tell whether it had one. An agent that runs there beats again."""
    path = f"/resource_providers/{provider_uuid(host)}"
    return is_there(client, host) and client.discard(path)


def is_there(client: PlacementClient, host: str) -> bool:
    """Return whether a host has a beat; a provider of another's with its name is none."""
    return client.has_provider(provider(host), provider_uuid(host))


@dataclass(frozen=True, slots=True)
class LastBeat:
    """What an agent wrote last.

    :param minute: since 1970
    :param withheld_permille: of the memory bandwidth of its best-effort servers, since the beat before; None: none ran
    """

    minute: int
    withheld_permille: int | None


def last(client: PlacementClient, host: str) -> LastBeat | None:
    """Return a host's last beat, None when it has none."""
    if not is_there(client, host):
        return None
    there = client.get(f"/resource_providers/{provider_uuid(host)}/inventories")["inventories"]
    if names.BEAT_MINUTE not in there:
        return None
    withheld = there.get(names.BE_BANDWIDTH_PERMILLE)
    return LastBeat(
        int(there[names.BEAT_MINUTE]["total"]),
        int(withheld["reserved"]) if withheld is not None else None,
    )
