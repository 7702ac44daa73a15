# SPDX-License-Identifier: Apache-2.0
"""The DWP search as a closed loop: a synthetic guest answers with stall rates, the pages follow at once."""

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from emulation.physics.published import CANONICAL_A as A_WEIGHTS
from emulation.physics.published import shares
from host_agent.conf.bwap import BwapOptions
from host_agent.decide.pages import bwap
from host_agent.decide.pages.bwap import BwapPhase, BwapSearch, SearchSample, trimmed_mean

A_0 = shares(A_WEIGHTS[(0,)])
FAST = BwapOptions(samples=4, drop=1, stable_samples=4)


@dataclass
class Guest:
    """A guest that runs under the search; ``stall`` maps DWP to stalled cycles per second."""

    state: BwapSearch
    options: BwapOptions
    stall: Callable[[float], float]
    neighbour: Callable[[float], float] | None = None
    mapi: float = 0.02
    now_s: float = 0.0
    visited: list[float] = field(default_factory=list)

    def run(self, samples: int = 2000, until: BwapPhase | None = BwapPhase.FOUND) -> BwapSearch:
        for _ in range(samples):
            self.now_s += self.options.sample_interval_s
            dwp = self.state.dwp
            seen = SearchSample(
                self.now_s,
                placed=True,
                stall_rate=self.stall(dwp),
                mapi=self.mapi,
                neighbour_stall_rate=self.neighbour(dwp) if self.neighbour else None,
            )
            self.state, _ = bwap.decide(seen, self.state, self.options)
            if not self.visited or self.visited[-1] != self.state.dwp:
                self.visited.append(self.state.dwp)
            if self.state.phase is until:
                break
        return self.state


def guest(stall: Callable[[float], float], options: BwapOptions = FAST, **more: object) -> Guest:
    state = BwapSearch(canonical=A_0, workers=frozenset({0}), co_scheduled="neighbour" in more)
    return Guest(state, options, stall, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimum", "found", "left_without_undo"),
    [(0.0, 0.0, 0.1412), (0.3, 0.2825, 0.4237), (0.48, 0.4237, 0.5650), (1.0, 1.0, 1.0)],
)
@pytest.mark.parametrize("plateau_steps", [0, 2])
def test_f_004_09_the_search_ends_within_one_step_of_the_optimum(
    optimum: float, found: float, left_without_undo: float, plateau_steps: int
) -> None:
    def stall(dwp: float) -> float:
        return 1 + (dwp - optimum) ** 2

    options = replace(FAST, plateau_steps=plateau_steps)
    assert guest(stall, options).run().dwp == pytest.approx(found, abs=1e-3)
    literal = replace(options, undo=False)
    assert guest(stall, literal).run().dwp == pytest.approx(left_without_undo, abs=1e-3)


def test_f_004_10_outliers_in_the_dropped_samples_change_nothing() -> None:
    chance = random.Random(10)
    middle = [100 + chance.uniform(-1, 1) for _ in range(10)]
    mean = sum(middle) / 10
    for low, high in ((0.0, 1e9), (90.0, 110.0)):
        samples = middle + [low] * 5 + [high] * 5
        chance.shuffle(samples)
        assert trimmed_mean(samples, 5)[0] == pytest.approx(mean)


def test_f_004_10_the_error_of_a_trimmed_mean_is_tukeys_and_mclaughlins() -> None:
    """Winsorised 3 3 3 4 5 6 6 6 deviate by the root of 2; half of 8 are dropped: sqrt(2) / (0.5 sqrt(8))."""
    assert trimmed_mean((8, 1, 7, 2, 6, 3, 5, 4), 2) == pytest.approx((4.5, 1.0))


def test_f_004_10_the_defaults_are_the_source_s() -> None:
    options = BwapOptions()
    assert (options.samples, options.drop, options.interval_s, options.step) == (
        20,
        5,
        0.2,
        0.1,
    )
    assert replace(options, interval_is_period=True).sample_interval_s == pytest.approx(0.01)


