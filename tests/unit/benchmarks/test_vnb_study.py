# SPDX-License-Identifier: Apache-2.0
"""The study of blocks: runs are kept one by one, seeds stay held out, a difference is what logs show."""

import inspect
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import vnb_study
from benchmarks.bench_vnb import (
    COMPARED,
    PAIRS,
    POLICIES,
    RIVALS,
    differences,
    falls,
    mixes_in_order,
    parts_of_a_log,
    runs_of,
    seeds_of,
)
from benchmarks.vnb_study import KeptRuns, VnbRun, difference, done, figures_of
from nova_numa_ext.policy.jobs import queue
from nova_numa_ext.policy.network.groups import PolicyName
from placement_traits.errors import InvalidValueError
from tests.support.fabrics import fabric

SMALL = fabric([18] * 6, leafs_per_pod=3)
RUN = VnbRun("c1", 1, 30, PolicyName.VNB, 4.0)


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path / "runs", SMALL)
    ran: list[VnbRun] = []
    runs = [RUN, VnbRun("c1", 1, 30, PolicyName.BEST_FIT)]
    first = done(runs[:1], SMALL, kept, lambda run, left: ran.append(run))
    both = done(runs, SMALL, kept, lambda run, left: ran.append(run))
    assert ran == runs
    assert both[RUN] == first[RUN]
    assert sorted(each.name for each in (tmp_path / "runs").iterdir()) == [
        "c1-30-1-best_fit.json",
        "c1-30-1-vnb-4to1.json",
    ]


def test_runs_of_another_study_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    KeptRuns(tmp_path, SMALL).keep(RUN, {"waiting_s": 1.0})
    assert KeptRuns(tmp_path, SMALL).get(RUN) == {"waiting_s": 1.0}
    monkeypatch.setattr(vnb_study, "drawn_by", lambda: "another")
    with pytest.raises(
        InvalidValueError, match="the mixes, the traffic, the fabric and the code of now"
    ):
        KeptRuns(tmp_path, SMALL).get(RUN)
    (tmp_path / RUN.name).write_text("[]")
    with pytest.raises(InvalidValueError, match="figures of a run"):
        KeptRuns(tmp_path, SMALL).get(RUN)


def test_runs_of_another_fabric_or_of_other_code_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KeptRuns(tmp_path, SMALL).keep(RUN, {"waiting_s": 1.0})
    with pytest.raises(InvalidValueError, match="the code of now"):
        KeptRuns(tmp_path, fabric([18] * 5, leafs_per_pod=3)).get(RUN)
    source = inspect.getsource

    def later(what: Any) -> str:
        found = source(what)
        return found + "\nIS_NEW = True\n" if what is queue else found

    monkeypatch.setattr(inspect, "getsource", later)
    with pytest.raises(InvalidValueError, match="the code of now"):
        KeptRuns(tmp_path, SMALL).get(RUN)


def test_words_about_the_code_change_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before, source = vnb_study.decided_by(SMALL), inspect.getsource
    monkeypatch.setattr(inspect, "getsource", lambda what: f"# it is {what}\n{source(what)}")
    assert vnb_study.decided_by(SMALL) == before


def test_kept_runs_of_other_code_count_where_a_sample_of_each_kind_is_the_same(
    tmp_path: Path,
) -> None:
    """Those that were kept before files said by which code have no word of it."""
    kept = KeptRuns(tmp_path, SMALL)
    runs = [replace(RUN, seed=seed) for seed in (1, 2)] + [replace(RUN, oversubscription=None)]
    for run in runs:
        kept.keep(run, figures_of(run, SMALL))
        _without_code(tmp_path / run.name)
        with pytest.raises(InvalidValueError, match="--take-over"):
            kept.get(run)
    again: list[VnbRun] = []
    study = [*runs, replace(RUN, seed=3)]
    assert kept.take_over(study, 0, lambda run, left: again.append(run)) == 3
    assert {each.oversubscription for each in again} == {4.0, None} and len(again) == 2
    assert all(kept.get(run) for run in runs) and kept.get(study[-1]) is None
    assert kept.take_over(study, 0, lambda run, left: again.append(run)) == 0
    assert len(again) == 2


def test_kept_runs_with_other_figures_than_now_are_not_taken_over(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path, SMALL)
    kept.keep(RUN, {**figures_of(RUN, SMALL), "waiting_s": -1.0})
    _without_code(tmp_path / RUN.name)
    with pytest.raises(InvalidValueError, match="the figures of now"):
        kept.take_over([RUN], 0, lambda run, left: None)
    with pytest.raises(InvalidValueError, match="--take-over"):
        kept.get(RUN)


def _without_code(file: Path) -> None:
    found = json.loads(file.read_text())
    del found["decided_by"]
    file.write_text(json.dumps(found))


