# SPDX-License-Identifier: Apache-2.0
"""What an engine says of itself and of the queue, as Prometheus reads it."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from nova_numa_ext.metrics import Exporter
from nova_numa_ext.orchestrator.metrics import METRICS, EngineMetrics
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import Election
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import LIVING, Leases
from nova_numa_ext.orchestrator.store.scaling import Act, ScalingGroups, ScalingSource
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice, LeaseTransfer
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.errors import ServiceUnavailableError
from placement_traits.reason import Reason
from tests.support.jobs_database import new_job
from tests.support.jobs_world import World
from tests.support.lease_service import ASKED, SERVER

PLACED = (Reason(JobTerm.PLACED, "h"),)
MOVED_ONCE = 'numa_ext_jobs_moves_total{state="planned",term="placed"}'


class NoGroups:
    """No elastic group is stored."""

    def counts(self):
        return 0, 0, 0

    def members(self):
        return {}


class NoLeases:
    """No lease is stored."""

    def counts(self):
        return {}

    def held_mb(self):
        return 0

    def pools(self):
        return {}

    def moved_lately(self, _seconds):
        return 0


def scraped(metrics, jobs, groups=None, leases=None):
    """Lines with a value, by metric and labels."""
    groups, leases = groups or NoGroups(), leases or NoLeases()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exporter(lambda: metrics.samples(jobs, groups, leases), metrics=METRICS))
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_queue_moves_and_rounds_are_counted(database):
    metrics = EngineMetrics()
    jobs = Jobs(database, lambda job, why: metrics.moved(job.state, why))
    first, _second = jobs.create(new_job("first")), jobs.create(new_job("second"))
    engine = Actor("e")
    for state, term in (
        (JobState.PLANNED, JobTerm.PLACED),
        (JobState.CLAIMED, JobTerm.CLAIMED),
        (JobState.ENDING, JobTerm.NO_VALID_HOST),
        (JobState.QUEUED, JobTerm.NO_VALID_HOST),
        (JobState.PLANNED, JobTerm.PLACED),
    ):
        first = jobs.move(first, state, (Reason(term, "x"),), engine)
    metrics.round(0.02, led=True)
    metrics.round(9.0, led=False)
    metrics.round(9.0, led=None)
    found = scraped(metrics, jobs)
    assert found['numa_ext_jobs{kind="servers",state="queued"}'] == 1
    assert found['numa_ext_jobs{kind="servers",state="planned"}'] == 1
    assert found['numa_ext_jobs{kind="servers",state="running"}'] == 0
    assert 0 <= found['numa_ext_jobs_longest_wait_seconds{kind="servers"}'] < 300
    assert found['numa_ext_jobs_moves_total{state="planned",term="placed"}'] == 2
    assert found['numa_ext_jobs_moves_total{state="queued",term="no_valid_host"}'] == 1
    for result in ("led", "followed", "failed"):
        assert found[f'numa_ext_jobs_rounds_total{{result="{result}"}}'] == 1
    assert found["numa_ext_jobs_round_seconds_count"] == 1
    assert found["numa_ext_jobs_round_seconds_sum"] == pytest.approx(0.02)
    assert found["numa_ext_jobs_engine_leads"] == 0
    assert found["numa_ext_jobs_recovers"] == 0
    metrics.recovers(True)
    assert scraped(metrics, jobs)["numa_ext_jobs_recovers"] == 1


def test_a_move_that_fails_is_not_counted(database):
    metrics = EngineMetrics()
    jobs = Jobs(database, lambda job, why: metrics.moved(job.state, why))
    stale = jobs.create(new_job())
    jobs.move(stale, JobState.PLANNED, (Reason(JobTerm.PLACED, "h"),), Actor("e"))
    with pytest.raises(Exception, match="has changed since"):
        jobs.move(stale, JobState.PLANNED, (Reason(JobTerm.PLACED, "h"),), Actor("e"))
    assert scraped(metrics, jobs)['numa_ext_jobs_moves_total{state="planned",term="placed"}'] == 1


def test_elastic_groups_are_counted_by_what_becomes_of_them(database):
    groups, settings = ScalingGroups(database), ScalingSettings(35.0)
    stored = [
        groups.set(f"group-{at}", "p", "u", settings, ScalingSource("a.csv")) for at in range(4)
    ]
    groups.trouble(stored[0], "no file", Actor("e"))
    groups.pause(stored[1].uuid, "u", paused=True)
    groups.record(stored[2], [], Actor("e"), act=Act(tokens=("t-1", "t-2")))
    found = scraped(EngineMetrics(), Jobs(database), groups)
    assert found['numa_ext_jobs_scaling_members{step="asked"}'] == 2
    assert found['numa_ext_jobs_scaling_members{step="joined"}'] == 0
    assert {
        state: found[f'numa_ext_jobs_scaling_groups{{state="{state}"}}']
        for state in ("observed", "troubled", "paused")
    } == {"observed": 3, "troubled": 1, "paused": 1}


def test_an_empty_queue_has_no_wait(database):
    found = scraped(EngineMetrics(), Jobs(database))
    for kind in ("servers", "attach"):
        assert found[f'numa_ext_jobs_longest_wait_seconds{{kind="{kind}"}}'] == 0
        assert found[f'numa_ext_jobs{{kind="{kind}",state="queued"}}'] == 0


def test_a_server_that_waits_for_a_gpu_hides_no_job_of_servers(database):
    Leases(database).request(("p", "u"), ASKED, 2, SERVER, Actor("u"))
    with database.transaction() as connection:
        connection.execute(tables.job.update().values(queued_at=database.now() - 90_000.0))
    jobs = Jobs(database)
    jobs.create(new_job())
    found = scraped(EngineMetrics(), jobs)
    for kind in ("servers", "attach"):
        assert found[f'numa_ext_jobs{{kind="{kind}",state="queued"}}'] == 1
    assert found['numa_ext_jobs_longest_wait_seconds{kind="attach"}'] >= 90_000
    assert found['numa_ext_jobs_longest_wait_seconds{kind="servers"}'] < 300


def test_a_job_of_a_kind_of_a_later_release_hides_no_figure(database):
    jobs = Jobs(database)
    jobs.create(new_job())
    with database.transaction() as connection:
        connection.execute(tables.job.update().values(kind="later"))
    found = scraped(EngineMetrics(), jobs)
    assert found['numa_ext_jobs{kind="servers",state="queued"}'] == 0


def test_without_its_database_an_engine_still_says_what_it_did():
    class Away:
        def counts(self):
            raise ServiceUnavailableError("away")

    metrics = EngineMetrics()
    metrics.round(1.0, led=None)
    found = scraped(metrics, Away())
    assert found['numa_ext_jobs_rounds_total{result="failed"}'] == 1
    assert not any(name.startswith("numa_ext_jobs{") for name in found)


def test_what_becomes_of_leases_is_sent_and_is_no_move_of_a_job_of_servers(tmp_path):
    """The alert on jobs that go back to the queue compares moves with plans, and leases of flavors are queued only."""
    sent = []
    world = World(tmp_path, tell=lambda job, reasons: sent.append(job.state))
    leases = world.engine._leases._leases
    engine = Actor("engine", Election(world.database, "engine", 60.0).campaign())
    leases.request(("project-1", "user-1"), ASKED, 1, SERVER, engine)
    assert sent == [JobState.QUEUED]
    found = scraped(world.engine.metrics, world.jobs)
    assert [name for name in found if name.startswith("numa_ext_jobs_moves")] == []
    world.engine._jobs.move(world.jobs.create(new_job()), JobState.PLANNED, PLACED, engine)
    assert scraped(world.engine.metrics, world.jobs)[MOVED_ONCE] == 1


def test_leases_are_counted_by_state_with_what_they_hold_and_their_moves(database):
    """One waits, one holds its GPU, one has gone to another."""
    leases, engine = Leases(database), Actor("e")
    rows = [leases.create("project-1", "user-1", ASKED) for _ in range(3)]
    for each in rows[1:]:
        (chosen,) = leases.choose([each], [LeaseChoice("g1", "gpu", {"gpu": {"x": 1}})], engine)
        held = leases.hold(chosen, engine)
        for step in (life.start, served, lambda lease: life.attach(lease, "c1")):
            held = leases.change(held, step, engine)
    move = LeaseTransfer("g2", host="g2", gpu="other", amounts={"other": {"x": 1}})
    leases.change(leases.plan_move(held, move, engine), life.move, engine, moved=True)
    found = scraped(EngineMetrics(), Jobs(database), leases=leases)
    states = {state: found[f'numa_ext_jobs_leases{{state="{state}"}}'] for state in LIVING}
    assert {state for state, number in states.items() if number} == {
        LeaseState.RESERVED,
        LeaseState.ATTACHED,
        LeaseState.MOVING,
    }
    assert set(states.values()) == {0, 1}
    assert found["numa_ext_jobs_lease_memory_mib"] == 2 * ASKED.memory_mb
    assert found["numa_ext_jobs_leases_moved_lately"] == 1


def test_what_leases_use_of_each_pool_is_what_its_own_host_reports(database):
    """One lease of g1, two of g2; g1 says something of one of g2, too, which does not count."""
    leases, hosts, engine = Leases(database), LeaseHosts(database), Actor("e")
    uuids = []
    for host in ("g1", "g2", "g2"):
        made = leases.create("project-1", "user-1", ASKED)
        (chosen,) = leases.choose([made], [LeaseChoice(host, "gpu", {"gpu": {"x": 1}})], engine)
        uuids.append(leases.hold(chosen, engine).uuid)
    first, second, third = uuids
    used = {first: 12.5, second: 1.0}
    hosts.report("g1", [], busy={first: 0.25, third: 1.0}, link_mbps={first: 3.5}, used_mb=used)
    hosts.report("g2", [], busy={second: 0.5, third: 0.25})
    found = scraped(EngineMetrics(), Jobs(database), leases=leases)
    pools = {
        host: tuple(
            found[f'numa_ext_jobs_pool_{name}{{host="{host}"}}']
            for name in ("memory_mib", "busy_gpus", "link_mbps", "used_memory_mib")
        )
        for host in ("g1", "g2")
    }
    memory = ASKED.memory_mb
    assert pools == {
        "g1": (memory, 0.25, 3.5, 12.5),
        "g2": (2 * memory, 0.75, 0.0, 0.0),
    }


def served(lease):
    return life.acknowledge(lease, lease.gpu_host, lease.epoch)
