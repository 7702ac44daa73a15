# SPDX-License-Identifier: Apache-2.0
"""Rounds of the service's queue over a fleet that Placement shows now and then."""

import logging
import math
from dataclasses import replace

import pytest
from oslo_config import cfg

from nova_numa_ext.orchestrator import conf as jobs_conf
from nova_numa_ext.orchestrator import decide
from nova_numa_ext.orchestrator.decide import HostQueue
from nova_numa_ext.orchestrator.store.stored_job import Sizes, Step
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.limits import Limits
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from nova_numa_ext.policy.jobs.queue_settings import Discipline, QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import sentence
from nova_numa_ext.policy.network.groups import PlanOptions, PolicyName
from nova_numa_ext.policy.network.singles import Singles
from placement_traits import names
from placement_traits.errors import InvalidValueError, ServiceUnavailableError
from placement_traits.reason import Reason
from tests.support.job_hosts import amounts, machine, root, uuid, view
from tests.support.jobs_database import part, stored_job

NOW = 1_000_000.0
LC = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "resources:CUSTOM_RDT_CLOS": "1",
}


class Hosts:
    """One host without an agent, on which VCPUs are free; read when told."""

    def __init__(self, vcpus):
        self.shows(vcpus)

    def shows(self, free):
        self.view = view(a=amounts(vcpus=32, used=32 - free))

    def read(self, freed=()):
        self.freed = set(freed)
        return self.view


def job(uuid, vcpus=4, **fields):
    """One server of a flavor without an extra spec."""
    sizes = Sizes(vcpus, 1024, 0)
    members = {key: fields.pop(key) for key in ("servers", "hosts") if key in fields}
    one = part("p", count=fields.pop("count", 1), sizes=sizes, extra_specs={}, **members)
    return stored_job(uuid=uuid, parts=(one,), **fields)


def queue(hosts, **settings):
    return HostQueue(hosts, QueueSettings(**settings), PlannerSettings())


def active(uuid, decided, state, **fields):
    """A job as the saga has carried it on."""
    return job(uuid, plan=decided.starts[uuid], state=state, **fields)


def test_jobs_start_until_the_host_is_full_and_the_others_say_why_they_wait():
    decided = queue(Hosts(8)).decide([job("1"), job("2"), job("3")], [], NOW)
    assert list(decided.starts) == ["1", "2"]
    assert [place.host for place in decided.starts["1"].places] == [root("a")]
    assert [str(each) for each in decided.waits["3"]] == ["no_room[p]=0 (against 1)"]


def test_places_are_taken_until_placement_shows_the_servers():
    """Planned, building, placed by nova, and all the time Placement was not read again; then it is."""
    hosts = Hosts(4)
    rounds = queue(hosts)
    first = rounds.decide([job("1")], [], NOW)
    waiting = [job("2")]
    for state, members in (
        (JobState.PLANNED, {}),
        (JobState.BUILDING, {}),
        (JobState.BUILDING, {"servers": {0: "s"}}),
        (JobState.BUILDING, {"servers": {0: "s"}, "hosts": {0: root("a")}}),
        (JobState.RUNNING, {"servers": {0: "s"}, "hosts": {0: root("a")}}),
    ):
        there = active("1", first, state, **members)
        assert not rounds.decide(waiting, [there], NOW).starts, (state, members)
    hosts.shows(4)
    assert list(rounds.decide(waiting, [there], NOW).starts) == ["2"], "what it shows is free"
    hosts.shows(0)
    assert not rounds.decide(waiting, [there], NOW).starts


def test_hosts_on_which_jobs_have_freed_something_are_named_for_a_while():
    """A server that was made again elsewhere, a job that has ended; nova frees the places a little later."""
    hosts = Hosts(32)
    rounds = queue(hosts)
    first = rounds.decide([job("1")], [], NOW)
    planned = {"count": 2, "servers": {0: "s", 1: "t"}}
    there = active("1", first, JobState.BUILDING, **planned, hosts={0: root("b"), 1: root("c")})
    moved = active("1", first, JobState.RUNNING, **planned, hosts={0: root("b"), 1: root("d")})
    found = []
    for now, running in ((0, [there]), (5, [moved]), (10, []), (20, []), (36, []), (41, [])):
        rounds.decide([], running, NOW + now)
        found.append(hosts.freed)
    ended = {root("a"), root("b"), root("d")}
    assert found == [set(), {root("c")}, {root("c")} | ended, {root("c")} | ended, ended, set()]


def test_a_job_that_has_changed_is_read_again():
    """Of the same uuid, in the same round after round: what is known of it is what was read last."""
    rounds = queue(Hosts(8))
    assert list(rounds.decide([job("1", vcpus=9)], [], NOW).waits) == ["1"]
    for _ in range(2):
        assert list(rounds.decide([job("1", vcpus=8)], [], NOW).starts) == ["1"]
    assert list(rounds.decide([job("1", vcpus=8, held=True)], [], NOW).waits) == ["1"]


