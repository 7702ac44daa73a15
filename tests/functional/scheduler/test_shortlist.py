# SPDX-License-Identifier: Apache-2.0
"""The list of hosts in nova's own scheduler: it makes decisions short and refuses nothing, whatever was guessed."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nova.conf import CONF
from nova.scheduler import filters
from nova.scheduler.filters import numa_topology_filter

from benchmarks import nova_scheduler
from benchmarks.cloud import FLAVORS, Cloud, request
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.policy.numa import coarse
from nova_numa_ext.policy.numa.coarse import Coarse
from nova_numa_ext.scheduler import fleet, records, session
from nova_numa_ext.scheduler.shortlist import LaterFilters, SeenHosts, Shortlist

HOSTS = 30
FLAVOR = {flavor.name: flavor for flavor in FLAVORS}


@pytest.fixture(autouse=True)
def view_of_the_cloud(monkeypatch):
    """The benchmark's scheduler shows our plug-ins its cloud; the other tests want their own view."""
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)


@pytest.fixture(scope="module")
def clouds():
    """Clouds in which so many hosts have room; they are filled once::

    30 hosts    so many of them, drawn by lot, have room; the others are nearly sold out
    """
    made = {}

    def cloud(fitting):
        if fitting not in made:
            made[fitting] = Cloud(HOSTS, fitting, fitting)
        return made[fitting]

    return cloud


def selected(cloud, asked, servers, hosts_listed, number=1):
    """Hosts that nova selects for servers of one request, with a list of so many hosts."""
    CONF.set_override("service_down_time", 10**9)
    scheduler = nova_scheduler.Scheduler(cloud, ours=True)
    scheduler.engine = engine_for(cloud, hosts_listed)
    found = scheduler.schedule(number, asked, servers)
    assert not scheduler.faults
    return found


def engine_for(cloud, hosts_listed):
    return session.Engine(CONF, SchedulerOptions(shortlist=hosts_listed), cloud, None)


def guessing(times):
    """So many random guesses, requests and clouds."""
    return settings(
        max_examples=times,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


NUMBERS = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**16))


@guessing(5)
@given(st.sampled_from([1, 12]), st.sampled_from(FLAVORS), NUMBERS)
def test_a_short_list_refuses_nothing_whatever_is_guessed(
    nova_configuration, clouds, fitting, asked, numbers
):
    """Nova places the same number of servers as with all hosts judged, though hosts come in any order."""
    compare_with_all_judged(clouds(fitting), asked, *numbers)


@pytest.mark.long
@guessing(60)
@given(st.integers(0, 12), st.sampled_from(FLAVORS), NUMBERS)
def test_short_lists_refuse_nothing_in_clouds_that_are_full_and_not(
    nova_configuration, clouds, fitting, asked, numbers
):
    compare_with_all_judged(clouds(fitting), asked, *numbers)


def compare_with_all_judged(cloud, asked, servers, listed, seed):
    draw = np.random.default_rng(seed)

    def guess(_asked, _arrays, rows, *_):
        return Coarse(draw.random(len(rows)), draw.random(len(rows)) < draw.random())

    every = selected(cloud, asked, servers, 0).selected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coarse, "coarse", guess)
        assert len(selected(cloud, asked, servers, listed).selected) == len(every)


@pytest.mark.parametrize("seed", range(2))
def test_hosts_that_a_later_filter_refuses_do_not_use_up_the_list(
    nova_configuration, clouds, monkeypatch, seed
):
    """No filter is told that the next one refused all its hosts: here nova's own refuses all but one."""
    only = f"host{random.Random(seed).randrange(HOSTS):05}"
    passes = numa_topology_filter.NUMATopologyFilter.host_passes
    monkeypatch.setattr(
        numa_topology_filter.NUMATopologyFilter,
        "host_passes",
        lambda self, state, spec: state.host == only and passes(self, state, spec),
    )
    asked = FLAVOR["BE"]
    every = selected(clouds(HOSTS), asked, 1, 0).selected
    assert selected(clouds(HOSTS), asked, 1, 4).selected == every


