# SPDX-License-Identifier: Apache-2.0
"""Publish in Placement what this host has and who lives where; the loop never waits for it.

:class:`Publisher` takes each round, works out the provider tree (:mod:`.published`), and a thread of its own
makes Placement equal to it: at once when the tree changes, now and then otherwise (a deleted compute service takes
our providers with it), and with growing pauses while Placement does not answer. What was missed meanwhile is nothing
but the newest tree, so catching up is one pass.

Before it writes, the thread reads what servers have claimed of the L3 domains: what one uses in another domain than it
is counted in is reserved there. The agent changes no allocation; ``numa-ext-heal`` does.
"""

import functools
import logging
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from host_agent.conf.options import Options
from host_agent.decide.amounts.claims import ServerClaim, claimed_elsewhere, claims
from host_agent.model.modes import Modes
from host_agent.model.round import Round
from host_agent.report.beat import Beat
from host_agent.report.cabling import CableCheck
from host_agent.report.claimed import Claimed
from host_agent.report.metrics import Metrics
from host_agent.report.published import declarations, in_use, pins, published_tree
from host_agent.report.reserved_bandwidth import BandwidthReservation
from nova_numa_ext.policy.modes import Mode
from placement_traits import host_modes, names
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.tree import ProviderTree, with_reserved

LOG = logging.getLogger(__name__)


class TreeWriter(Protocol):
    """What makes Placement equal to a tree: :class:`placement_traits.reporter.Reporter`."""

    def sync(self, tree: ProviderTree) -> Any:
        """Make Placement equal; return a report with ``changes``, ``problems`` and ``root_traits``."""

    def root_traits(self, host: str) -> frozenset[str]:
        """Return all traits of nova's root."""


class ModeFollower(Protocol):
    """Who obeys the mode in Placement: :class:`host_agent.control.rollout.Rollout`."""

    @property
    def mode_known(self) -> bool:
        """It has been read, now or by an agent before."""

    @property
    def modes(self) -> Modes:
        """The modes that follow from it."""

    def follow(self, mode: Mode) -> None:
        """Obey it; any thread may call."""


@dataclass(frozen=True, slots=True)
class PublishedFacts:
    """What is published beside what a round shows.

    :param foreign_groups: counts resctrl groups of other software
    :param unsatisfiable: returns the servers whose objectives cannot be kept here
    :param reservation: how much bandwidth is held back; None holds nothing back
    :param cables: compares the host's cables with its leaf; None: nothing does
    """

    foreign_groups: Callable[[], int] = int
    unsatisfiable: Callable[[], Container[str]] = frozenset
    reservation: BandwidthReservation | None = None
    cables: CableCheck | None = None


class ClaimSource(Protocol):
    """What servers have claimed of L3 domains: :class:`host_agent.report.claimed.ClaimReader`."""

    def read(self) -> Claimed:
        """Return the claims."""


class PlacementSide(Protocol):
    """Placement, as one host asks it. What fails is asked again until it succeeds, and kept then.

    The writer and all that is made for a root are made in the publisher's thread, so that slow imports and Keystone do
    not delay the loop.
    """

    def root(self) -> str:
        """Return the name of nova's root provider; asked at the first round, when libvirt is known to answer."""

    def writer(self) -> TreeWriter:
        """Return what makes Placement equal to a tree."""

    def claims(self, root: str) -> ClaimSource | None:
        """Return what reads claims; None: nothing is reserved for servers that are counted elsewhere."""

    def beat(self, root: str) -> Beat | None:
        """Return what beats; None: nothing does."""


@dataclass(frozen=True, slots=True)
class _Desired:
    """What Placement should hold.

    :param tree: the provider tree
    :param claims: what servers use, where they run
    """

    tree: ProviderTree
    claims: tuple[ServerClaim, ...]


_NO_FACTS: Final = PublishedFacts()


