# SPDX-License-Identifier: Apache-2.0
"""How far the agent is switched on here: the modes in effect, for all threads, and which servers it has taken over."""

from collections.abc import Callable, Iterator
from pathlib import Path

from host_agent.conf.options import Options
from host_agent.control import rollout_store
from host_agent.control.takeover import Takeover
from host_agent.decide.modes import in_effect
from host_agent.model.assignment import Decision, Observation
from host_agent.model.modes import Feature, Modes
from host_agent.model.round import Round
from host_agent.report.metrics import Sample
from nova_numa_ext.policy.modes import Mode
from placement_traits.best_effort import BestEffortWriter, ignore_loss


class Rollout:
    """The modes in effect; any thread may ask. A :class:`~host_agent.control.agent.Listener`.

    Until the mode in Placement has been read once the host observes: where an operator has let it observe, nothing is
    done first and taken back then. What was read is kept, so that this is the agent's first start on a host alone.

    :param options: the operator's
    :param follows_placement: the host has a mode in Placement
    :param file: state file; None keeps nothing
    :param wake: starts a round of the agent now
    :param lost: called with "rollout state" for each write that failed
    :param dry_run: whatever they say, nothing is carried out
    :param takeover: how servers that run are taken over; None: all at once
    """

    def __init__(
        self,
        options: Options,
        *,
        takeover: Takeover | None = None,
        follows_placement: bool = False,
        file: Path | None = None,
        wake: Callable[[], None] = lambda: None,
        lost: Callable[[str], None] = ignore_loss,
        dry_run: bool = False,
    ) -> None:
        self._options = options
        self._store = rollout_store.store(file) if file else None
        self._writer = BestEffortWriter("rollout state", lost)
        self._wake = wake
        self._dry_run = dry_run
        self._takeover = takeover
        self._kept = self._store.load() if self._store else None
        self._placement_mode: Mode | None = Mode.ENFORCE
        if follows_placement:
            self._placement_mode = self._kept.placement_mode if self._kept else None
        self._modes = self._in_effect()

    @property
    def modes(self) -> Modes:
        """The modes in effect now."""
        return self._modes

    @property
    def mode_known(self) -> bool:
        """The mode in Placement has been read, now or by an agent before."""
        return self._placement_mode is not None

    def acts(self, feature: Feature) -> bool:
        """Tell whether what a feature decides is carried out now."""
        return self._modes.act(feature)

    def follow(self, mode: Mode) -> None:
        """Obey the mode in Placement, from the next round on, which begins now where anything changes."""
        if mode is self._placement_mode:
            return
        self._placement_mode = mode
        self._modes = self._in_effect()
        self._wake()

    def left_out(
        self, decision: Decision, observation: Observation, modes: Modes
    ) -> frozenset[str]:
        """Return the servers that wait to be taken over: they stay as they are.

        :param modes: of this round
        """
        if self._takeover is None:
            return frozenset()
        if self._dry_run:  # the order is that of a live agent
            modes = in_effect(self._options, Mode.ENFORCE)
        return self._takeover.left_out(decision, observation, modes, plan_only=self._dry_run)

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        yield "numa_ext_servers_waiting", (), len(self._takeover.waiting) if self._takeover else 0

    def on_round(self, done: Round) -> None:
        """Keep what is in effect."""
        store = self._store
        waiting: tuple[str, ...] = ()
        if self._takeover is not None:
            self._takeover.on_round(done)
            waiting = self._takeover.waiting
        now = rollout_store.RolloutState(self._placement_mode, done.modes.of, waiting)
        if (
            store is not None
            and now != self._kept
            and self._writer.attempt(lambda: store.save(now))
        ):
            self._kept = now

    def _in_effect(self) -> Modes:
        if self._dry_run:
            return Modes.all(Mode.OBSERVE)
        return in_effect(self._options, self._placement_mode or Mode.OBSERVE)