@pytest.fixture
def asked(monkeypatch):
    """How many candidates of a host nova's NUMA filter was asked about each time, by host."""
    passes, found = numa_topology_filter.NUMATopologyFilter.host_passes, {}

    def host_passes(self, state, spec):
        found.setdefault(state.host, []).append(len(state.allocation_candidates))
        return passes(self, state, spec)

    monkeypatch.setattr(numa_topology_filter.NUMATopologyFilter, "host_passes", host_passes)
    return found


def test_nova_is_asked_about_the_best_candidate_of_a_host_first(nova_configuration, clouds, asked):
    """What nova asks of a candidate with devices takes milliseconds, and one that passes is enough for one server."""
    selected(clouds(HOSTS), FLAVOR["LC two nodes"], 1, 4)
    # By us and then by nova itself, and by nova alone.
    assert {tuple(counts) for counts in asked.values()} == {(1, 1), (1,)}


def test_hosts_keep_all_candidates_for_further_servers_and_where_few_have_passed(
    nova_configuration, clouds, asked
):
    """The second server may need what the first left; and with a candidate less nova could refuse the last host."""
    selected(clouds(HOSTS), FLAVOR["LC two nodes"], 2, 4)
    assert {counts[-1] for counts in asked.values()} == {12}
    asked.clear()
    assert selected(clouds(5), FLAVOR["LC two nodes"], 1, 4).selected
    assert max(counts[-1] for counts in asked.values()) == 12


def test_a_filter_of_novas_that_fails_leaves_hosts_all_their_candidates(
    nova_configuration, clouds, monkeypatch
):
    """Nova judges such a request without us, and by all of them."""

    def host_passes(self, _state, _spec):
        raise RuntimeError("a filter failed")

    monkeypatch.setattr(numa_topology_filter.NUMATopologyFilter, "host_passes", host_passes)
    nova_scheduler.Scheduler(clouds(HOSTS), ours=True)  # enables our filter, and nova's after it
    state = SimpleNamespace(uuid="u", host="h", allocation_candidates=[1, 2, 3])
    with pytest.raises(RuntimeError, match="a filter failed"):
        LaterFilters(CONF).passed([state], request(1, FLAVOR["LC two nodes"]))
    assert state.allocation_candidates == [1, 2, 3]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_host_passes_ahead_with_any_of_its_candidates(
    nova_configuration, clouds, monkeypatch, servers
):
    """Here nova takes candidates in the first L3 domain only, which is seldom the best one."""
    passes = numa_topology_filter.NUMATopologyFilter.host_passes

    def host_passes(self, state, spec):
        state.allocation_candidates = [
            each
            for each in state.allocation_candidates
            if any(uuid.endswith("10") for uuid in each["allocations"])
        ]
        return bool(state.allocation_candidates) and passes(self, state, spec)

    monkeypatch.setattr(numa_topology_filter.NUMATopologyFilter, "host_passes", host_passes)
    asked = FLAVOR["LC one node"]
    every = selected(clouds(HOSTS), asked, servers, 0).selected
    assert every
    assert selected(clouds(HOSTS), asked, servers, 4).selected == every


def test_nova_names_the_filter_that_refuses_all(nova_configuration, clouds, monkeypatch):
    """Ours returns some hosts that pass it: nova's log tells then which filter returned none."""
    monkeypatch.setattr(numa_topology_filter.NUMATopologyFilter, "host_passes", lambda *_: False)
    found = selected(clouds(HOSTS), FLAVOR["BE"], 1, 4)
    assert (found.selected, found.passed) == ([], 4)


class Picky(filters.BaseHostFilter):
    """An operator's own filter: it may refuse for any reason, and what it does when asked twice is not known."""

    def host_passes(self, host_state, filter_properties):
        """Accept."""
        return True


