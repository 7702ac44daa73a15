# SPDX-License-Identifier: Apache-2.0
"""Elastic groups that the engine observes: it decides as the replay of the same file, after restarts, too."""

import json
import uuid
from dataclasses import replace

import pytest

from nova_numa_ext.orchestrator import engine, scaling_rounds
from nova_numa_ext.orchestrator.scaling_prometheus import PrometheusSource
from nova_numa_ext.orchestrator.scaling_rounds import ScalingRounds
from nova_numa_ext.orchestrator.scaling_saga import ScalingSaga
from nova_numa_ext.orchestrator.store import scaling, tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.leader import Election, NotLeaderError
from nova_numa_ext.orchestrator.store.scaling import (
    ScalingGroups,
    ScalingSource,
)
from nova_numa_ext.orchestrator.store.scaling_members import ScalingMembers
from nova_numa_ext.orchestrator.store.unreadable import UnreadableError
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.following import follow
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.trace import read_trace
from placement_traits.errors import CapabilityMissingError
from tests.support.elastic import SimpleModels
from tests.support.jobs_world import World
from tests.support.polling import until

ENGINE = Actor("engine")
GROUP = str(uuid.uuid4())
SETTINGS = ScalingSettings(
    35.0, head_room=1.0, lead_periods=1, grid=Grid(100.0, 100.0), cool_down_out_s=900.0
)
HEAD = "time_s,member,reads_per_s,latencies_ms"


def lines(first=0, last=20):
    """Three members that are trained, then need one more and get it a period later."""
    found = []
    for at in range(first, last):
        reads = 450.0 + 100.0 * at if at < 12 else 1200.0
        count = 4 if at > 12 else 3
        found += [f"{300 * at},m{one},{reads},{0.035 * reads}" for one in range(count)]
    return found


def replayed(last=20):
    """What ``openstack numa group scaling replay`` writes for the same trace."""
    done = follow(read_trace([HEAD, *lines(0, last)]), SimpleModels(), SETTINGS)
    return [json.loads(json.dumps(each.as_json())) for each in done]


class Models(SimpleModels):
    """Counts processes that were ended."""

    closed = 0

    def close(self):
        Models.closed += 1


class Observing:
    """Groups in a database, a folder of traces, and an engine's rounds."""

    def __init__(self, database, folder):
        self.database, self.groups, self.folder = database, ScalingGroups(database), folder
        self.troubles, self.learner = [], lambda _season: Models()
        self.restart()

    def restart(self):
        saga = ScalingSaga(self.groups, ScalingMembers(self.database), None, None, 3600.0)
        self.rounds = ScalingRounds(
            self.groups, self.folder, self._made, saga, PrometheusSource("", 5.0)
        )

    def _made(self, season):
        return self.learner(season)

    def set(self, group=GROUP, csv="web.csv", settings=SETTINGS):
        return self.groups.set(group, "project-1", "admin-1", settings, ScalingSource(csv))

    def write(self, found, csv="web.csv"):
        (self.folder / csv).write_text("\n".join([HEAD, *found]) + "\n")

    def go(self, rounds=3, actor=ENGINE):
        self.troubles.clear()
        for _ in range(rounds):
            self.rounds.round(actor, lambda: None, lambda *found: self.troubles.append(found))

    def log(self, group=GROUP):
        return self.groups.decisions(group)


