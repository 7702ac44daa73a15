# SPDX-License-Identifier: Apache-2.0
"""BWAP's online search for the data-to-worker proximity factor (DWP), as a pure state machine.

::

    WAITING ──MAPI high and steady──► PLACING ──pages are where they should be──► MEASURING
       ▲                                 ▲  (none come for stuck_s: FOUND)            │ n samples, c lowest and
       │                                 └──────── stall rate fell: one step ─────────┤ c highest dropped
       └──── MAPI or stall rate changed: new phase ──── FOUND ◄── it rose: undo ──────┘

The memory accesses per instruction (MAPI) tell whether a guest is memory-intensive and when it has entered a stable
phase; until then its pages are left where they are, and so they are while as many other searches run on the host as
may. A guest that is not memory-intensive gets its pages onto its workers, where they are near (DWP 1). For the others
the search climbs from DWP 0 (canonical weights) towards the workers, a constant fraction x of all pages per step, as
long as the stall rate falls. On a machine without counters the canonical weights are all there is.

The source stops at the first step that does not fall; with a noisy measurement that is often the first step. Here a
step *within the noise of the measurement* neither counts as better nor stops the search, up to ``plateau_steps`` in a
row; the search ends on the best step that was better beyond noise. Without noise and plateaus both rules give the same
result.

Beside a high-priority neighbour the search has two stages: first its stall rate guides and gives a lower bound for DWP,
then the guest's own stall rate goes on from there and never below.

Source: Gureya 2021, section 4.3 (n = 20, c = 5, t = 0.2 s, x = 10 %).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from host_agent.conf.bwap import BwapOptions
from host_agent.decide.pages.weights import dwp_step, dwp_weights
from host_agent.model.pages import Shares
from host_agent.model.terms import Term
from placement_traits.errors import InvalidValueError
from placement_traits.reason import Reason

_PROGRESS: Final = 0.005  # part of the pages; fewer may come and go without having been moved


class BwapPhase(StrEnum):
    """Where the search stands."""

    WAITING = "waiting"
    PLACING = "placing"
    MEASURING = "measuring"
    FOUND = "found"


class BwapGuide(StrEnum):
    """Whose stall rate is minimised: the high-priority neighbour's (stage 1) or the guest's own (stage 2)."""

    NEIGHBOUR = "neighbour"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class SearchSample:
    """One sample.

    :param now_s: monotonic time, seconds
    :param placed: the pages are where :attr:`BwapSearch.desired` has them, within the mover's dead band
    :param stall_rate: the guest's stalled cycles per second since the last sample; None when not measured
    :param mapi: the guest's memory accesses per instruction; None when not measured
    :param neighbour_stall_rate: worst stall rate of the high-priority neighbours; None when not measured or none there
    :param left: part of the pages that is not yet where it should be
    :param may_begin: it is this guest's turn, if it has to wait for one
    """

    now_s: float
    placed: bool
    stall_rate: float | None
    mapi: float | None
    neighbour_stall_rate: float | None = None
    left: float = 0.0
    may_begin: bool = True


@dataclass(frozen=True, slots=True)
class StallMeasurement:
    """A filtered stall rate and its standard error at one DWP."""

    dwp: float
    stall_rate: float
    error: float


@dataclass(frozen=True, slots=True)
class BwapSearch:
    """The search for one guest.

    :param canonical: shares at DWP 0
    :param workers: nodes of the guest's vCPUs
    :param co_scheduled: a high-priority neighbour guides the first stage
    :param started: the guest has been in a stable phase; before, nothing is desired
    :param dwp: the DWP that is desired now
    :param lower_bound: DWP found by the first stage
    :param best: best measurement of this search so far
    :param plateau: steps within noise since ``best``
    :param samples: stall rates of the running measurement
    :param mapi: last samples of MAPI
    :param phase_mapi: MAPI of the phase for which the search runs
    :param sampled_s: time of the last accepted sample
    :param blind: missing samples in a row
    :param left: least part of the pages that was left to be moved in this step
    :param waited: samples since then
    :param queued_s: since when it waits for its turn, monotonic time, seconds; infinite while it does not
    """

    canonical: Shares
    workers: frozenset[int]
    co_scheduled: bool = False
    started: bool = False
    phase: BwapPhase = BwapPhase.WAITING
    guide: BwapGuide = BwapGuide.OWN
    dwp: float = 0.0
    lower_bound: float = 0.0
    best: StallMeasurement | None = None
    plateau: int = 0
    samples: tuple[float, ...] = ()
    mapi: tuple[float, ...] = ()
    phase_mapi: float | None = None
    sampled_s: float = -math.inf
    blind: int = 0
    left: float = math.inf
    waited: int = 0
    queued_s: float = math.inf

    @property
    def begun(self) -> bool:
        """It places or measures: one of ``[bwap]at_once``."""
        return self.phase in (BwapPhase.PLACING, BwapPhase.MEASURING)

    @property
    def queued(self) -> bool:
        """It would begin if it were its turn."""
        return self.queued_s < math.inf

    @property
    def desired(self) -> dict[int, float] | None:
        """Share of memory per node that the search wants now; None, leave the pages where they are."""
        return dwp_weights(self.canonical, self.workers, self.dwp) if self.started else None


def decide(
    observation: SearchSample, state: BwapSearch, options: BwapOptions
) -> tuple[BwapSearch, tuple[Reason, ...]]:
    """Take one sample and return the new state of the search with the reasons for every change."""
    if observation.now_s - state.sampled_s < options.sample_interval_s * 0.999:
        return state, ()
    state = _take_mapi(observation, state, options)
    if state.phase is BwapPhase.WAITING:
        return _wait(observation, state, options)
    changed = _phase_change(state, options)
    if changed is not None:
        return _restart(state), (changed,)
    if state.phase is BwapPhase.PLACING:
        return _place(observation, state, options)
    return _measure(observation, state, options)


def trimmed_mean(samples: Sequence[float], drop: int) -> tuple[float, float]:
    """Return the mean without the ``drop`` lowest and highest samples, and its standard error.

    The error is Tukey and McLaughlin's: standard deviation of the winsorised samples over (1 - 2c/n) sqrt(n).

    :raises InvalidValueError: nothing is left after dropping
    """
    ordered = sorted(samples)
    count = len(ordered)
    kept = ordered[drop : count - drop]
    if not kept:
        raise InvalidValueError("samples", count, f"more than {2 * drop}")
    mean = sum(kept) / len(kept)
    if count < 2:
        return mean, 0.0
    winsorised = [kept[0]] * drop + kept + [kept[-1]] * drop
    centre = sum(winsorised) / count
    deviation = math.sqrt(sum((value - centre) ** 2 for value in winsorised) / (count - 1))
    return mean, deviation / (len(kept) / count) / math.sqrt(count)


def memory_intensive(mapi: float, options: BwapOptions) -> bool:
    """Classify a guest by its memory accesses per instruction."""
    return mapi >= options.memory_intensive_mapi


def stable(mapi: Sequence[float], options: BwapOptions) -> bool:
    """Tell whether MAPI varies so little that the guest is in a stable phase (the trigger of ``BWAP-init``)."""
    if len(mapi) < options.stable_samples:
        return False
    mean = sum(mapi) / len(mapi)
    if mean <= 0:
        return True
    variance = sum((value - mean) ** 2 for value in mapi) / len(mapi)
    return math.sqrt(variance) / mean <= options.stable_variation


def _take_mapi(observation: SearchSample, state: BwapSearch, options: BwapOptions) -> BwapSearch:
    mapi = state.mapi
    if observation.mapi is not None:
        mapi = (*mapi, observation.mapi)[-options.stable_samples :]
    return replace(state, mapi=mapi, sampled_s=observation.now_s)


def _wait(
    observation: SearchSample, state: BwapSearch, options: BwapOptions
) -> tuple[BwapSearch, tuple[Reason, ...]]:
    if observation.mapi is None:
        state = replace(state, blind=state.blind + 1, queued_s=math.inf)
        if state.blind != options.blind_samples or state.started:
            return state, ()
        reason = Reason(Term.NO_COUNTERS, "canonical weights without a search")
        return replace(state, started=True, dwp=0.0), (reason,)
    if not stable(state.mapi, options):
        return replace(state, blind=0, queued_s=math.inf), ()
    mapi = sum(state.mapi) / len(state.mapi)
    if not memory_intensive(mapi, options):
        reason = Reason(Term.NOT_MEMORY_INTENSIVE, mapi, options.memory_intensive_mapi)
        local = replace(
            state,
            started=True,
            phase=BwapPhase.FOUND,
            dwp=1.0,
            phase_mapi=mapi,
            best=None,
            queued_s=math.inf,
        )
        return local, (reason,)
    if not observation.may_begin:
        since_s = min(state.queued_s, observation.now_s)
        reason = Reason(Term.SEARCH_QUEUED, options.at_once)
        return replace(state, blind=0, queued_s=since_s), (reason,)
    started = replace(
        state,
        started=True,
        phase=BwapPhase.PLACING,
        guide=BwapGuide.NEIGHBOUR if state.co_scheduled else BwapGuide.OWN,
        dwp=0.0,
        lower_bound=0.0,
        best=None,
        plateau=0,
        samples=(),
        blind=0,
        phase_mapi=mapi,
        queued_s=math.inf,
    )
    return started, (Reason(Term.SEARCH_STARTED, mapi, options.memory_intensive_mapi),)


def _place(
    observation: SearchSample, state: BwapSearch, options: BwapOptions
) -> tuple[BwapSearch, tuple[Reason, ...]]:
    """Wait for the pages: they may never come (no room, other movers), and waiting asks for a look at every sample."""
    if observation.placed:
        return replace(
            state, phase=BwapPhase.MEASURING, samples=(), blind=0, left=math.inf, waited=0
        ), ()
    if observation.left < state.left - _PROGRESS:
        return replace(state, left=observation.left, waited=0), ()
    state = replace(state, waited=state.waited + 1)
    waited_s = state.waited * options.sample_interval_s
    if waited_s < options.stuck_s:
        return state, ()
    reason = Reason(Term.SEARCH_GIVEN_UP_STUCK, waited_s, options.stuck_s)
    return _found(state, options), (reason,)


def _phase_change(state: BwapSearch, options: BwapOptions) -> Reason | None:
    """A new phase shows in MAPI at any time, and in the stall rate once the search has ended."""
    if state.phase_mapi and len(state.mapi) == options.stable_samples:
        mapi, _ = trimmed_mean(state.mapi, len(state.mapi) // 4)
        if abs(mapi - state.phase_mapi) > options.phase_change * state.phase_mapi:
            return Reason(Term.PHASE_CHANGED_MAPI, mapi, state.phase_mapi)
    ended = state.phase is BwapPhase.FOUND and state.best is not None
    if ended and state.best is not None and len(state.samples) == options.samples:
        rate, _ = trimmed_mean(state.samples, options.drop)
        if abs(rate - state.best.stall_rate) > options.phase_change * state.best.stall_rate:
            return Reason(Term.PHASE_CHANGED_STALL_RATE, rate, state.best.stall_rate)
    return None


def _restart(state: BwapSearch) -> BwapSearch:
    """Wait for the new phase to become stable; the pages stay where they are until it is."""
    return replace(
        state,
        phase=BwapPhase.WAITING,
        mapi=(),
        samples=(),
        phase_mapi=None,
        best=None,
        left=math.inf,
        waited=0,
    )


def _measure(
    observation: SearchSample, state: BwapSearch, options: BwapOptions
) -> tuple[BwapSearch, tuple[Reason, ...]]:
    guided_by_own = state.guide is BwapGuide.OWN or state.phase is BwapPhase.FOUND
    sample = observation.stall_rate if guided_by_own else observation.neighbour_stall_rate
    if sample is None:
        blind = state.blind + 1
        if blind < options.blind_samples or state.phase is BwapPhase.FOUND:
            return replace(state, blind=blind), ()
        reason = Reason(Term.SEARCH_GIVEN_UP_BLIND, blind, options.blind_samples)
        return _found(state, options), (reason,)
    samples = (*state.samples, sample)[-options.samples :]
    state = replace(state, samples=samples, blind=0)
    if state.phase is BwapPhase.FOUND or len(samples) < options.samples:
        return state, ()
    return _judge(state, options)


def _judge(state: BwapSearch, options: BwapOptions) -> tuple[BwapSearch, tuple[Reason, ...]]:
    """Compare a finished measurement with the best one and step on, undo or change the guide."""
    current = StallMeasurement(state.dwp, *trimmed_mean(state.samples, options.drop))
    if state.best is None:
        return _step(replace(state, best=current), options, Reason(Term.FIRST, current.stall_rate))
    noise = options.noise_sigmas * math.hypot(current.error, state.best.error)
    gain = state.best.stall_rate - current.stall_rate
    reason = Reason(Term.STALL_RATE, current.stall_rate, state.best.stall_rate)
    if gain > noise:
        return _step(replace(state, best=current, plateau=0), options, reason)
    if gain >= -noise and state.plateau < options.plateau_steps:
        return _step(replace(state, plateau=state.plateau + 1), options, reason)
    return _end_of_stage(state, options, reason)


def _step(
    state: BwapSearch, options: BwapOptions, reason: Reason
) -> tuple[BwapSearch, tuple[Reason, ...]]:
    if state.dwp >= 1.0:
        return _end_of_stage(state, options, reason)
    dwp = min(1.0, state.dwp + dwp_step(state.canonical, state.workers, options.step))
    moved = replace(state, phase=BwapPhase.PLACING, dwp=dwp, samples=())
    return moved, (reason, Reason(Term.DWP, dwp, state.dwp))


def _end_of_stage(
    state: BwapSearch, options: BwapOptions, reason: Reason
) -> tuple[BwapSearch, tuple[Reason, ...]]:
    if state.guide is BwapGuide.NEIGHBOUR and state.best is not None:
        bound = state.best.dwp
        second = replace(
            state,
            phase=BwapPhase.PLACING,
            guide=BwapGuide.OWN,
            dwp=bound,
            lower_bound=bound,
            best=None,
            plateau=0,
            samples=(),
        )
        return second, (reason, Reason(Term.LOWER_BOUND, bound, state.dwp))
    ended = _found(state, options)
    return ended, (reason, Reason(Term.DWP_FOUND, ended.dwp, state.dwp))


def _found(state: BwapSearch, options: BwapOptions) -> BwapSearch:
    """End the search on its best step; without undo the pages of the last step stay."""
    dwp = state.dwp
    if options.undo:
        dwp = state.best.dwp if state.best is not None else state.lower_bound
    return replace(
        state,
        phase=BwapPhase.FOUND,
        guide=BwapGuide.OWN,
        dwp=dwp,
        samples=(),
        left=math.inf,
        waited=0,
    )
