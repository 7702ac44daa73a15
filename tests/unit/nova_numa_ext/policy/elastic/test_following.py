# SPDX-License-Identifier: Apache-2.0
"""Traces of groups, and what would have been decided on them."""

import json
from pathlib import Path

import pytest

from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.following import DecidedPeriod, follow
from nova_numa_ext.policy.elastic.load import MemberLoad
from nova_numa_ext.policy.elastic.period import Member, Period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.terms import ScalingTerm
from nova_numa_ext.policy.elastic.trace import read_trace
from placement_traits.errors import InvalidValueError
from tests.support.elastic import SimpleModels

HEAD = "time_s,member,reads_per_s,latencies_ms"


def test_a_trace_with_its_required_columns() -> None:
    assert read_trace([HEAD, "0,a,100,20 21.5", "0,b,50,", "300,a,10,30"]) == (
        Period(
            0.0,
            0.0,
            (
                Member("a", MemberLoad(100.0), (20.0, 21.5), created_here=True),
                Member("b", MemberLoad(50.0), (), created_here=True),
            ),
        ),
        Period(300.0, 300.0, (Member("a", MemberLoad(10.0), (30.0,), created_here=True),)),
    )


def test_a_trace_with_all_columns() -> None:
    (found,) = read_trace(
        [
            f"{HEAD},writes_per_s,size_kb,state,created_here,disturbed,cannot_fix,placement,age_s",
            "5,a,100,20,7,4,rebalancing,no,yes,yes,0.25,60",
            "5,b,,,,,building,,,,,",
            "5,c,,,,,leaving,,,,,",
        ]
    )
    member = Member("a", MemberLoad(100.0, 7.0, 4.0), (20.0,), False, True, True, 0.25, 60.0)
    assert found == Period(5.0, 5.0, (member,), building=1, leaving=1, rebalancing=True)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "t.csv, column time_s"),
        (["time_s,member,reads_per_s"], "t.csv, column latencies_ms"),
        ([HEAD], "t.csv: 'no line' is not allowed; allowed: at least one period"),
        ([HEAD, "x,a,1,2"], "t.csv line 2, time_s: 'x' is not allowed; allowed: a number"),
        (
            [HEAD, "0,a,-1,2"],
            "t.csv line 2, reads_per_s: '-1' is not allowed; allowed: a number >= 0",
        ),
        ([HEAD, "0,a,nan,2"], "t.csv line 2, reads_per_s: 'nan'"),
        ([HEAD, "0,a,,2"], "t.csv line 2, reads_per_s: ''"),
        ([HEAD, "0,a,1,2 z"], "t.csv line 2, latencies_ms: '2 z'"),
        ([HEAD, "0,,1,2"], "t.csv line 2, member: '' is not allowed; allowed: a name"),
        (
            [HEAD, "0,a,1,2", "0,a,1,2"],
            "t.csv line 3, member: 'a' is not allowed; allowed: one line",
        ),
        ([HEAD, "9,a,1,2", "0,a,1,2"], "t.csv line 3, time_s: '0' is not allowed; allowed: times"),
        ([f"{HEAD},state", "0,a,1,2,gone"], "t.csv line 2, state: 'gone'"),
        (
            [f"{HEAD},disturbed", "0,a,1,2,1"],
            "t.csv line 2, disturbed: '1' is not allowed; allowed: yes, no",
        ),
    ],
)
def test_a_line_that_is_wrong_is_named(lines: list[str], sentence: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_trace(lines, "t.csv")
    assert str(refused.value).startswith(sentence)


SETTINGS = ScalingSettings(35.0, head_room=1.0, lead_periods=1, grid=Grid(100.0, 100.0))


def replayed(*, cool_down_s: float = 0.0, grows: bool = True) -> tuple[DecidedPeriod, ...]:
    """Three members that are trained, then need one more, and get it in the next period or never."""
    lines = [HEAD]
    for at in range(16):
        reads = 450.0 + 100.0 * at if at < 12 else 1200.0
        count = 4 if at > 12 and grows else 3
        lines += [f"{300 * at},m{one},{reads},{0.035 * reads}" for one in range(count)]
    settings = ScalingSettings(
        35.0,
        head_room=1.0,
        lead_periods=1,
        grid=Grid(100.0, 100.0),
        cool_down_out_s=cool_down_s,
    )
    return follow(read_trace(lines), SimpleModels(), settings)


def test_the_log_says_what_was_decided_and_why() -> None:
    log = [json.loads(json.dumps(one.as_json())) for one in replayed()]
    assert len(log) == 16
    assert log[0]["why"] == "the model cannot say yet what m0 can carry"
    assert {key: log[12][key] for key in ("at_s", "members", "reads_per_s", "change", "term")} == {
        "at_s": 3600.0,
        "members": 3,
        "reads_per_s": 3600.0,
        "change": 1,
        "term": "beyond",
    }
    assert log[12]["forecasts"][0] == {"predictor": "last value", "lead": 1, "per_s": 3600.0}
    assert set(log[12]["ratios"]) == {"m0", "m1", "m2"}
    assert log[12]["suggested_shares"] == pytest.approx(dict.fromkeys(("m0", "m1", "m2"), 1 / 3))
    assert log[0]["suggested_shares"] == {}


def test_two_replays_of_a_trace_say_the_same() -> None:
    assert [one.as_json() for one in replayed()] == [one.as_json() for one in replayed()]


@pytest.mark.parametrize(
    ("grows", "term"), [(True, ScalingTerm.COOL_DOWN), (False, ScalingTerm.BEYOND)]
)
def test_what_the_trace_shows_as_carried_out_begins_a_cool_down(grows: bool, term: str) -> None:
    found = replayed(cool_down_s=900.0, grows=grows)[13]
    assert found.evaluation.decision.reason.term == term


def test_a_replay_is_drawn_where_matplotlib_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from nova_numa_ext.simulator.elastic import plots

    plots.draw(replayed(), 35.0, tmp_path / "replay.png", "a trace")
    assert (tmp_path / "replay.png").read_bytes().startswith(b"\x89PNG")