def test_a_project_at_its_quota_tries_one_job_at_a_time_and_others_start_meanwhile():
    """What nova has said to one job holds for all of its project; a few more start after each that is not refused."""
    rounds = queue(Hosts(32))
    refused = job(
        "first",
        1,
        reasons=(Reason("quota", "403"),),
        not_before=NOW + 900.0,
        refusals=6,
    )
    others = [job(f"o{number}", 1) for number in range(8)]
    foreign = job("foreign", 1, project="other")
    found = rounds.decide([refused, *others, foreign], [], NOW)
    assert list(found.starts) == ["foreign"]
    assert sentence(found.waits["o0"][0]) == (
        "a quota of the project is used up, one of its jobs is tried again in 60 s"
    )
    backs_off = replace(refused, reasons=found.waits["first"])
    started, now = [], NOW
    for seconds in (30.0, 31.0, 30.0, 31.0, 30.0, 31.0):
        now += seconds
        found = rounds.decide([backs_off, *others], [], now)
        started.append(len(found.starts))
        others = [each for each in others if each.uuid not in found.starts]
    assert started == [0, 1, 0, 2, 0, 4]
    now += 61.0
    again = replace(refused, not_before=now + 30.0)
    assert not rounds.decide([again, *others], [], now).starts, (
        "one that nova refuses begins it anew"
    )


def test_an_engine_that_has_just_begun_to_lead_counts_what_placement_shows_once():
    """Three of four VCPUs are taken, by a job that runs."""
    there = job(
        "1", 3, state=JobState.RUNNING, servers={0: "s"}, hosts={0: root("a")}, started_at=0.0
    )
    assert list(queue(Hosts(1)).decide([job("2", 1)], [there], NOW).starts) == ["2"]


def test_a_latency_critical_job_has_a_best_effort_one_stopped_that_allows_it():
    """All memory of the host is planned for the first. Ways of the second are held until its places are seen."""
    hosts = Hosts(32)
    hosts.view = view(machine("a"))
    rounds = queue(hosts, preempt=True)
    memory = Sizes(1, 65_536, 0)
    be = {"numa_ext:tier": "BE"}
    lc = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "4"}
    first = stored_job(uuid="be", parts=(part("p", count=1, sizes=memory, extra_specs=be),))
    plan = rounds.decide([first], [], NOW).starts["be"]
    first = replace(first, plan=plan, state=JobState.PLANNED, preemptible=True)
    second = stored_job(uuid="lc", parts=(part("p", count=1, sizes=memory, extra_specs=lc),))
    decided = rounds.decide([second], [first], NOW)
    assert decided.preempted == {"be": Reason("preempted", "lc")}
    assert "lc" in decided.waits
    held = decided.reserved["lc"]
    assert {(each.provider, each.amount) for each in held} == {(uuid("a 0"), 4), (uuid("a rdt"), 1)}
    hosts.view = view(machine("a", ways=4))
    hosts.view.used[hosts.view.classes["MEMORY_MB"]] = 65_536  # as if the first still ran
    second = replace(second, reserved=held)
    assert rounds.decide([second], [], NOW + 10).reserved == {"lc": held}
    hosts.view = view(machine("a", ways=4))
    decided = rounds.decide([second], [], NOW + 20)
    assert (list(decided.starts), decided.reserved) == (["lc"], {})


def with_ways(uuid, ways, memory_mb, count=1, **fields):
    """A latency-critical job of servers that each take ways of one L3 domain."""
    specs = {**LC, "resources_NODE:CUSTOM_LLC_WAY": str(ways)}
    one = part("p", count=count, sizes=Sizes(1, memory_mb, 0), extra_specs=specs)
    return stored_job(uuid=uuid, parts=(one,), **fields)


def held_of(decided, job):
    return {(each.provider, each.amount) for each in decided.reserved[job]}


@pytest.fixture
def reserved():
    """A host on whose memory a job waits that has the reservation of EASY::

    a   65,536 MB, of which a job has 40,000 for an hour; 13 ways in each of two domains, 4 of one held for "first"
    """
    hosts = Hosts(32)
    hosts.view = view(machine("a"))
    rounds = queue(hosts)
    sizes, be = Sizes(1, 40_000, 0), {"numa_ext:tier": "BE"}
    long = stored_job(
        uuid="long", walltime_s=3600.0, parts=(part("p", count=1, sizes=sizes, extra_specs=be),)
    )
    plan = rounds.decide([long], [], NOW).starts["long"]
    long = replace(long, plan=plan, state=JobState.PLANNED)
    first = with_ways("first", 4, 60_000)
    decided = rounds.decide([first], [long], NOW)
    assert held_of(decided, "first") == {(uuid("a 0"), 4), (uuid("a rdt"), 1)}
    hosts.view = view(machine("a", ways=4))
    return hosts, rounds, long, replace(first, reserved=decided.reserved["first"])