def test_f_004_15_stage_two_never_goes_below_the_bound_of_stage_one() -> None:
    # the neighbour is happy from 0.4 on; the guest itself would like 0
    run = guest(lambda dwp: 1 + dwp, neighbour=lambda dwp: 1 + max(0.0, 0.4 - dwp))
    final = run.run()
    assert final.lower_bound == pytest.approx(0.4237, abs=1e-3)
    assert final.dwp == pytest.approx(final.lower_bound)
    after_bound = run.visited[run.visited.index(max(run.visited)) :]
    assert min(after_bound) >= final.lower_bound


def test_f_004_15_stage_two_goes_on_for_the_guest_s_own_sake() -> None:
    final = guest(
        lambda dwp: 1 + (dwp - 0.8) ** 2, neighbour=lambda dwp: 1 + max(0.0, 0.2 - dwp)
    ).run()
    assert final.lower_bound == pytest.approx(0.2825, abs=1e-3)
    assert final.dwp == pytest.approx(0.85, abs=0.08)


def test_f_004_15_stage_two_that_cannot_measure_stays_at_the_bound_of_stage_one() -> None:
    run = guest(lambda dwp: 1 + dwp, neighbour=lambda dwp: 1 + max(0.0, 0.4 - dwp))
    while not run.state.lower_bound:
        run.run(samples=1)
    assert run.state.best is None, "nothing is measured in stage two yet"
    for _ in range(2 * FAST.blind_samples):
        run.now_s += FAST.sample_interval_s
        blind = SearchSample(run.now_s, placed=True, stall_rate=None, mapi=run.mapi)
        run.state, _reasons = bwap.decide(blind, run.state, FAST)
    assert run.state.phase is BwapPhase.FOUND
    assert run.state.dwp == run.state.lower_bound == pytest.approx(0.4237, abs=1e-3)


def test_f_004_16_a_guest_that_is_not_memory_intensive_gets_its_pages_near() -> None:
    quiet = guest(lambda dwp: 1 - dwp, mapi=FAST.memory_intensive_mapi / 2)
    assert quiet.run().desired == pytest.approx({**dict.fromkeys(A_0, 0.0), 0: 1.0})
    assert quiet.visited == [0.0, 1.0]


def test_f_004_16_the_search_waits_until_mapi_is_steady() -> None:
    starting = guest(lambda dwp: 1.0)
    for mapi in (0.02, 0.001, 0.02, 0.001, 0.02, 0.001):
        starting.mapi = mapi
        assert starting.run(samples=1).phase is BwapPhase.WAITING
        assert starting.state.desired is None, "nothing moves before"
    starting.mapi = 0.02
    assert starting.run(samples=4, until=BwapPhase.PLACING).phase is BwapPhase.PLACING


def test_a_new_phase_starts_a_new_search_and_keeps_the_pages_until_then() -> None:
    run = guest(lambda dwp: 1 + (dwp - 1.0) ** 2)
    assert run.run().dwp == 1.0
    run.mapi *= 2
    run.stall = lambda dwp: 2 + (dwp - 0.3) ** 2
    assert run.run(until=BwapPhase.WAITING).dwp == 1.0
    assert run.run().dwp == pytest.approx(0.2825, abs=1e-3)


def test_a_new_neighbour_shows_in_the_stall_rate_alone() -> None:
    run = guest(lambda dwp: 1 + (dwp - 1.0) ** 2)
    run.run()
    run.stall = lambda dwp: 3 + dwp
    assert run.run(until=BwapPhase.WAITING).phase is BwapPhase.WAITING
    assert run.run().dwp == 0.0


def test_a_plateau_does_not_end_the_search() -> None:
    def stall(dwp: float) -> float:  # flat from 0.14 to 0.43, then down again
        return 2 - min(dwp, 0.15) - max(0.0, dwp - 0.43)

    assert guest(stall, replace(FAST, plateau_steps=0)).run().dwp < 0.3
    assert guest(stall, replace(FAST, plateau_steps=2)).run().dwp == pytest.approx(1.0)