def test_a_foreign_filter_after_ours_switches_the_list_off(nova_configuration, clouds):
    cloud = clouds(HOSTS)
    assert selected(cloud, FLAVOR["BE"], 1, 4).passed < HOSTS / 2
    group = "filter_scheduler"
    scheduler = nova_scheduler.Scheduler(cloud, ours=True)
    CONF.set_override(
        "available_filters", [*CONF.filter_scheduler.available_filters, f"{__name__}.Picky"], group
    )
    CONF.set_override("enabled_filters", [*CONF.filter_scheduler.enabled_filters, "Picky"], group)
    scheduler.engine = engine_for(cloud, 4)
    found = scheduler.schedule(1, FLAVOR["BE"])
    assert found.passed > HOSTS / 2


@pytest.mark.parametrize(("servers", "left"), [(1, 1), (2, 12)])
def test_what_is_noted_of_candidates_is_what_nova_sees(nova_configuration, clouds, servers, left):
    cloud = clouds(HOSTS)
    flavor = FLAVOR["LC two nodes"]
    spec = request(1, flavor, servers)
    offered = cloud.offer(spec, flavor)
    states = cloud.host_states(offered)
    for state in states:
        state.allocation_candidates = list(offered[state.uuid])
    nova_scheduler.configure(ours=True, slow=True, shortlist=4)
    engine = engine_for(cloud, 4)
    seen = {
        state.nodename: len(state.allocation_candidates) for state in engine.filter(states, spec)
    }
    found = engine._passes[spec]
    entry = records.filter_entry(None, spec, found, offered=HOSTS, limit=HOSTS)
    noted = {
        each["node"]: (each["candidates_judged"], each["candidates_left"])
        for each in entry["details"]
        if each["node"] in seen
    }
    assert noted == {node: (12, count) for node, count in seen.items()}
    assert set(seen.values()) == {left}


def test_only_the_first_pass_of_a_request_is_cut(nova_configuration, clouds):
    """For its later servers nova shows only what the first pass left: all of these are judged."""
    cloud = clouds(HOSTS)
    spec = request(1, FLAVOR["BE"], 2)
    states = cloud.host_states(cloud.offer(spec, FLAVOR["BE"]))
    for state in states:
        state.allocation_candidates = list(cloud.offer(spec, FLAVOR["BE"])[state.uuid])
    nova_scheduler.configure(ours=True, slow=True, shortlist=4)
    engine = engine_for(cloud, 4)
    first = engine.filter(states, spec)
    assert len(first) < len(states)
    assert len(engine.filter(states, spec)) > len(first)


@pytest.mark.parametrize("flavor", ["four GPUs", "SR-IOV"])
def test_hosts_without_the_devices_that_are_asked_for_are_judged_last(
    nova_configuration, monkeypatch, flavor
):
    """As far as an earlier request has seen their devices: it orders hosts, so fewer are judged in vain."""
    cloud, asked, refused = Cloud(400, 7), FLAVOR[flavor], []
    judge = Shortlist.judge

    def noting(self, question, verdict):
        judged, left = judge(self, question, verdict)
        refused.append(len(judged.refused))
        return judged, left

    monkeypatch.setattr(Shortlist, "judge", noting)
    selected(cloud, asked, 1, 12)
    known = SeenHosts.known
    monkeypatch.setattr(SeenHosts, "known", lambda *args: (known(*args)[0], []))
    selected(cloud, asked, 1, 12)
    assert refused[0] < refused[1] / 2


@pytest.mark.parametrize(
    "flavor", ["LC one node", "LC two nodes", "LC rabbit", "BE", "BE two nodes", "SR-IOV"]
)
def test_the_best_host_of_all_is_in_a_short_list(nova_configuration, clouds, flavor):
    """What is guessed of a host whose NUMA cells are known is what the judge finds."""
    for number in range(2):
        every = selected(clouds(HOSTS), FLAVOR[flavor], 1, 0, number).selected
        assert selected(clouds(HOSTS), FLAVOR[flavor], 1, 6, number).selected == every
