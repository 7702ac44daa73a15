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

Which requests these are is in :mod:`placement_traits.fleet_reader`.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from math import inf
from typing import Final

from placement_traits.client import HttpAdapter, PlacementClient, PlacementError, RetrySettings
from placement_traits.errors import NumaExtError
from placement_traits.fleet import Amount, HostView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.fleet_reader import FleetReader
from placement_traits.snapshot import FleetSnapshot, ViewState

LOG = logging.getLogger(__name__)

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
        # A failed refresh is tried again at the next interval anyway.
        self._client = PlacementClient(adapter, RetrySettings(attempts=2))
        self._reader = FleetReader(self._client, root_amounts)
        self._clock = clock
        self._background = background
        self._arrays = before.arrays if before is not None else FleetArrays.of(())
        self._fingerprints: dict[str, int] = {}
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
                    self._reader.forget()
                    self._full_at = -inf
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
        self._reader.learn()
        # The list of generations first: what changes while the rest is read differs next time.
        fingerprints = self._reader.fingerprints()
        read: dict[str, HostView | None] = dict.fromkeys(self._arrays.rows)
        self._replace(read | self._reader.hosts(fingerprints), fingerprints)

    def _read_changes(self, again: Collection[str]) -> int | None:
        """Read the hosts whose generations differ; returns how many, None when one complete reading is cheaper.

        :param again: as of :meth:`refresh`
        """
        if not self._reader.finds_any:
            return None  # no agent had published anything: its first one may have since
        settings = self._settings
        fingerprints = self._reader.fingerprints()
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
        read = {root: self._reader.again(root, known.get(root)) for root in changed}
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


def pause_s(settings: ViewSettings, duration_s: float) -> float:
    """Return the seconds to wait after a refresh that took ``duration_s``.

    Long enough that Placement is not kept busy by us, but not so long that the view becomes stale before the next
    refresh ends: its age counts from the beginning of a refresh, so it is oldest at the end of the next one.
    """
    polite_s = duration_s * (1 / settings.busy_share - 1)
    in_time_s = settings.max_age_s * _SAFE_SHARE_OF_AGE - 2 * duration_s
    return max(settings.interval_s, min(polite_s, in_time_s))
