# SPDX-License-Identifier: Apache-2.0
"""What is known of servers' performance: expectations, deviations from them, and what moves have gained.

Performance is IPC (higher is better) or MPI (lower is better); see :mod:`~host_agent.decide.cores.mapping`.
"""

from dataclasses import replace
from statistics import median

from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.decide.cores.mapping_state import Expectation, MappingState, MappingTurn
from host_agent.model.terms import Term
from placement_traits.interference import BENEFIT_MAX, BENEFIT_MIN, penalty, updated_benefit
from placement_traits.names import InterferenceClass
from placement_traits.reason import Reason

Reasons = tuple[Reason, ...]


def deviation(measured: float, expected: float, metric: PerformanceMetric) -> float:
    """Return the relative deviation from the expectation; positive is worse, for IPC and MPI alike."""
    if expected <= 0:
        return 0.0
    drop = (expected - measured) / expected
    return drop if metric is PerformanceMetric.IPC else -drop


def learn(
    turn: MappingTurn,
    state: MappingState,
) -> MappingState:
    """Take samples; a full quiet window sets the expectation, up or down: no neighbour is to blame."""
    observation, options = turn.observation, turn.options
    if not observation.sampled:
        return state
    known = {
        name: _unseen(was, options) if name not in observation.measured else was
        for name, was in state.expectations.items()
    }
    for name, value in observation.measured.items():
        if name not in state.slots:
            continue
        was = known.get(name, Expectation())
        recent = (*was.recent, value)[-options.smooth_samples :]
        quiet: tuple[float, ...] = ()
        expected = was.value
        if _quiet(turn, state, name):
            quiet = (*was.quiet, value)[-options.quiet_samples :]
        if len(quiet) == options.quiet_samples:
            expected = median(quiet)
        known[name] = Expectation(expected, recent, quiet)
    return replace(state, expectations=known)


def _unseen(known: Expectation, options: MappingOptions) -> Expectation:
    """Hold for some samples, then forget all but the expectation: an old figure is no reason for a move."""
    if known.blind + 1 < options.blind_samples:
        return replace(known, blind=known.blind + 1)
    return Expectation(known.value, blind=known.blind + 1)


def _quiet(
    turn: MappingTurn,
    state: MappingState,
    name: str,
) -> bool:
    observation, occupancy = turn.observation, turn.occupancy
    mine = observation.servers[name].interference_class
    around = occupancy.neighbours(occupancy.l3_domains(state.slots[name]))
    for other in around:
        if observation.now_s - state.moved_s.get(other, float("-inf")) < turn.options.settle_s:
            return False
        theirs = observation.servers[other].interference_class
        if other != name and (penalty(mine, theirs) or theirs is InterferenceClass.DEVIL):
            return False
    return True


def deviations(state: MappingState, options: MappingOptions) -> dict[str, float]:
    """Return server -> deviation, for those with an expectation and enough samples."""
    return {
        name: deviation(median(known.recent), known.value, options.metric)
        for name, known in state.expectations.items()
        if known.value is not None
        and not known.blind
        and len(known.recent) == options.smooth_samples
    }


def judge_trials(
    turn: MappingTurn,
    state: MappingState,
    reasons: dict[str, Reasons],
) -> MappingState:
    """Let the benefit matrix learn from moves that have settled."""
    observation, options = turn.observation, turn.options
    now = deviations(state, options)
    benefit, waiting = state.benefit, []
    for trial in state.trials:
        if trial.due_s > observation.now_s:
            waiting.append(trial)
        elif trial.server in now:
            kind = observation.servers[trial.server].interference_class
            observed = observed_benefit(trial.before - now[trial.server])
            new = updated_benefit(benefit, trial.domain, kind, observed, keep=options.benefit_keep)
            learnt = Reason(
                Term.BENEFIT,
                new[trial.domain][kind],
                benefit[trial.domain][kind],
                f"{kind} with its own {trial.domain}",
            )
            reasons[trial.server] = (*reasons.get(trial.server, ()), learnt)
            benefit = new
    return replace(state, benefit=benefit, trials=tuple(waiting))


def observed_benefit(gain: float) -> float:
    """Put a gain on the scale of the benefit matrix: nothing is 1, half of the expectation or more is 10."""
    return min(BENEFIT_MAX, BENEFIT_MIN + (BENEFIT_MAX - BENEFIT_MIN) * max(0.0, gain) / 0.5)