def test_a_run_is_the_same_each_time_but_for_its_time() -> None:
    run = VnbRun("p0", 1, 60, PolicyName.BEST_FIT, 4.0)
    first, second = (dict(figures_of(run, SMALL)) for _ in range(2))
    assert first.pop("cpu_s") >= 0 and second.pop("cpu_s") >= 0
    assert first == second
    assert first["slowdown_large"] > first["by_others_large"] > 1.0


def test_held_out_seeds_run_in_the_end_only() -> None:
    assert seeds_of("1,3-5,4", final=False) == (1, 3, 4, 5)
    assert seeds_of("100-119", final=True) == tuple(range(100, 120))
    for text in ("99-100", "119", "", "a", "5-4"):
        with pytest.raises(InvalidValueError):
            seeds_of(text, final=False)


def test_a_difference_is_what_pairs_show_not_what_logs_scatter() -> None:
    chance = random.Random(1)
    other = [chance.uniform(0, 100) for _ in range(20)]
    errors = [chance.uniform(0, 1) for _ in range(10)]
    noise = [*errors, *(-each for each in errors)]
    less = difference(
        {"m": [(each - 2 + error, each) for each, error in zip(other, noise, strict=True)]}
    )
    assert less.answer == "less" and less.low < less.mean < less.high < 0
    assert less.mean == pytest.approx(-2, abs=0.6)
    same = difference(
        {"m": [(each + error, each) for each, error in zip(other, noise, strict=True)]}
    )
    assert same.answer == "no difference"
    with pytest.raises(InvalidValueError, match="2 or more"):
        difference({"m": [(1.0, 2.0)], "n": [(1.0, 2.0)] * 2})


def test_each_mix_counts_as_much_however_many_logs_it_has() -> None:
    found = difference({"m": [(1.0, 0.0)] * 6, "n": [(3.0, 0.0)] * 8})
    assert (found.mean, found.low, found.high, found.logs) == (2.0, 2.0, 2.0, 14)
    assert found.answer == "more"


def test_a_mix_with_too_few_logs_has_no_answer_however_many_others_have() -> None:
    """Of two logs a bootstrap has three means."""
    few = difference({"m": [(1.0, 0.0)] * 5, "n": [(3.0, 0.0)] * 50})
    assert (few.answer, few.least) == ("too few logs", 5)


def test_what_is_left_by_rounding_is_no_difference() -> None:
    """At 1:1 no job is slowed, but for the last digit."""
    rounded = difference({"m": [(1.0 + 2.3e-16, 1.0)] * 12})
    assert (rounded.answer, rounded.mean) == ("no difference", 0.0)


def test_the_order_is_that_of_all_logs_of_a_mix() -> None:
    pairs = dict(zip(POLICIES, (9.0, 5.0, 4.0, 3.0, 0.0), strict=True))
    runs = {
        VnbRun("c1", seed, 30, policy): dict.fromkeys(PAIRS, number + worse)
        for policy, number in pairs.items()
        for seed, worse in ((1, 0.0), (2, 5.0 if policy is PolicyName.VNB else 0.0))
    }
    assert mixes_in_order(runs) == {"c1": False}
    of_first = {run.policy: figures for run, figures in runs.items() if run.seed == 1}
    assert falls(of_first, PAIRS)
    assert not falls(of_first | {PolicyName.EXCLUSIVE: dict.fromkeys(PAIRS, 1.0)}, PAIRS)


def test_blocks_are_compared_with_best_fit_on_the_same_logs() -> None:
    runs = [run for run in runs_of(["c1"], range(10), 30) if run.oversubscription]
    figures = {run: dict.fromkeys(COMPARED, float(run.policy is RIVALS[0])) for run in runs}
    found = differences(figures)
    assert {over for over, _ in found} == {1.0, 2.0, 4.0, 8.0}
    assert {each.answer for each in found.values()} == {"more"}
    assert differences({run: each for run, each in figures.items() if run.seed == 1}) == {}


def test_parts_of_logs_are_run_alone_and_all_of_them_are_the_study() -> None:
    runs = runs_of(["c1", "p0"], [1, 2], 30)
    assert len(set(runs)) == len(runs) == 2 * 2 * (len(POLICIES) + 4 * len(RIVALS))
    assert [run.mix for run in runs[:13]] == ["c1"] * 13
    assert [run.seed for run in runs[:26]] == [1] * 26, "all mixes get the next seed"
    by_part = [
        run for part in parts_of_a_log() for run in runs_of(["c1", "p0"], [1, 2], 30, [part])
    ]
    assert set(by_part) == set(runs)
    narrow = runs_of(["c1"], [1], 30, ["8", "2"])
    assert [(run.oversubscription, run.policy) for run in narrow] == [
        (over, policy) for over in (8.0, 2.0) for policy in RIVALS
    ]