def test_what_is_free_of_a_reservation_is_held(reserved):
    """As long as it stays so, nothing is written; servers that users make beside the queue find it taken."""
    _, rounds, long, first = reserved
    for seconds in (10, 20, 100):
        decided = rounds.decide([first], [long], NOW + seconds)
        assert decided.reserved == {"first": first.reserved}


def test_a_job_that_ends_in_time_uses_what_is_held_for_the_first_one(reserved):
    """Its two servers need both domains: what is held is given back before nova is asked for them."""
    hosts, rounds, long, first = reserved
    short = with_ways("short", 10, 512, count=2, walltime_s=600.0)
    decided = rounds.decide([first, short], [long], NOW + 10)
    assert (list(decided.starts), decided.reserved) == (["short"], {"first": ()})
    first = replace(first, reserved=())
    building = replace(short, plan=decided.starts["short"], state=JobState.BUILDING)
    hosts.view = view(machine("a"))
    for seconds in (12, 80):
        decided = rounds.decide([first], [long, building], NOW + seconds)
        assert decided.reserved == {"first": ()}, "Placement does not show its servers yet"
    decided = rounds.decide([first], [long], NOW + 90)
    assert held_of(decided, "first") == {(uuid("a 0"), 4), (uuid("a rdt"), 1)}


def test_what_was_given_back_is_room_before_placement_shows_it(reserved):
    """Four ways are shown as used that nothing holds any more."""
    _, rounds, long, first = reserved
    assert rounds.decide([first], [long], NOW + 10).reserved == {"first": first.reserved}
    full = with_ways("full", 13, 512, count=2, walltime_s=600.0)
    first = replace(first, reserved=())
    assert list(rounds.decide([first, full], [long], NOW + 20).starts) == ["full"]


def test_more_is_held_once_a_minute_at_most(reserved):
    """Each change is an event of the job, and a write to Placement."""
    _, rounds, long, first = reserved
    less = first.reserved[:1]
    for seconds, held in ((10, less), (69, less), (71, first.reserved), (72, first.reserved)):
        decided = rounds.decide([replace(first, reserved=less)], [long], NOW + seconds)
        assert decided.reserved == {"first": held}


def test_jobs_that_take_nothing_that_is_held_leave_it_as_it_is(reserved):
    _, rounds, long, first = reserved
    plain = job("plain", 1, walltime_s=600.0)
    decided = rounds.decide([first, plain], [long], NOW + 10)
    assert (list(decided.starts), decided.reserved) == (["plain"], {"first": first.reserved})


def test_what_placement_has_not_granted_is_no_room():
    """It is stored that five ways may be held; Placement was read again and has them free, or others took them."""
    hosts = Hosts(32)
    hosts.view = view(machine("a"))
    rounds = queue(hosts)
    ways = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "5"}
    sizes = Sizes(1, 512, 0)
    large = stored_job(uuid="large", parts=(part("p", count=6, sizes=sizes, extra_specs=ways),))
    waits = stored_job(
        uuid="held",
        held=True,
        reserved=(ProviderAmount(uuid("a 0"), names.LLC_WAY, 5),),
        steps=(Step("reservation", uuid("consumer")),),
    )
    assert not rounds.decide([large, waits], [], NOW).starts


def test_what_is_held_for_a_job_is_no_more_room_before_placement_shows_it():
    """26 ways on the host: five are held for a job since Placement was read, and six times five are not there."""
    hosts = Hosts(32)
    hosts.view = view(machine("a"))
    rounds = queue(hosts)
    ways = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "5"}
    sizes = Sizes(1, 512, 0)
    large = stored_job(uuid="large", parts=(part("p", count=6, sizes=sizes, extra_specs=ways),))
    waits = stored_job(uuid="held", held=True)
    assert not rounds.decide([large, waits], [], NOW).starts
    waits = replace(waits, reserved=(ProviderAmount(uuid("a 0"), names.LLC_WAY, 5),))
    assert not rounds.decide([large, waits], [], NOW + 1).starts
    hosts.view = view(machine("a", ways=5))
    assert not rounds.decide([large, waits], [], NOW + 2).starts


@pytest.mark.parametrize(("pause_s", "given_up"), [(30.0, True), (90.0, False)])
def test_a_job_is_given_up_when_this_engine_found_all_the_time_that_it_can_never_start(
    pause_s, given_up
):
    """While another engine led, the job may have had a place."""
    rounds = queue(Hosts(32), unsatisfiable_s=300.0)
    large = job("large", vcpus=64)
    found = [rounds.decide([large], [], NOW + pause_s * each) for each in range(11)]
    assert [each.term for each in found[0].waits["large"]] == ["too_large"]
    assert any(each.ended for each in found) is given_up