def _noisy(true: Callable[[float], float]) -> Callable[[float], float]:
    """Half of the samples are 0.4 above the others: two measurements that differ by 0.33 differ by one error."""
    spread = itertools.cycle((20.0, 20.4))
    return lambda dwp: next(spread) + true(dwp)


@pytest.mark.parametrize(
    ("sigmas", "gain", "found"),
    [(2.0, 0.1, 0.0), (2.0, 0.5, 0.0), (1.0, 0.5, 1.0), (2.0, 1.0, 1.0), (0.0, 0.1, 1.0)],
)
def test_a_step_within_noise_sigmas_of_its_measurement_is_no_gain(
    sigmas: float, gain: float, found: float
) -> None:
    stall = _noisy(lambda dwp: -gain * dwp / 0.1412)  # a step
    options = replace(FAST, plateau_steps=0, noise_sigmas=sigmas)
    assert guest(stall, options).run().dwp == pytest.approx(found, abs=0.02)


@pytest.mark.parametrize(
    ("sigmas", "loss", "found"), [(2.0, 0.5, 1.0), (1.0, 0.5, 0.0), (2.0, 1.0, 0.0)]
)
def test_a_step_within_noise_sigmas_is_no_loss_either(
    sigmas: float, loss: float, found: float
) -> None:
    """The first step seems to lose, all after it gain: it is walked over as a plateau, or ends the search."""
    stall = _noisy(lambda dwp: loss if 0.1 < dwp < 0.2 else -10 * dwp)
    options = replace(FAST, plateau_steps=1, noise_sigmas=sigmas)
    assert guest(stall, options).run().dwp == pytest.approx(found, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_ten_per_cent_costs_little(seed: int) -> None:
    chance = random.Random(seed)

    def true(dwp: float) -> float:
        return 1 + 2 * (dwp - 0.6) ** 2

    final = guest(lambda dwp: true(dwp) * chance.gauss(1, 0.1), BwapOptions()).run()
    assert true(final.dwp) / true(0.6) < 1.2


def test_without_a_stall_rate_the_search_holds_and_then_gives_up() -> None:
    run = guest(lambda dwp: 1 - 0.1 * dwp)
    run.run(samples=14)
    reached = run.state.dwp
    assert reached > 0
    for _ in range(FAST.blind_samples + 2):
        run.now_s += 1
        run.state, reasons = bwap.decide(
            SearchSample(run.now_s, placed=True, stall_rate=None, mapi=None), run.state, FAST
        )
        if reasons:
            break
    assert reasons[0].term == "search_given_up_blind"
    assert run.state.phase is BwapPhase.FOUND
    assert run.state.dwp <= reached


def test_samples_that_come_too_early_are_ignored() -> None:
    state = BwapSearch(canonical=A_0, workers=frozenset({0}), sampled_s=10.0)
    early = SearchSample(10.1, placed=True, stall_rate=1.0, mapi=0.02)
    assert bwap.decide(early, state, BwapOptions()) == (state, ())


def test_nothing_is_measured_before_the_pages_have_arrived() -> None:
    run = guest(lambda dwp: 1.0)
    run.run(until=BwapPhase.PLACING)
    late = SearchSample(run.now_s + 1, placed=False, stall_rate=1.0, mapi=0.02)
    state, _ = bwap.decide(late, run.state, FAST)
    assert state.phase is BwapPhase.PLACING
    assert state.desired is not None
    assert math.isclose(sum(state.desired.values()), 1.0)


def test_without_counters_the_canonical_weights_are_used_and_a_search_may_come_later() -> None:
    state, now = BwapSearch(canonical=A_0, workers=frozenset({0})), 0.0
    for _ in range(FAST.blind_samples):
        assert state.desired is None
        now += 1.0
        blind = SearchSample(now, placed=True, stall_rate=None, mapi=None)
        state, reasons = bwap.decide(blind, state, FAST)
    assert reasons[0].term == "no_counters"
    assert state.desired == pytest.approx(A_0)
    assert Guest(state, FAST, lambda dwp: 2 - dwp, now_s=now).run().dwp == 1.0


def test_a_search_whose_pages_never_arrive_is_given_up_and_one_whose_pages_come_slowly_is_not() -> (
    None
):
    """No room, BALM's hold or another mover: to wait for ever asks for a look at the host at every sample."""
    options = replace(FAST, stuck_s=2.0)
    run = guest(lambda dwp: 1.0, options)
    run.run(until=BwapPhase.PLACING)
    now_s = run.now_s
    story: list[str] = []
    for sample, left in enumerate((0.5, *(0.4 - 0.01 * n for n in range(30)), *([0.1] * 30))):
        now_s += options.sample_interval_s
        seen = SearchSample(now_s, placed=False, stall_rate=1.0, mapi=run.mapi, left=left)
        run.state, reasons = bwap.decide(seen, run.state, options)
        story += [reason.term for reason in reasons]
        if sample < 31:
            assert run.state.phase is BwapPhase.PLACING
    assert run.state.phase is BwapPhase.FOUND
    assert story == ["search_given_up_stuck"]


def test_pages_that_come_and_go_have_not_been_moved() -> None:
    """Fewer than a two-hundredth: a guest frees and touches some."""
    options = replace(FAST, stuck_s=2.0)
    run = guest(lambda dwp: 1.0, options)
    run.run(until=BwapPhase.PLACING)
    for sample in range(30):
        run.now_s += options.sample_interval_s
        left = 0.5 - 0.0001 * sample
        seen = SearchSample(run.now_s, placed=False, stall_rate=1.0, mapi=run.mapi, left=left)
        run.state, _reasons = bwap.decide(seen, run.state, options)
    assert run.state.phase is BwapPhase.FOUND


def ask(run: Guest, *, may_begin: bool, **more: float | None) -> list[str]:
    """One sample; returns the terms of its reasons."""
    run.now_s += run.options.sample_interval_s
    mapi = more.get("mapi", run.mapi)
    seen = SearchSample(run.now_s, placed=True, stall_rate=1.0, mapi=mapi, may_begin=may_begin)
    run.state, reasons = bwap.decide(seen, run.state, run.options)
    return [reason.term for reason in reasons]


def test_a_search_waits_for_its_turn_since_it_was_ready() -> None:
    run = guest(lambda dwp: 1.0)
    story = [ask(run, may_begin=False) for _sample in range(10)]
    ready_s = FAST.stable_samples * FAST.sample_interval_s
    assert story == [[]] * 3 + [["search_queued"]] * 7
    assert run.state.queued_s == pytest.approx(ready_s), "its place is kept"
    assert (run.state.phase, run.state.desired) == (BwapPhase.WAITING, None), "pages stay"
    assert ask(run, may_begin=True) == ["search_started"]
    assert run.state.begun
    assert not run.state.queued


@pytest.mark.parametrize("mapi", [None, 0.5])
def test_one_that_could_not_begin_any_more_leaves_the_queue(mapi: float | None) -> None:
    """Without counters, or not steady: it would hold up those behind it."""
    run = guest(lambda dwp: 1.0)
    for _sample in range(5):
        ask(run, may_begin=False)
    assert run.state.queued
    ask(run, may_begin=True, mapi=mapi)
    assert (run.state.phase, run.state.queued) == (BwapPhase.WAITING, False)


def test_little_memory_is_brought_near_without_a_turn() -> None:
    run = guest(lambda dwp: 1.0)
    story = [ask(run, may_begin=False, mapi=0.0001) for _sample in range(4)]
    assert story[-1] == ["not_memory_intensive"]
    assert run.state.dwp == 1.0
