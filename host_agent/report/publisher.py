# SPDX-License-Identifier: Apache-2.0
"""Publish in Placement what this host has and who lives where; the loop never waits for it.

:class:`Publisher` takes each round, works out the provider tree (:mod:`.published`), and a thread of its own
makes Placement equal to it: at once when the tree changes, now and then otherwise (a deleted compute service takes
our providers with it), and with growing pauses while Placement does not answer. What was missed meanwhile is nothing
but the newest tree, so catching up is one pass.
"""

import functools
import logging
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from host_agent.conf.options import Options
from host_agent.decide.amounts.claims import Claim, claims
from host_agent.model.round import Round
from host_agent.report.beat import Beat
from host_agent.report.metrics import Metrics
from host_agent.report.published import declarations, movable, pins, published_tree
from host_agent.report.rehome import Rehomer, Settled
from host_agent.report.reserved_bandwidth import BandwidthReservation
from placement_traits.errors import NumaExtError
from placement_traits.tree import ProviderTree

LOG = logging.getLogger(__name__)


class TreeWriter(Protocol):
    """What makes Placement equal to a tree: :class:`placement_traits.reporter.Reporter`."""

    def sync(self, tree: ProviderTree) -> Any:
        """Make Placement equal; return a report with ``changes`` and ``problems``."""


@dataclass(frozen=True, slots=True)
class PublishedFacts:
    """What is published beside what a round shows.

    :param foreign_groups: counts resctrl groups of other software
    :param unsatisfiable: returns the servers whose objectives cannot be kept here
    :param reservation: how much bandwidth is held back; None holds nothing back
    """

    foreign_groups: Callable[[], int] = int
    unsatisfiable: Callable[[], Container[str]] = frozenset
    reservation: BandwidthReservation | None = None


@dataclass(frozen=True, slots=True)
class Rehoming:
    """How allocations follow the servers.

    :param settled: picks servers that have been where they are for some time
    :param make: makes what moves their allocations there, for a root's name, in the publisher's thread; called again
        until it succeeds
    """

    settled: Settled
    make: Callable[[str], Rehomer]


_NO_FACTS: Final = PublishedFacts()


