# SPDX-License-Identifier: Apache-2.0
"""Beats in the real Placement: one request to write, one to read a fleet's, and no view reads a tree for them."""

import uuid
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from host_agent.report.beat import Beat, Paid
from placement_traits import beats, names, removal, server_costs
from placement_traits.beats import EVERY_MINUTES, SILENT_AFTER_MINUTES, SPREAD, BeatWriter, LastBeat
from placement_traits.client import PlacementError
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import TierTrait
from placement_traits.reporter import Reporter
from placement_traits.server_costs import CostWriter
from placement_traits.view import FleetView, ViewSettings
from tests.support.faults import FaultyAdapter, every, lose_answer

NOW_S = 1_795_000_000.0
MINUTE = 60.0


class Time:
    """The clock of an agent, and of readers: seconds since 1970."""

    def __init__(self):
        self.now_s = NOW_S

    def __call__(self):
        return self.now_s

    def after(self, minutes):
        self.now_s = NOW_S + minutes * MINUTE


@pytest.fixture
def time():
    return Time()


def living(cloud, time, *hosts):
    found = beats.living(cloud.client, time)
    return [host for host in hosts if not beats.is_silent(host, found)]


def test_a_beat_is_a_root_of_its_own_with_the_minute_as_its_total(empty_cloud, time):
    writer = BeatWriter(empty_cloud.client, "h1", time)
    assert writer.age_minutes() is None
    writer.beat()
    minute = int(NOW_S // 60)
    assert empty_cloud.everything() == {
        "beat:h1": (None, {names.BEAT}, {names.BEAT_MINUTE: (minute, 0, 1, 2**31 - 1)})
    }
    assert beats.last(empty_cloud.client, "h1") == LastBeat(minute, None)
    assert beats.last(empty_cloud.client, "h2") is None
    assert beats.hosts(empty_cloud.client) == {"h1"}


def test_a_beat_whose_creation_was_cut_is_found_from_the_next_one_on(empty_cloud, time):
    uuid = beats.provider_uuid("h1")
    empty_cloud.client.post("/resource_providers", {"name": "beat:h1", "uuid": uuid})
    assert beats.hosts(empty_cloud.client) == set()
    BeatWriter(empty_cloud.client, "h1", time).beat()
    assert beats.hosts(empty_cloud.client) == {"h1"}


def test_what_was_withheld_comes_with_a_beat_of_an_earlier_release_too(empty_cloud, time):
    BeatWriter(empty_cloud.client, "h1", time).beat()
    client = empty_cloud.connect()
    writer = BeatWriter(client, "h1", time)
    for withheld in (0, 123, 2000):
        writer.beat(withheld)
        minute = int(NOW_S // 60)
        assert beats.last(empty_cloud.client, "h1") == LastBeat(minute, min(withheld, 1000))
        assert living(empty_cloud, time, "h1") == ["h1"]
    before = client.counters.requests
    writer.beat(7)
    assert client.counters.requests == before + 1
    writer.beat(None)
    assert beats.last(empty_cloud.client, "h1") == LastBeat(minute, None)


def test_a_further_beat_is_one_request(empty_cloud, time):
    BeatWriter(empty_cloud.client, "h1", time).beat()
    client = empty_cloud.connect()
    writer = BeatWriter(client, "h1", time)
    time.after(20)
    assert writer.age_minutes() == pytest.approx(20, abs=1)
    writer.beat()
    before = client.counters.requests
    time.after(50)
    writer.beat()
    assert client.counters.requests == before + 1
    assert beats.last(client, "h1") == LastBeat(int(time() // 60), None)


def test_who_has_not_beaten_for_three_intervals_is_not_among_the_living(empty_cloud, time):
    for host in ("h1", "h2"):
        BeatWriter(empty_cloud.client, host, time).beat()
    time.after(SILENT_AFTER_MINUTES)
    assert living(empty_cloud, time, "h1", "h2") == ["h1", "h2"]
    BeatWriter(empty_cloud.client, "h2", time).beat()
    time.after(SILENT_AFTER_MINUTES + 1)
    assert living(empty_cloud, time, "h1", "h2") == ["h2"]
    assert beats.hosts(empty_cloud.client) == {"h1", "h2"}


def test_the_living_of_a_fleet_are_one_request(empty_cloud, time):
    for number in range(5):
        BeatWriter(empty_cloud.client, f"h{number}", time).beat()
    client = empty_cloud.connect()
    assert len(beats.living(client, time)) == 5
    assert client.counters.requests == 1


def test_before_the_first_beat_of_a_cloud_none_is_missed(empty_cloud, time):
    before = beats.living(empty_cloud.client, time)
    assert not beats.is_silent("h1", before)
    BeatWriter(empty_cloud.client, "h2", time).beat()
    since = beats.living(empty_cloud.client, time)
    assert [host for host in ("h1", "h2") if beats.is_silent(host, since)] == ["h1"]


def test_of_a_cloud_without_beats_none_is_left_over(empty_cloud):
    assert beats.hosts(empty_cloud.client) == frozenset()


def test_clocks_that_differ_move_the_moment_by_as_much(empty_cloud, time):
    """An agent whose clock is 30 minutes behind lives; one that is an hour ahead is missed an hour later."""
    BeatWriter(empty_cloud.client, "behind", lambda: NOW_S - 30 * MINUTE).beat()
    BeatWriter(empty_cloud.client, "ahead", lambda: NOW_S + 60 * MINUTE).beat()
    time.after(EVERY_MINUTES * (1 + SPREAD))
    assert living(empty_cloud, time, "behind", "ahead") == ["behind", "ahead"]
    time.after(SILENT_AFTER_MINUTES + 59)
    assert living(empty_cloud, time, "behind", "ahead") == ["ahead"]
    time.after(SILENT_AFTER_MINUTES + 61)
    assert living(empty_cloud, time, "behind", "ahead") == []


def test_a_beat_costs_views_no_reading_of_a_tree(reported_compute, time):
    view = FleetView(reported_compute.adapter, background=False)
    view.refresh()
    writer = BeatWriter(reported_compute.client, "h1", time)
    for number in range(3):
        time.after(30 * number)
        writer.beat()
        view.refresh()
    assert (view.stats.trees_read, view.stats.full_reads) == (0, 1)
    assert set(view.snapshot().hosts) == {reported_compute.root}


def test_a_complete_reading_marks_the_hosts_whose_agents_are_silent(reported_compute, time):
    """One request more, for the whole fleet; the mark stays until the next complete reading."""
    tiers = set(TierTrait)
    view = FleetView(reported_compute.adapter, ViewSettings(full_interval_s=0), background=False)

    def traits():
        view.refresh()
        host = view.snapshot().host(reported_compute.root)
        return host.traits & {*tiers, names.SILENT}

    assert traits() == tiers, "no agent of this cloud has ever beaten"
    requests = view.stats.requests
    BeatWriter(reported_compute.client, "other").beat()
    assert traits() == {*tiers, names.SILENT}
    assert view.stats.requests == 2 * requests + 1
    incremental = FleetView(reported_compute.adapter, background=False)
    incremental.refresh()
    BeatWriter(reported_compute.client, "h1").beat()
    reported_compute.claim(
        str(uuid.uuid4()),
        allocations={reported_compute.uuid("h1:l3_0"): {"CUSTOM_LLC_WAY": 1}},
    )
    incremental.refresh()
    assert incremental.snapshot().host(reported_compute.root).silent
    assert traits() == tiers
    Reporter(reported_compute.client).withdraw_tiers("h1")
    reported_compute.client.delete(f"/resource_providers/{beats.provider_uuid('h1')}")
    assert traits() == set(), "that shows by itself"


def test_nova_makes_its_tree_again_and_the_beat_goes_on(one_compute, time):
    writer = BeatWriter(one_compute.client, "h1", time)
    writer.beat()
    one_compute.client.delete(f"/resource_providers/{one_compute.root}")
    one_compute.compute("h1")
    time.after(30)
    writer.beat()
    assert beats.last(one_compute.client, "h1") == LastBeat(int(time() // 60), None)


def test_a_beat_that_was_removed_is_made_again(empty_cloud, time):
    writer = BeatWriter(empty_cloud.client, "h1", time)
    writer.beat()
    empty_cloud.client.delete(f"/resource_providers/{beats.provider_uuid('h1')}")
    writer.beat()
    assert beats.hosts(empty_cloud.client) == {"h1"}


def test_the_first_beat_survives_lost_answers(empty_cloud, time):
    """Each request of the first beat in turn arrives, and its answer gets lost."""
    for lost in range(8):
        host = f"h{lost}"
        faults = every(iter([*[None] * lost, lose_answer]))
        client = empty_cloud.connect(FaultyAdapter(empty_cloud.adapter, faults))
        BeatWriter(client, host, time).beat()
        assert beats.last(empty_cloud.client, host) == LastBeat(int(time() // 60), None)


def test_a_name_that_is_taken_is_said(empty_cloud, time):
    empty_cloud.client.post("/resource_providers", {"name": "beat:h1"})
    with pytest.raises(PlacementError, match="beat:h1"):
        BeatWriter(empty_cloud.client, "h1", time).beat()


class Noted:
    """A writer whose host's beat has an age; it notes when it beats."""

    def __init__(self, time, age_minutes):
        self.time, self.age, self.beaten = time, age_minutes, []

    def age_minutes(self):
        return self.age

    def beat(self, _withheld):
        self.beaten.append((self.time() - NOW_S) / MINUTE)


def turns(writer, time, minutes, random=lambda: 0.5):
    beat = Beat(writer, clock=time, random=random)
    for minute in range(minutes):
        time.after(minute)
        beat.turn()
    return writer.beaten


@pytest.mark.parametrize(
    ("age", "beaten"),
    [(None, [0, 30, 60, 90]), (500, [0, 30, 60, 90]), (-5, [0, 30, 60, 90]), (10, [20, 50, 80])],
)
def test_an_agent_goes_on_with_the_beat_that_is_there(time, age, beaten):
    """Ten thousand agents that are upgraded at once write nothing for it."""
    assert turns(Noted(time, age), time, 100) == beaten


def test_agents_spread_out(time):
    early, late = (turns(Noted(time, None), time, 60, lambda r=r: r) for r in (0.0, 0.999))
    assert (early, late) == ([0, 24, 48], [0, 36])


def test_a_beat_that_failed_is_attempted_at_the_next_turn(time):
    writer = Noted(time, None)
    beat = Beat(writer, clock=time, random=lambda: 0.5)
    works = writer.beat

    def fails(_withheld):
        raise ServiceUnavailableError("Placement is down")

    writer.beat = fails
    with pytest.raises(ServiceUnavailableError):
        beat.turn()
    writer.beat = works
    time.after(1)
    beat.turn()
    assert writer.beaten == [1]


def test_a_beat_that_failed_loses_nothing_of_what_was_withheld(time):
    """Until Placement answers again the time counts that has passed since the last beat that it took."""
    written, sums = [], [Paid()]
    by_server = SimpleNamespace(write=lambda found: written.append(dict(found)))
    writer = SimpleNamespace(age_minutes=lambda: None, beat=written.append)
    beat = Beat(writer, costs=lambda: sums[0], by_server=by_server, clock=time, random=lambda: 0.5)
    beat.turn()
    time.after(30)
    sums[0] = Paid(1000.0, 500.0, {"lc": 400.0})
    writer.beat = Mock(side_effect=ServiceUnavailableError("down"))
    with pytest.raises(ServiceUnavailableError):
        beat.turn()
    writer.beat = written.append
    sums[0] = Paid(2000.0, 500.0, {"lc": 400.0, "other": 100.0})
    beat.turn()
    assert written == [None, {}, 250, {"lc": 200, "other": 50}]


def test_costs_that_cannot_be_written_are_attempted_again_without_a_beat(time):
    beaten, written, sums = [], [], [Paid()]
    refusing = SimpleNamespace(write=Mock(side_effect=ServiceUnavailableError("down")))
    writer = SimpleNamespace(age_minutes=lambda: None, beat=beaten.append)
    beat = Beat(writer, costs=lambda: sums[0], by_server=refusing, clock=time, random=lambda: 0.5)
    for minute in (0, 1, 2):
        time.after(minute)
        with pytest.raises(ServiceUnavailableError):
            beat.turn()
    sums[0] = Paid(1000.0, 500.0, {"lc": 400.0})
    refusing.write = written.append
    beat.turn()
    beat.turn()
    assert (beaten, written) == ([None], [{}])


def test_what_servers_cost_is_below_the_beat_and_an_unchanged_figure_costs_no_request(
    empty_cloud, time
):
    """One agent after the other: the second removes what its servers do not cost any more."""
    client, path = empty_cloud.client, f"/resource_providers/{beats.provider_uuid('h1')}"
    BeatWriter(client, "h1", time).beat(123)
    writer = CostWriter(client, "h1")
    writer.write({"a": 100, "b": 23, "c": 0})
    assert server_costs.of_host(client, "h1") == {"a": 100, "b": 23}
    assert server_costs.of_host(client, "h2") == {}
    there = {name: parent for name, (parent, _, _) in empty_cloud.everything().items()}
    assert there == {"beat:h1": None, "cost:h1:a": "beat:h1", "cost:h1:b": "beat:h1"}
    assert client.get(f"{path}/traits")["traits"] == [names.BEAT]
    silent = CostWriter(client, "h1")
    silent.write({"a": 100, "b": 23})
    silent._client = Mock(side_effect=AssertionError("a request"))
    silent.write({"a": 100, "b": 23})
    CostWriter(client, "h1").write({"b": 7})
    assert server_costs.of_host(client, "h1") == {"b": 7}
    assert living(empty_cloud, time, "h1") == ["h1"]


def test_a_write_that_failed_is_done_by_the_next_one(empty_cloud, time):
    BeatWriter(empty_cloud.client, "h1", time).beat(0)
    writer = CostWriter(empty_cloud.client, "h1")
    works, writer._client = writer._client, Mock(side_effect=ServiceUnavailableError)
    writer._client.get.side_effect = ServiceUnavailableError("down")
    with pytest.raises(ServiceUnavailableError):
        writer.write({"a": 100})
    writer._client = works
    writer.write({"a": 100})
    assert server_costs.of_host(works, "h1") == {"a": 100}


def test_a_host_is_removed_with_what_its_servers_cost(empty_cloud, time):
    BeatWriter(empty_cloud.client, "h1", time).beat(123)
    CostWriter(empty_cloud.client, "h1").write({"a": 100})
    assert removal.remove(empty_cloud.client, "h1").removed == ("beat:h1",)
    assert empty_cloud.everything() == {}