@pytest.fixture
def observing(database, tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    return Observing(database, folder)


def test_what_is_set_is_read_back_and_set_again(observing):
    made = observing.set()
    assert observing.groups.read(GROUP) == made
    assert (made.settings, made.source, made.paused) == (SETTINGS, ScalingSource("web.csv"), False)
    assert (made.project, made.user, made.version) == ("project-1", "admin-1", 0)
    assert observing.groups.read("none") is None
    again = observing.set(settings=replace(SETTINGS, least=2))
    assert (again.settings.least, again.version, again.number) == (2, 1, made.number)
    assert observing.groups.counts() == (1, 0, 0)


def test_the_engine_decides_as_the_replay_of_the_same_trace(observing):
    """Issue 21: equal decision logs, with a file that grows while the engine looks."""
    observing.set()
    for last in (5, 6, 13, 14, 20):
        observing.write(lines(0, last))
        observing.go()
        assert observing.log() == replayed(last)
    assert observing.troubles == []
    assert {each["term"] for each in observing.log()} >= {"no_model", "beyond", "cool_down"}


@pytest.mark.parametrize("last", [3, 13, 14])
def test_another_engine_goes_on_where_the_first_was_killed(observing, last):
    observing.set()
    observing.write(lines(0, last))
    observing.go()
    observing.restart()
    observing.write(lines())
    observing.go()
    assert observing.log() == replayed()


def test_many_periods_at_once_leave_time_for_other_groups(observing, monkeypatch):
    monkeypatch.setattr(scaling_rounds, "_AT_ONCE", 4)
    observing.set()
    observing.write(lines())
    observing.go(2)
    assert len(observing.log()) == 4
    observing.go(4)
    assert observing.log() == replayed()


def test_half_a_file_is_not_read_before_it_rests(observing):
    observing.set()
    observing.write(lines(0, 4))
    observing.go(1)
    observing.write([*lines(0, 4), *lines(4, 5)[:1]])
    observing.go(1)
    observing.write(lines(0, 5))
    observing.go(1)
    assert observing.log() == []
    observing.go(1)
    assert observing.log() == replayed(5)


def test_a_file_that_begins_anew_is_learnt_again_and_nothing_is_decided_twice(observing):
    observing.set()
    observing.write(lines(0, 14))
    observing.go()
    observing.write(lines(4, 20))
    observing.go()
    found = [each["at_s"] for each in observing.log()]
    assert found == [300.0 * at for at in range(20)]
    assert observing.troubles == []


def test_a_pause_ends_its_process_and_what_was_missed_is_decided_later(observing):
    observing.set()
    observing.write(lines(0, 5))
    observing.go()
    closed = Models.closed
    assert observing.groups.pause(GROUP, "user-2", paused=True).paused
    assert observing.groups.counts() == (0, 0, 1)
    observing.write(lines())
    observing.go()
    assert len(observing.log()) == 5
    assert Models.closed == closed + 1
    resumed = observing.groups.pause(GROUP, "user-2", paused=False)
    assert (resumed.paused, resumed.user, resumed.version) == (False, "user-2", 2)
    assert observing.groups.pause(GROUP, "user-3", paused=False) == resumed
    observing.go()
    assert observing.log() == replayed()
    assert observing.groups.pause("none", "user-2", paused=True) is None


def test_a_group_that_is_deleted_ends_its_process_and_leaves_no_decision(observing):
    observing.set()
    observing.write(lines(0, 5))
    observing.go()
    closed = Models.closed
    assert observing.groups.delete(GROUP)
    observing.go()
    assert Models.closed == closed + 1
    assert (observing.groups.counts(), observing.troubles) == ((0, 0, 0), [])
    observing.set()
    assert observing.log() == []
    observing.go()
    assert len(observing.log()) == 5
    assert not observing.groups.delete("none")


def test_other_settings_begin_another_log(observing):
    observing.set()
    observing.write(lines())
    observing.go()
    observing.set(settings=replace(SETTINGS, most=3))
    assert observing.log() == []
    observing.go()
    assert "most" in {each["term"] for each in observing.log()}


def test_trouble_of_a_group_is_stored_and_holds_up_no_other_one(observing):
    other = str(uuid.uuid4())
    observing.set()
    observing.set(other, "other.csv")
    observing.write(lines(), "other.csv")
    observing.go()
    assert observing.log(other) == replayed()
    (why,) = {str(error) for _, error in observing.troubles}
    assert "a CSV file in the engine's folder of traces (No such file or directory)" in why
    assert observing.groups.read(GROUP).trouble == why
    assert observing.groups.counts() == (2, 1, 0)
    observing.write([*lines(0, 3), "x,m0,1,2"])
    observing.go()
    assert "web.csv line 11, time_s: 'x'" in observing.groups.read(GROUP).trouble
    observing.write(lines())
    observing.go()
    assert observing.groups.read(GROUP).trouble == ""
    assert observing.log() == replayed()


def test_a_missing_library_is_asked_for_once_a_minute_and_not_each_round(observing):
    asked = []

    def learner(_season):
        asked.append(1)
        raise CapabilityMissingError("sklearn is not installed: install nova-numa-ext[elastic]")

    observing.learner = learner
    observing.set()
    observing.write(lines())
    observing.go(10)
    assert len(asked) == 1
    assert len(observing.troubles) == 10
    assert "install nova-numa-ext[elastic]" in observing.groups.read(GROUP).trouble


def test_a_fit_that_fails_in_a_period_leaves_no_half_learnt_period(observing):
    class Fails(Models):
        def predictions(self, history, leads):
            if len(history) == 13 and not failed:
                failed.append(1)
                raise RuntimeError("died")
            return super().predictions(history, leads)

    failed = []
    observing.learner = lambda _season: Fails()
    observing.set()
    observing.write(lines())
    observing.go()
    assert observing.groups.read(GROUP).trouble == "died"
    observing.restart()  # or a minute later
    observing.go()
    assert observing.log() == replayed()
    assert observing.groups.read(GROUP).trouble == ""


def test_an_engine_whose_term_is_over_stores_nothing(observing, database):
    observing.set()
    observing.write(lines())
    election = Election(database, "first", 0.05)
    term = election.campaign()
    while Election(database, "second", 15.0).campaign() is None:
        pass
    observing.go(1)
    with pytest.raises(NotLeaderError):
        observing.go(1, Actor("first", term))
    assert observing.log() == []


def test_decisions_by_what_was_set_before_are_refused(observing):
    before = observing.set()
    observing.set(settings=replace(SETTINGS, least=2))
    for write in (
        lambda: observing.groups.record(before, replayed(1), ENGINE),
        lambda: observing.groups.trouble(before, "why", ENGINE),
    ):
        with pytest.raises(LostRaceError, match="has changed since it was read"):
            write()
    assert observing.log() == []


def test_only_the_newest_decisions_are_kept(observing, monkeypatch):
    monkeypatch.setattr(scaling, "KEPT_DECISIONS", 6)
    observing.set()
    observing.write(lines())
    observing.go()
    assert observing.log() == replayed()[-6:]
    page = observing.groups.decisions(GROUP, after=replayed()[-4]["at_s"], limit=2)
    assert page == replayed()[-3:-1]


def test_a_group_of_another_release_is_named_and_holds_up_no_other_one(observing, database):
    other = str(uuid.uuid4())
    observing.set(other)
    with database.transaction() as connection:
        connection.execute(tables.scaling_group.update().values(settings={"alpha": 1}))
    observing.set()
    observing.write(lines())
    observing.go()
    assert observing.log() == replayed()
    assert {name for name, _ in observing.troubles} == {other}
    with pytest.raises(UnreadableError, match="does not know: KeyError"):
        observing.groups.read(other)


def test_an_engine_that_leads_observes_and_one_that_stops_ends_its_processes(tmp_path, monkeypatch):
    made = []

    def models(season, timeout_s):
        assert (season, timeout_s) == (SETTINGS.season_periods, 30.0)
        made.append(Models())
        return made[-1]

    monkeypatch.setattr(engine, "ModelsBeside", models)
    world = World(tmp_path, scaling_traces=tmp_path)
    observing = Observing(world.database, tmp_path)
    observing.set()
    observing.write(lines())
    for _ in range(4):
        world.engine.round()
    until(lambda: world.engine.round() and observing.log() == replayed())
    closed = Models.closed
    assert world.engine.stop(10.0)
    assert (len(made), Models.closed) == (1, closed + 1)