class Publisher:
    """Takes rounds, writes Placement from a thread of its own; a :class:`~host_agent.control.agent.Listener`.

    :param options: the operator's
    :param side: of Placement
    :param metrics: show whether Placement is up to date
    :param facts: published beside what a round shows
    :param follower: gets the mode in Placement at each pass; before it was read once nothing is published, because
        it would be what an agent publishes that observes
    """

    def __init__(
        self,
        options: Options,
        side: PlacementSide,
        metrics: Metrics,
        facts: PublishedFacts = _NO_FACTS,
        *,
        follower: ModeFollower | None = None,
    ) -> None:
        self._follower = follower
        self._options = options
        self._root = functools.cache(side.root)
        self._side = side
        self._metrics = metrics
        self._facts = facts
        self._claim_source = functools.cache(side.claims)
        self._beat = functools.cache(side.beat)
        self._writer: TreeWriter | None = None
        self._changed = threading.Condition()
        self._desired: _Desired | None = None
        self._written: _Desired | None = None
        self._finished_round = False  # since the last pass
        self._failed = False  # the last pass did; new trees wait for its pause
        self._stopped = False
        self._problems: tuple[str, ...] = ()

    def on_round(self, done: Round) -> None:
        """Take note of a round; a paused one shows that the agent is there, and nothing new."""
        follower = self._follower
        if follower is not None and not (follower.mode_known and done.modes == follower.modes):
            return  # it began before the mode was changed; the next one comes at once
        if done.paused:
            with self._changed:
                self._take_round()
            return
        placed = claims(done.observation)
        declared = declarations(done, placed, pinned=pins(done, self._options))
        reserved: Mapping[int, int] | None = None
        reservation = self._facts.reservation
        if reservation is not None:
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
        desired = _Desired(tree, in_use(done, declared))
        with self._changed:
            self._take_round()
            if desired != self._desired:
                self._desired = desired
                self._metrics.placement_synced = desired == self._written
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
        return self.look() and self._desired is not None and self._pass(self._desired)

    def look(self) -> bool:
        """Read the mode in Placement where it was never read before; tell whether it is known."""
        follower = self._follower
        if follower is None or follower.mode_known:
            return True
        try:
            if self._writer is None:
                self._writer = self._side.writer()
            traits = self._writer.root_traits(self._root())
        except NumaExtError as error:
            self._log((f"Until the mode in Placement is known this host observes. {error}",))
            return False
        except Exception:  # the outermost guard of this thread: logged, and it goes on
            LOG.exception("reading the mode in Placement failed")
            return False
        follower.follow(_mode(traits))
        return True

    def stop(self) -> None:
        """End the thread after its present pass."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        pause: float | None = None
        while not self.look():
            pause = self._longer(pause)
            with self._changed:
                if self._changed.wait_for(lambda: self._stopped, pause):
                    return
        while True:
            desired = self._next(pause)
            if desired is None:
                return
            interval = self._options.placement.interval_s
            pause = interval if self._pass(desired) else self._longer(pause)

    def _longer(self, pause: float | None) -> float:
        placement = self._options.placement
        if pause is None or pause == placement.interval_s:
            return min(1.0, placement.backoff_max_s)
        return min(pause * 2, placement.backoff_max_s)

    def _next(self, pause: float | None) -> _Desired | None:
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

    def _pass(self, desired: _Desired) -> bool:
        """Write once; tell whether Placement is up to date."""
        try:
            if self._writer is None:
                self._writer = self._side.writer()
            elsewhere, problems = self._elsewhere(desired.claims)
            report = self._writer.sync(with_reserved(desired.tree, elsewhere))
            if self._follower is not None:
                self._follower.follow(_mode(report.root_traits))
            problems = (*problems, *report.problems, *self._beat_now())
            if self._facts.cables is not None:
                cables = self._facts.cables.turn(self._root(), report.root_traits)
                problems = (*problems, *cables)
        except NumaExtError as error:
            self._log((str(error),))
            return self._synced(None)
        except Exception:  # the outermost guard of this thread: logged, and it goes on
            LOG.exception("publishing in Placement failed")
            return self._synced(None)
        for change in report.changes:
            LOG.info("Placement: %s %s %s", change.provider, change.what, change.detail)
        self._log(problems)
        return self._synced(desired)

    def _elsewhere(
        self, claims: tuple[ServerClaim, ...]
    ) -> tuple[Mapping[str, Mapping[str, int]], tuple[str, ...]]:
        """Return what servers use by provider while it is counted elsewhere, and why that is not known.

        :raises ServiceUnavailableError: Placement does not answer
        """
        if not claims:
            return {}, ()
        root = self._root()
        try:
            source = self._claim_source(root)
            found = claimed_elsewhere(claims, source.read()) if source else {}
        except ServiceUnavailableError:
            raise
        except NumaExtError as error:
            return {}, (f"Nothing is reserved for servers that are counted elsewhere. {error}",)
        return {names.l3_provider(root, l3): amounts for l3, amounts in found.items()}, ()

    def _beat_now(self) -> tuple[str, ...]:
        """Beat if it is time; that it cannot be done is a problem to log, as above."""
        root = self._root()
        try:
            beat = self._beat(root)
            if beat is not None:
                beat.turn()
        except NumaExtError as error:
            return (f"The beat of this host is not written. {error}",)
        return ()

    def _synced(self, written: _Desired | None) -> bool:
        with self._changed:
            self._written = written
            self._failed = written is None
            self._finished_round |= self._failed  # the same rounds may be attempted again
            self._metrics.placement_synced = written is not None and written == self._desired
        return written is not None

    def _log(self, problems: tuple[str, ...]) -> None:
        """Log problems once, and again only when they change."""
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                LOG.warning("%s", problem)
            if not problems:
                LOG.info("Placement is up to date again")


def _mode(root_traits: frozenset[str]) -> Mode:
    return Mode.OBSERVE if host_modes.observes_only(root_traits) else Mode.ENFORCE
