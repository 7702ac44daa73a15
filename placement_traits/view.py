# SPDX-License-Identifier: Apache-2.0
"""The fleet as the scheduler sees it: each host's part of Placement that is ours, kept fresh in the background.

Two kinds of reading, both a few requests whatever the number of hosts:

* *complete*: which of our traits exist, one list of our providers with their generations, one list of the names of
  roots and GPUs, one of the agents that have beaten lately (:mod:`.beats`), and queries of allocation candidates,
  whose provider summaries hold traits, capacity and use of whole trees, but no names: one query, or, where Placement
  limits candidates, as few as the limit allows (:mod:`.shards`);
* *incremental*: the list of generations again; a host whose generations differ from the last time is read alone (one or
  two requests). Placement raises a generation at each change of traits or inventories of a provider, and where
  allocations are written, but not where they are deleted: room that a deleted server leaves is seen when its agent
  publishes a change, and else at the next complete reading.

The queries ask for the probe, of which each host has one unit that is never allocated, so a host that is full is seen
as any other. A host whose agent publishes no probe is read provider by provider. Providers of GPUs, of other devices,
and nova's roots are not in the list that is compared (a root changes with every server of any kind): what is published
there is picked up with the next change of an L3 or RDT provider of the host, or by the next complete reading. A view
that is asked for what roots have compares them, too; a server takes a device and something of its root together.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import inf
from typing import Any, Final

from placement_traits import beats, names, shards
from placement_traits.client import (
    HttpAdapter,
    NotFoundError,
    PlacementClient,
    PlacementError,
    RetrySettings,
)
from placement_traits.errors import NumaExtError
from placement_traits.fleet import Amount, HostView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.host_view import (
    DEVICES,
    ProviderFacts,
    bounded,
    host_view,
    known_names,
    relevant,
)
from placement_traits.names import TierTrait
from placement_traits.shards import Shard
from placement_traits.snapshot import FleetSnapshot, ViewState

LOG = logging.getLogger(__name__)

_ASKED_FOR: Final = (names.OWNER, names.HOST, names.GPU, names.BEAT, *shards.all_traits())

# A refresh may take longer than the one before: aim at this share of the age that is allowed.
_SAFE_SHARE_OF_AGE: Final = 0.8


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """How the view is kept.

    :param interval_s: seconds between two comparisons of generations, longer where :attr:`busy_share` asks for it
    :param full_interval_s: seconds between two complete reads; traits of nova's roots are re-read only then or when a
        provider of ours below them changed
    :param max_age_s: older than this the view is stale
    :param wait_s: seconds from the start in which callers of :meth:`FleetView.snapshot` wait for the first reading
    :param full_share: share of changed hosts above which one complete read is cheaper than single ones
    :param full_least: no complete read for fewer changed hosts than this
    :param busy_share: largest share of the time that Placement is kept busy by us: on a large fleet the pauses grow
    """

    interval_s: float = 2.0
    full_interval_s: float = 600.0
    max_age_s: float = 30.0
    wait_s: float = 5.0
    full_share: float = 0.2
    full_least: int = 8
    busy_share: float = 0.2


@dataclass(frozen=True, slots=True)
class ViewStats:
    """What keeping the view has cost since it was made.

    :param requests: HTTP requests
    :param bytes_read: bytes of their answers
    :param refreshes: refreshes that succeeded
    :param full_reads: complete ones among them
    :param trees_read: hosts that were read alone
    :param failures: refreshes that failed
    :param last_duration_s: seconds that the last successful refresh took
    :param last_error: why the last refresh failed; "" when it succeeded
    """

    requests: int = 0
    bytes_read: int = 0
    refreshes: int = 0
    full_reads: int = 0
    trees_read: int = 0
    failures: int = 0
    last_duration_s: float = 0.0
    last_error: str = ""


class Freshness:
    """Decides how far a view can be trusted, and logs one line when that changes.

    :param max_age_s: older than this a view is stale
    """

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._state = ViewState.EMPTY

    def state(self, age_s: float, hosts: int | None, last_error: str) -> ViewState:
        """Return the state of a view.

        :param age_s: seconds since the reading that it comes from began; negative: the reading is not of our time
        :param hosts: how many it shows; None: nothing was ever read
        :param last_error: why the last reading failed
        """
        state = ViewState.FRESH if 0 <= age_s <= self._max_age_s else ViewState.STALE
        if hosts is None:
            state = ViewState.EMPTY
        if state is not self._state:
            self._state = state
            if state is ViewState.FRESH:
                LOG.info("The view of Placement is fresh: %d hosts.", hosts)
            else:
                LOG.warning(
                    "The view of Placement is %s: %.1f s old, allowed are %.1f s. Last error: %s",
                    state,
                    age_s,
                    self._max_age_s,
                    last_error,
                )
        return state


class FleetView:
    """Keeps a :class:`FleetSnapshot` of the whole fleet.

    :param adapter: a keystoneauth1 adapter for service type ``placement``
    :param settings: intervals and bounds
    :param clock: monotonic seconds; injected by tests
    :param background: read in a thread that the first :meth:`snapshot` starts (after a fork: in each process); False =
        only :meth:`refresh` reads
    :param before: what another reader saw last: versions go on from there
    :param root_amounts: is filled with what nova's root providers have, by resource class by root, and kept as fresh as
        the rest; roots that have gone stay in it. None: that is not read
    """

    def __init__(
        self,
        adapter: HttpAdapter,
        settings: ViewSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        background: bool = True,
        before: FleetSnapshot | None = None,
        *,
        root_amounts: dict[str, Mapping[str, Amount]] | None = None,
    ) -> None:
        self._settings = settings or ViewSettings()
        self._root_amounts = root_amounts
        # A failed refresh is tried again at the next interval anyway.
        self._client = PlacementClient(adapter, RetrySettings(attempts=2))
        self._clock = clock
        self._background = background
        self._arrays = before.arrays if before is not None else FleetArrays.of(())
        self._fingerprints: dict[str, int] = {}
        self._traits: frozenset[str] = frozenset()  # those of ours that Placement knows
        self._limit: int | None = None  # most hosts that one query of candidates has shown
        self._without_probe: set[str] = set()
        self._as_of = -inf
        self._full_at = -inf
        self._version = before.version if before is not None else 0
        self._stats = ViewStats()
        self._freshness = Freshness(self._settings.max_age_s)
        self._lock = threading.Lock()  # one refresh at a time, and the thread's start
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._wait_until_s = 0.0

    # For the scheduler ----------------------------------------------------------------------------------------------

    def snapshot(self) -> FleetSnapshot:
        """Return the fleet as last read.

        Waits only while nothing was ever read, and only in the first ``wait_s`` seconds; never for a refresh.
        """
        if self._background:
            self.start()
            if not self._ready.is_set():
                self._ready.wait(max(0.0, self._wait_until_s - time.monotonic()))
        age_s = self.age_s
        hosts = len(self._arrays.hosts) if self._ready.is_set() else None
        state = self._freshness.state(age_s, hosts, self._stats.last_error or "none")
        return FleetSnapshot(self._arrays, age_s, state, self._version)

    @property
    def as_of_s(self) -> float:
        """When the reading began that the view comes from, by the clock; minus infinity when nothing was ever read."""
        return self._as_of

    @property
    def age_s(self) -> float:
        """Seconds since the reading that the view comes from began; infinite when nothing was ever read."""
        return self._clock() - self._as_of

    @property
    def stats(self) -> ViewStats:
        """What keeping the view has cost."""
        counters = self._client.counters
        return replace(self._stats, requests=counters.requests, bytes_read=counters.bytes_read)

    # Keeping it -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading in the background; does nothing when that runs already."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._stopping.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            self._wait_until_s = time.monotonic() + self._settings.wait_s
            self._thread = threading.Thread(target=self._run, name="numa-ext-view", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the background reading."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self.try_refresh()):
            pass

    def try_refresh(self) -> float:
        """Refresh, whatever comes of it; returns the seconds to wait until the next time."""
        try:
            self.refresh()
        except NumaExtError:
            pass  # noted in the statistics; the log line comes with the change of state
        except Exception:  # the outermost guard of a loop that reads again and again
            LOG.exception("Reading the fleet failed in a way that was not foreseen.")
        return pause_s(self._settings, self._stats.last_duration_s)

    def refresh(self, *, complete: bool = False, again: Collection[str] = ()) -> None:
        """Compare generations and read what changed; read everything where that is due or cheaper.

        :param complete: everything is due
        :param again: root providers of hosts that are read whatever their generations are
        :raises ServiceUnavailableError: Placement does not answer; the view stays as it was and ages
        :raises PlacementError: Placement refuses what we ask
        """
        with self._lock:
            began = self._clock()
            try:
                full = complete or began - self._full_at >= self._settings.full_interval_s
                changed = self._read_changes(again) if not full else None
                if changed is None:
                    self._read_all()
            except Exception as error:
                sentence = str(error) if isinstance(error, NumaExtError) else repr(error)
                self._stats = replace(
                    self._stats, failures=self._stats.failures + 1, last_error=sentence
                )
                if isinstance(error, PlacementError) and error.status == HTTPStatus.BAD_REQUEST:
                    # A trait that was there has been deleted, with all that we had in Placement.
                    self._traits, self._full_at = frozenset(), -inf
                raise
            self._as_of = began
            self._full_at = began if changed is None else self._full_at
            self._stats = replace(
                self._stats,
                refreshes=self._stats.refreshes + 1,
                full_reads=self._stats.full_reads + (changed is None),
                trees_read=self._stats.trees_read + (changed or 0),
                last_duration_s=self._clock() - began,
                last_error="",
            )
            self._ready.set()

    def _read_all(self) -> None:
        """Read the whole fleet."""
        # A trait that exists is not deleted while providers hold it; when all have gone a query fails, see refresh().
        if not self._traits.issuperset(_ASKED_FOR):
            self._traits = self._existing(*_ASKED_FOR)
        # The list of generations first: what changes while the rest is read differs next time.
        fingerprints = self._list_fingerprints()
        read: dict[str, HostView | None] = dict.fromkeys(self._arrays.rows)
        if fingerprints:
            living = beats.living(self._client) if names.BEAT in self._traits else None
            named = [trait for trait in (names.HOST, names.GPU) if trait in self._traits]
            names_of: dict[str, dict[str, str]] = {}
            for provider in self._list(f"required=in:{','.join((*named, *DEVICES))}"):
                tree = names_of.setdefault(provider["root_provider_uuid"], {})
                tree[provider["uuid"]] = provider["name"]
            hosts = {
                root: names_of[root][root] for root in fingerprints if _is_named(root, names_of)
            }
            trees = self._read_trees(hosts)
            for root in fingerprints:
                facts = trees.get(root)
                read[root] = (
                    self._read_tree_slowly(root)
                    if facts is None
                    else host_view(root, facts, names_of.get(root, {}))
                )
                if (host := read[root]) is not None:
                    read[root] = _marked(host, beats.is_silent(host.name, living))
        self._replace(read, fingerprints)

    def _read_trees(self, hosts: Mapping[str, str]) -> dict[str, dict[str, ProviderFacts]]:
        """Read the trees of all hosts with a probe, in as few queries as Placement's limit allows.

        Where hosts are missing in the answers, either a limit is new or lower than thought, or their agents publish no
        probe yet: they are asked for once more, by no more than the shortest answer showed.

        :param hosts: names by root
        """
        shard = {
            root: shard
            for root, name in hosts.items()
            if root not in self._without_probe
            and self._traits.issuperset((shard := shards.shard_of(name)).traits)
        }
        trees: dict[str, dict[str, ProviderFacts]] = {}
        shortest = self._read_parts(shard, self._limit, trees)
        if shard.keys() - trees.keys() and shortest > 0:
            before = len(trees)
            self._read_parts(shard, shortest, trees)
            if len(trees) > before:
                self._limit = shortest
        self._without_probe |= shard.keys() - trees.keys()
        return trees

    def _read_parts(
        self,
        shard: Mapping[str, Shard],
        limit: int | None,
        trees: dict[str, dict[str, ProviderFacts]],
    ) -> int:
        """Ask for the hosts that are missing; returns how many hosts the shortest incomplete answer showed.

        :param shard: of each host
        :param limit: most hosts of one query; None: all at once
        :param trees: what was read by root; is added to
        """
        shortest = 0
        parts = [None] if limit is None else shards.parts(shard.values(), limit)
        for part in parts:
            asked = {root for root, its in shard.items() if part is None or its in part}
            if asked <= trees.keys():
                continue
            found = self._summaries(part.query if part is not None else "")
            trees.update(found)
            if not asked <= found.keys():
                shortest = min(shortest or len(found), len(found))
        return shortest

    def _read_changes(self, again: Collection[str]) -> int | None:
        """Read the hosts whose generations differ; returns how many, None when one complete reading is cheaper.

        :param again: as of :meth:`refresh`
        """
        if names.OWNER not in self._traits:
            return None  # no agent had published anything: its first one may have since
        settings = self._settings
        fingerprints = self._list_fingerprints()
        changed = [
            root
            for root, print_ in fingerprints.items()
            if self._fingerprints.get(root) != print_ or root in again
        ]
        if len(changed) > max(settings.full_least, settings.full_share * len(fingerprints)):
            return None
        if not changed and fingerprints.keys() == self._fingerprints.keys():
            return 0
        gone = [root for root in self._arrays.rows if root not in fingerprints]
        known = self._arrays.views
        read = {root: self._read_again(root, known.get(root)) for root in changed}
        self._replace(dict.fromkeys(gone) | read, fingerprints)
        return len(changed)

    def _replace(self, read: Mapping[str, HostView | None], fingerprints: dict[str, int]) -> None:
        """Show the hosts that were read, without those that are None; what is as before counts as unchanged."""
        known = self._arrays.views
        changed = {root: host for root, host in read.items() if known.get(root) != host}
        if changed:
            self._arrays = self._arrays.with_changes(changed, self._version + 1)
            self._version += 1
        self._fingerprints = fingerprints

    # Requests -------------------------------------------------------------------------------------------------------

    def _existing(self, *traits: str) -> frozenset[str]:
        """Return those traits that exist at all: Placement refuses queries with one that does not."""
        return frozenset(self._client.get(f"/traits?name=in:{','.join(traits)}")["traits"])

    def _list(self, query: str) -> Any:
        return self._client.get(f"/resource_providers?{query}")["resource_providers"]

    def _list_fingerprints(self) -> dict[str, int]:
        """Return one number by root that changes with any generation below it."""
        if names.OWNER not in self._traits:
            return {}
        without_gpus = f",!{names.GPU}" if names.GPU in self._traits else ""
        prints: dict[str, int] = {}
        for provider in self._list(f"required={names.OWNER}{without_gpus}"):
            root = provider["root_provider_uuid"]
            prints[root] = prints.get(root, 0) ^ _mark(provider)
        if self._root_amounts is not None and names.HOST in self._traits:
            for provider in self._list(f"required={names.HOST}"):
                if provider["uuid"] in prints:
                    prints[provider["uuid"]] ^= _mark(provider)
        return prints

    def _summaries(self, query: str) -> dict[str, dict[str, ProviderFacts]]:
        """Return what the provider summaries of a query for the probe hold: facts by provider, by root.

        :param query: further parameters, each with its ``&``
        """
        body = self._client.get(f"/allocation_candidates?resources={names.PROBE}:1{query}")
        trees: dict[str, dict[str, ProviderFacts]] = {}
        for uuid, summary in body["provider_summaries"].items():
            traits = relevant(summary["traits"])
            amounts = {
                name: bounded(resource["capacity"], resource["used"])
                for name, resource in summary["resources"].items()
                if traits and (name in names.RESOURCE_CLASSES or names.HOST not in traits)
            }
            facts = ProviderFacts(traits, amounts)
            root = summary["root_provider_uuid"]
            trees.setdefault(root, {})[uuid] = facts
            if self._root_amounts is not None and uuid == root:
                self._root_amounts[root] = {
                    name: bounded(resource["capacity"], resource["used"])
                    for name, resource in summary["resources"].items()
                }
        return trees

    def _read_tree(self, root: str, before: HostView | None) -> HostView | None:
        """Read one host."""
        probed = not self._traits.isdisjoint(shards.all_traits())
        facts = self._summaries(f"&in_tree={root}").get(root) if probed else None
        if facts is None:
            return self._read_tree_slowly(root)
        self._without_probe.discard(root)
        known = {} if before is None else known_names(before)
        if any(fact.named and uuid not in known for uuid, fact in facts.items()):
            known = self._names(root)
        return host_view(root, facts, known)

    def _read_again(self, root: str, before: HostView | None) -> HostView | None:
        """Read one host; whether its agent is silent shows at the next complete reading."""
        host = self._read_tree(root, before)
        return host and _marked(host, before is not None and before.silent)

    def _names(self, root: str) -> dict[str, str]:
        return {provider["uuid"]: provider["name"] for provider in self._list(f"in_tree={root}")}

    def _read_tree_slowly(self, root: str) -> HostView | None:
        """Read one host provider by provider: its agent publishes no probe."""
        names_of = self._names(root)
        if root not in names_of:
            return None
        facts = {}
        for uuid, name in names_of.items():
            try:
                facts[uuid] = self._read_provider(uuid)
                if self._root_amounts is not None and uuid == root:
                    self._root_amounts[root] = self._amounts(root)
            except NotFoundError:
                LOG.debug("Provider %s went away while it was read.", name)
        return host_view(root, facts, names_of)

    def _read_provider(self, uuid: str) -> ProviderFacts:
        path = f"/resource_providers/{uuid}"
        traits = relevant(self._client.get(f"{path}/traits")["traits"])
        if not traits or names.HOST in traits:
            return ProviderFacts(traits, {})
        return ProviderFacts(traits, self._amounts(uuid))

    def _amounts(self, uuid: str) -> dict[str, Amount]:
        path = f"/resource_providers/{uuid}"
        inventories = self._client.get(f"{path}/inventories")["inventories"]
        used = self._client.get(f"{path}/usages")["usages"]
        return {
            name: bounded(
                int((body["total"] - body["reserved"]) * body["allocation_ratio"]),
                used.get(name, 0),
            )
            for name, body in inventories.items()
        }


def _mark(provider: Mapping[str, Any]) -> int:
    return hash((provider["uuid"], provider["generation"]))


def _marked(host: HostView, silent: bool) -> HostView:
    """Mark a host whose agent is silent; where its tiers were withdrawn they are what shows it."""
    if not silent or host.traits.isdisjoint(TierTrait):
        return host
    return replace(host, traits=host.traits | {names.SILENT})


def _is_named(root: str, names_of: Mapping[str, Mapping[str, str]]) -> bool:
    return root in names_of.get(root, ())


def pause_s(settings: ViewSettings, duration_s: float) -> float:
    """Return the seconds to wait after a refresh that took ``duration_s``.

    Long enough that Placement is not kept busy by us, but not so long that the view becomes stale before the next
    refresh ends: its age counts from the beginning of a refresh, so it is oldest at the end of the next one.
    """
    polite_s = duration_s * (1 / settings.busy_share - 1)
    in_time_s = settings.max_age_s * _SAFE_SHARE_OF_AGE - 2 * duration_s
    return max(settings.interval_s, min(polite_s, in_time_s))