@pytest.mark.parametrize(
    "broken",
    [
        {"walltime_s": math.nan},
        {"priority": "high"},
        {"parts": (part("p", extra_specs={"numa_ext:tier": "gold"}),)},
        {"parts": (part("p"), part("p"))},
        {"parts": ()},
        {"parts": (part("p", sizes=None),)},
    ],
)
@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_job_that_cannot_be_read_holds_up_no_other(broken, state, caplog):
    bad = stored_job(uuid="bad", state=state, **broken)
    good = job("good")
    rounds = queue(Hosts(4))
    for _ in range(2):
        waiting, having = ([bad, good], []) if state is JobState.QUEUED else ([good], [bad])
        decided = rounds.decide(waiting, having, NOW)
        assert list(decided.starts) == ["good"]
        if state is JobState.QUEUED:
            (reason,) = decided.waits["bad"]
            assert sentence(reason).startswith("what is stored of it cannot be read")
    assert [each.levelno for each in caplog.records] == [logging.ERROR], "it is said once"


def test_nobody_starts_while_placement_does_not_answer():
    class Silent:
        def read(self, freed=()):
            raise ServiceUnavailableError("Placement does not answer")

    with pytest.raises(ServiceUnavailableError):
        queue(Silent()).decide([job("1")], [], NOW)


def test_what_the_queue_decides_is_passed_on():
    """Given up, too large, postponed: the reasons are those of the queue."""
    jobs = [
        job("late", max_wait_s=5.0, queued_at=NOW - 60),
        job("large", vcpus=64, queued_at=NOW),
        job("held", held=True, queued_at=NOW),
    ]
    decided = queue(Hosts(4)).decide(jobs, [], NOW)
    assert decided.starts == {}
    assert decided.ended["late"] == (Reason("max_wait", 60, 5),)
    assert {**decided.ended, **decided.waits}["large"]
    assert [each.term for each in decided.waits["held"]] == ["held"]


# Options --------------------------------------------------------------------------------------------------------------


def configured(tmp_path, *lines):
    file = tmp_path / "jobs.conf"
    file.write_text("\n".join((f"[{jobs_conf.GROUP}]", *lines)))
    conf = cfg.ConfigOpts()
    jobs_conf.register_opts(conf)
    conf([], default_config_files=[str(file)])
    return conf


def test_the_queue_is_as_the_file_says(tmp_path):
    conf = configured(
        tmp_path,
        "discipline = fcfs",
        "ageing_per_hour = 0",
        "preempt = true",
        "postponement_s = 5",
        "unsatisfiable_s = 8",
        "project_jobs = 3",
        "jobs_of_projects = rich:9",
        "servers_of_projects = poor:1,rich:99",
        "project_leases = 5",
        "project_gpu_memory_mb = 4000",
        "leases_of_projects = rich:50",
        "gpu_memory_mb_of_projects = poor:1000",
    )
    settings = jobs_conf.read(conf).queue
    assert (settings.discipline, settings.ageing_per_hour) == (Discipline.FCFS, 0.0)
    assert (settings.preempt, settings.postponement_s, settings.unsatisfiable_s) == (True, 5.0, 8.0)
    assert settings.limited
    assert settings.limits_of("rich") == Limits(9, 99, 50, 4000)
    assert settings.limits_of("poor") == Limits(3, 1, 5, 1000)
    assert settings.limits_of("another") == Limits(3, None, 5, 4000)


def test_the_queue_of_an_empty_file_is_the_one_that_nothing_was_said_of(tmp_path):
    found = jobs_conf.read(configured(tmp_path))
    assert (found.queue, found.planning.planner) == (QueueSettings(), PlannerSettings())
    assert not found.queue.limited


def test_groups_get_leafs_as_the_file_says(tmp_path):
    lines = ("net_policy = balanced", "net_remainders = 0", "net_singles = refuse")
    planner = decide.made(configured(tmp_path, *lines), None)._planner
    assert planner.leafs == PlanOptions(PolicyName.BALANCED, remainders_most=0)
    assert planner.singles is Singles.REFUSE


def test_what_a_pci_alias_and_a_gpu_option_say_is_checked_at_the_start(tmp_path):
    assert decide.made(configured(tmp_path), None)
    for line, sentence_part in (
        ("pci_alias = gpu", r"\[pci\]alias.*JSON object"),
        ("gpu_profiles = /none.yaml", r"\[numa_ext_jobs\]gpu_profiles"),
        ("aggregate = gpu-hosts", r"\[numa_ext_jobs\]aggregate"),
    ):
        with pytest.raises(InvalidValueError, match=sentence_part):
            decide.made(configured(tmp_path, line), None)
