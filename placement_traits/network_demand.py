# SPDX-License-Identifier: Apache-2.0
"""What servers send over the uplinks that hosts of a leaf share: agents say it of their host, the engine of the leaf.

Each agent writes a child of its beat (:mod:`placement_traits.beats`) only, while there is something to say::

    beat:compute1
    └─ network:compute1    CUSTOM_NUMA_EXT_NET_MINUTE: total = minutes since 1970-01-01 UTC
                           CUSTOM_NUMA_EXT_NET_LC_MBPS: total = what latency-critical servers send, Mbit/s, reserved =
                           part of it that shall have room on the leaf's uplinks, while an objective is violated
                           CUSTOM_NUMA_EXT_NET_BE_MBPS: total = what best-effort servers send, Mbit/s

The engine of the job service alone writes the rest, on the leaf's provider (:mod:`placement_traits.fabric_tree`)::

    net:train:l001         CUSTOM_NUMA_EXT_LEAF_UPLINK_MBPS: total = as planned, reserved = kept for latency-critical
                           servers
                           CUSTOM_NUMA_EXT_LEAF_BE_MBPS: total = what best-effort servers of one host may send together
                           CUSTOM_NUMA_EXT_LEAF_MINUTE: as above

Either is of no account after :data:`STALE_MINUTES`, so that an agent or engine that dies, or is cut off, throttles no
server. Clocks of hosts and controllers are compared: with one that is off by more, nothing is asked or held.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from placement_traits import beats, names
from placement_traits.beats import Clock
from placement_traits.client import (
    GenerationConflictError,
    NotFoundError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import ConflictError
from placement_traits.leaf_limits import LeafLimit, NetworkDemand

STALE_MINUTES: Final = 3
MOST_MBPS: Final = 10_000_000
"""More than a host sends; what is said to be more counts as this."""

_PREFIX: Final = "network:"
_NAMESPACE: Final = uuid.UUID("3d0d2d0e-6d54-4a3c-9a53-2f9b8e1f7a46")
_TRIES: Final = 3
_KNOWN_S: Final = 600.0  # a host hangs on another leaf when its plan is changed


def provider(host: str) -> str:
    """Name of the provider with what a host's servers send.

    :param host: name of nova's root provider
    """
    return f"{_PREFIX}{host}"


def provider_uuid(host: str) -> str:
    """Return the uuid of that provider."""
    return str(uuid.uuid5(_NAMESPACE, provider(host)))


def minute(clock: Clock) -> int:
    """Return the minute that is written now."""
    return int(clock() // 60)


def is_fresh(written: int, now: int) -> bool:
    """Return whether what was written in a minute is of account."""
    return abs(now - written) <= STALE_MINUTES


class DemandWriter:
    """Writes what servers of one host send; the host has a beat.

    :param client: Placement
    :param host: name of nova's root provider
    """

    def __init__(self, client: PlacementClient, host: str, clock: Clock = time.time) -> None:
        self._client, self._host, self._clock = client, host, clock
        self._path = f"/resource_providers/{provider_uuid(host)}"
        self._generation: int | None = None
        self._is_there = True  # what an agent before this one has left

    def write(self, demand: NetworkDemand) -> None:
        """Write it with the present minute; one request where nothing else wrote since the last time.

        :raises PlacementError: Placement refuses; without a beat, too
        :raises ConflictError: others wrote again and again
        """
        for _ in range(_TRIES):
            try:
                if self._generation is None:
                    self._generation = self._made()
                body = {
                    "resource_provider_generation": self._generation,
                    "inventories": _inventories(demand, minute(self._clock)),
                }
                answer = self._client.put(f"{self._path}/inventories", body)
            except (NotFoundError, GenerationConflictError):
                self._generation = None
                continue
            self._generation = answer["resource_provider_generation"]
            self._is_there = True
            return
        raise ConflictError(f"Others wrote to {provider(self._host)} {_TRIES} times.")

    def withdraw(self) -> None:
        """Have nothing said of this host; done already is done, without a request.

        :raises PlacementError: Placement refuses
        """
        if self._is_there:
            remove(self._client, self._host)
        self._is_there, self._generation = False, None

    def _made(self) -> int:
        """Return the generation of the provider, which is made where it is missing."""
        try:
            found = self._client.get(f"{self._path}/inventories")
        except NotFoundError:
            for name in names.NET_DEMAND_CLASSES:
                self._client.put(f"/resource_classes/{name}")
            body = {
                "name": provider(self._host),
                "uuid": provider_uuid(self._host),
                "parent_provider_uuid": beats.provider_uuid(self._host),
            }
            found = {"resource_provider_generation": 0}
            self._client.post("/resource_providers", body)
        return int(found["resource_provider_generation"])


def _inventories(demand: NetworkDemand, now: int) -> dict[str, dict[str, int]]:
    urgent = min(max(demand.latency_critical, demand.asked), MOST_MBPS)
    best_effort = min(demand.best_effort, MOST_MBPS)
    found = {names.NET_MINUTE: {"total": now}}
    if urgent > 0:
        asked = min(max(demand.asked, 0), urgent)
        found[names.NET_LC_MBPS] = {"total": urgent, "reserved": asked, "max_unit": 1}
    if best_effort > 0:
        found[names.NET_BE_MBPS] = {"total": best_effort, "max_unit": 1}
    return found


def demands(client: PlacementClient, clock: Clock = time.time) -> dict[str, NetworkDemand]:
    """Return what hosts say of themselves, of the last :data:`STALE_MINUTES`; one request where none says anything.

    A provider counts whose uuid is that of its name; what is said is bounded here only by :data:`MOST_MBPS`.
    """
    now = minute(clock)
    found = {}
    for each in _with(client, names.NET_MINUTE, now - STALE_MINUTES):
        host = str(each["name"]).removeprefix(_PREFIX)
        if each["uuid"] != provider_uuid(host):
            continue
        try:
            body = client.get(f"/resource_providers/{each['uuid']}/inventories")["inventories"]
        except NotFoundError:
            continue
        if is_fresh(_amount(body, names.NET_MINUTE), now):
            found[host] = NetworkDemand(
                min(_amount(body, names.NET_LC_MBPS), MOST_MBPS),
                min(_amount(body, names.NET_BE_MBPS), MOST_MBPS),
                min(_amount(body, names.NET_LC_MBPS, "reserved"), MOST_MBPS),
            )
    return found


def limited_leafs(client: PlacementClient) -> frozenset[str]:
    """Return the providers of leafs, by uuid, of which an engine says anything, however long ago; one request."""
    return frozenset(str(each["uuid"]) for each in _with(client, names.LEAF_MINUTE, 1))


def remove(client: PlacementClient, host: str) -> None:
    """Have nothing said of a host: a beat goes after its children only."""
    own = provider_uuid(host)
    if client.has_provider(provider(host), own):
        client.discard(f"/resource_providers/{own}")


class LeafReader:
    """Reads what is said of the leaf of one host; a request each time, three every ten minutes.

    :param client: Placement
    :param host: name of nova's root provider
    :param monotonic: seconds
    """

    def __init__(
        self,
        client: PlacementClient,
        host: str,
        clock: Clock = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._host, self._clock, self._monotonic = client, host, clock, monotonic
        self._leaf: str | None = None
        self._known_until_s = -_KNOWN_S

    def read(self) -> LeafLimit | None:
        """Return it; None where nothing is said that is of account, or the host hangs on no leaf.

        :raises PlacementError: Placement refuses
        """
        now_s = self._monotonic()
        if now_s >= self._known_until_s:
            self._leaf, self._known_until_s = leaf_of(self._client, self._host), now_s + _KNOWN_S
        if self._leaf is None:
            return None
        try:
            body = self._client.get(f"/resource_providers/{self._leaf}/inventories")["inventories"]
        except NotFoundError:
            self._known_until_s = now_s
            return None
        if not is_fresh(_amount(body, names.LEAF_MINUTE), minute(self._clock)):
            return None
        kept = _amount(body, names.LEAF_UPLINK_MBPS, "reserved")
        return LeafLimit(kept, _amount(body, names.LEAF_BE_MBPS))


def leaf_of(client: PlacementClient, host: str) -> str | None:
    """Return the provider of the leaf that a host hangs on, by uuid; None for a host without one.

    :param host: name of nova's root provider
    """
    root = client.provider_named(host)
    if root is None:
        return None
    traits = client.get(f"/resource_providers/{root['uuid']}/traits")["traits"]
    trait = min(filter(names.is_leaf_trait, traits), default="")
    leafs = below(client, trait)[0] if trait else ()
    return next(iter(leafs), None)


def below(client: PlacementClient, trait: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the provider of a leaf, by uuid, and the names of its hosts.

    :param trait: of the leaf
    """
    found = client.get(f"/resource_providers?required={trait}")["resource_providers"]
    hosts = frozenset(each["name"] for each in found if each["parent_provider_uuid"] is None)
    leafs = tuple(each["uuid"] for each in found if each["parent_provider_uuid"] is not None)
    return leafs, hosts


def _with(client: PlacementClient, resource_class: str, least: int) -> list[Any]:
    try:
        found = client.get(f"/resource_providers?resources={resource_class}:{least}")
    except PlacementError as error:
        if error.status == HTTPStatus.BAD_REQUEST:  # no agent has ever said anything
            return []
        raise
    return list(found["resource_providers"])


def _amount(body: Mapping[str, Any], resource_class: str, which: str = "total") -> int:
    return int(body[resource_class][which]) if resource_class in body else 0