class Publisher:
    """Takes rounds, writes Placement from a thread of its own; a :class:`~host_agent.control.agent.Listener`.

    :param options: the operator's
    :param make_root: name of nova's root provider; called at the first round, when libvirt is known to answer
    :param make_writer: called in the thread, so that slow imports and Keystone do not delay the loop; called again
        until it succeeds
    :param metrics: show whether Placement is up to date
    :param facts: published beside what a round shows
    :param rehoming: moves allocations; None moves none
    :param make_beat: makes what beats, for a root's name, in the thread; called again until it succeeds; None: none
    """

    def __init__(
        self,
        options: Options,
        make_root: Callable[[], str],
        make_writer: Callable[[], TreeWriter],
        metrics: Metrics,
        facts: PublishedFacts = _NO_FACTS,
        *,
        rehoming: Rehoming | None = None,
        make_beat: Callable[[str], Beat] | None = None,
    ) -> None:
        self._options = options
        self._root = functools.cache(make_root)
        self._make_writer = make_writer
        self._metrics = metrics
        self._facts = facts
        self._settled = rehoming.settled if rehoming else None
        self._rehomer = functools.cache(rehoming.make) if rehoming else None
        self._beat = functools.cache(make_beat) if make_beat else None
        self._claims: tuple[Claim, ...] = ()
        self._writer: TreeWriter | None = None
        self._changed = threading.Condition()
        self._desired: ProviderTree | None = None
        self._written: ProviderTree | None = None
        self._finished_round = False  # since the last pass
        self._failed = False  # the last pass did; new trees wait for its pause
        self._stopped = False
        self._problems: tuple[str, ...] = ()

    def on_round(self, done: Round) -> None:
        """Take note of a round; without present knowledge of who runs where no allocation is moved."""
        if done.paused:
            with self._changed:
                self._claims = self._settled.of(()) if self._settled else ()
                self._take_round()
            return
        placed = claims(done.observation)
        reserved: Mapping[int, int] | None = None
        reservation = self._facts.reservation
        if reservation is not None:
            declared = declarations(done, placed, pinned=pins(done, self._options))
            reserved = reservation.reserved_mbps(done.observation.topology, declared)
        facts = self._facts
        tree = published_tree(
            done,
            self._root(),
            self._options,
            facts.foreign_groups(),
            reserved,
            unsatisfiable=facts.unsatisfiable(),
        )
        with self._changed:
            present = movable(done, placed) if done.listed else ()
            self._claims = self._settled.of(present) if self._settled else ()
            self._take_round()
            if tree != self._desired:
                self._desired = tree
                self._metrics.placement_synced = tree == self._written
                self._changed.notify()

    def _take_round(self) -> None:
        if not self._finished_round:
            self._finished_round = True
            self._changed.notify()

    def start(self) -> threading.Thread:
        """Start the thread."""
        thread = threading.Thread(target=self._run, name="placement", daemon=True)
        thread.start()
        return thread

    def publish_once(self) -> bool:
        """Write what came last, in the caller's thread; tell whether Placement is up to date."""
        return self._desired is not None and self._pass(self._desired)

    def stop(self) -> None:
        """End the thread after its present pass."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        pause: float | None = None
        while True:
            tree = self._next(pause)
            if tree is None:
                return
            interval = self._options.placement.interval_s
            pause = interval if self._pass(tree) else self._longer(pause)

    def _longer(self, pause: float | None) -> float:
        placement = self._options.placement
        if pause is None or pause == placement.interval_s:
            return min(1.0, placement.backoff_max_s)
        return min(pause * 2, placement.backoff_max_s)

    def _next(self, pause: float | None) -> ProviderTree | None:
        """Wait for a new tree or the end of the pause; None at the end."""
        with self._changed:
            # While Placement is down a new tree is no reason to hurry; when it is up it is.
            ready = (lambda: self._stopped) if self._failed else self._is_new
            self._changed.wait_for(ready, pause)
            while not (self._stopped or (self._desired is not None and self._finished_round)):
                self._changed.wait()
            self._finished_round = False
            return None if self._stopped else self._desired

    def _is_new(self) -> bool:
        return self._stopped or (self._desired is not None and self._desired != self._written)

    def _pass(self, tree: ProviderTree) -> bool:
        """Write once; tell whether Placement is up to date."""
        try:
            if self._writer is None:
                self._writer = self._make_writer()
            report = self._writer.sync(tree)
            problems = (*report.problems, *self._rehome(), *self._beat_now())
        except NumaExtError as error:
            self._log((str(error),))
            return self._synced(None)
        except Exception:  # the outermost guard of this thread: logged, and it goes on
            LOG.exception("publishing in Placement failed")
            return self._synced(None)
        for change in report.changes:
            LOG.info("Placement: %s %s %s", change.provider, change.what, change.detail)
        self._log(problems)
        return self._synced(tree)

    def _rehome(self) -> tuple[str, ...]:
        """Move allocations; that it cannot be done is a problem to log, not a tree that is not written."""
        if self._rehomer is None:
            return ()
        try:
            return self._rehomer(self._root()).turn(self._claims)
        except NumaExtError as error:
            return (f"Allocations are not re-homed. {error}",)

    def _beat_now(self) -> tuple[str, ...]:
        """Beat if it is time; that it cannot be done is a problem to log, as above."""
        if self._beat is None:
            return ()
        try:
            self._beat(self._root()).turn()
        except NumaExtError as error:
            return (f"The beat of this host is not written. {error}",)
        return ()

    def _synced(self, tree: ProviderTree | None) -> bool:
        with self._changed:
            self._written = tree
            self._failed = tree is None
            self._finished_round |= self._failed  # the same rounds may be attempted again
            self._metrics.placement_synced = tree is not None and tree == self._desired
        return tree is not None

    def _log(self, problems: tuple[str, ...]) -> None:
        """Log problems once, and again only when they change."""
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                LOG.warning("%s", problem)
            if not problems:
                LOG.info("Placement is up to date again")
