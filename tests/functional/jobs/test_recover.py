# SPDX-License-Identifier: Apache-2.0
"""An old database is restored under running jobs: nothing is done before it is committed, and nothing is lost."""

import random
import shutil
import uuid

import pytest
from sqlalchemy import update

from nova_numa_ext.orchestrator import manage
from nova_numa_ext.orchestrator.cloud.servers import JOB_TAG, MEMBER_TAG, TAG
from nova_numa_ext.orchestrator.cloud.trusts import GivenTrust
from nova_numa_ext.orchestrator.reconcile import LostTrusts
from nova_numa_ext.orchestrator.recover import Recoverer
from nova_numa_ext.orchestrator.recover_leases import LeaseRecoverer
from nova_numa_ext.orchestrator.reservations import unanswered
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import Election, NotLeaderError
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.recovery import Recovery, seen_in
from nova_numa_ext.orchestrator.store.scaling import (
    MemberTemplate,
    ScalingGroups,
    ScalingSource,
)
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import Claim, emptied
from placement_traits.names import JOB_CONSUMER
from placement_traits.reason import Reason
from tests.support.jobs_database import backed_up, new_job, part, restored
from tests.support.jobs_world import USER, World

RUNNING, QUEUED = JobState.RUNNING, JobState.QUEUED
SLOT = "CUSTOM_SLOT"


# How an old database is known -----------------------------------------------------------------------------------------


def restore(database, mark):
    """Let a database be as it was at an earlier mark."""
    with database.transaction() as connection:
        connection.execute(update(tables.leader).values(mark=mark, term=1))


def test_an_engine_knows_an_old_database_by_what_it_has_seen(database):
    engine, recovery = Election(database, "engine"), Recovery(database)
    for _ in range(5):
        term = engine.campaign()
        assert recovery.look() is None
    restore(database, 2)
    with pytest.raises(NotLeaderError):
        engine.check(term)
    assert engine.campaign() is None, "nothing is done before the next look either"
    assert "older than what this engine has seen: mark 2, seen 5" in recovery.look().why
    assert engine.campaign() is None
    assert Election(database, "other").campaign() is None


def test_nothing_of_an_engines_term_is_written_while_the_database_recovers(database):
    engine, jobs = Election(database, "engine"), Jobs(database)
    job = jobs.create(new_job())
    term = engine.campaign()
    Recovery(database).begin("restored")
    with pytest.raises(NotLeaderError):
        engine.check(term)
    with pytest.raises(NotLeaderError):
        jobs.move(job, JobState.PLANNED, (Reason("placed", "h"),), Actor("engine", term))


def test_a_restarted_engine_knows_it_by_its_file(database, tmp_path):
    file = tmp_path / "state" / "mark.json"
    first, recovery = Election(database, "first"), Recovery(database, seen_in(file))
    for _ in range(5):
        first.campaign()
    assert recovery.look() is None
    first.resign()
    assert Recovery(database, seen_in(file)).look() is None
    restore(database, 4)
    assert Recovery(database).look() is None, "who has seen nothing cannot know"
    assert Recovery(database, seen_in(file)).look() is not None


def test_after_it_is_committed_no_engine_takes_it_for_an_old_one(database, tmp_path):
    """Also one that was away all the time, and has seen the most."""
    away = Recovery(database, seen_in(tmp_path / "mark.json"))
    engine = Election(database, "engine")
    for _ in range(50):
        engine.campaign()
    away.look()
    restore(database, 7)
    operators = Recovery(database)
    operators.begin("restored")
    operators.end()
    assert away.look() is None
    assert Election(database, "next").campaign() is not None


def test_a_backup_from_before_the_last_recovery_is_an_old_one_too(database):
    """Terms go on above all that there were, so that what was decided in a later one counts for more."""
    engine, recovery = Election(database, "engine"), Recovery(database)
    marks, terms = [], []
    for _ in range(2):
        restore(database, 1)
        recovery.begin("restored")
        recovery.end()
        term = engine.campaign()
        assert recovery.look() is None
        marks.append(term.mark)
        terms.append(term.number)
    assert (marks, terms) == (sorted(set(marks)), sorted(set(terms)))
    restore(database, 1)
    assert recovery.look() is not None


def test_the_first_reason_stays(database):
    recovery = Recovery(database)
    recovery.begin("first")
    recovery.begin("second")
    assert recovery.recovering().why == "first"


def test_a_file_that_cannot_be_written_is_said(database, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    clock = [0.0]
    engine = Election(database, "engine")
    recovery = Recovery(database, seen_in(tmp_path / "file" / "mark.json"), lambda: clock[0])
    for _ in range(3):
        engine.campaign()
        assert recovery.look() is None
        clock[0] += 60.0
    assert caplog.text.count("an old database would not be known after a restart") == 1


# What becomes of what it does not know --------------------------------------------------------------------------------


def no_leases(database, claims):
    """What recovers leases where no host lends GPUs."""
    return LeaseRecoverer(Leases(database), LeaseHosts(database), claims, lambda: ())


class Restored:
    """A service over a copy of its database.

    :ivar world: as it is
    """

    def __init__(self, folder, placement, pool):
        self.folder = folder
        self.claims = ClaimStore(placement.client)
        self.world = World(folder, self.claims)
        self.pool = pool
        self.count = 0

    def trust(self, trust, user="user-1", project="project-1"):
        self.world.trusts.all.append(GivenTrust(trust, user, project))

    def create(self, trust, **more):
        self.trust(trust)
        return self.world.jobs.create(new_job(trust=trust, **more))

    def back_up(self):
        return shutil.copy(self.folder / "jobs.db", self.folder / "backup.db")

    def restore(self, backup):
        """The database is as it was; an operator says so."""
        before, self.count = self.world, self.count + 1
        name = f"restored-{self.count}"
        self.world = World(None, self.claims, url=f"sqlite:///{backup}", api=before.api, name=name)
        self.world.trusts = before.trusts
        self.world.start()
        Recovery(self.world.database).begin("restored")

    def recover(self, *, commit=False, between=lambda: None):
        world = self.world
        recoverer = Recoverer(
            world.jobs,
            EndedTrusts(world.database),
            world.trusts,
            self.claims,
            world.hosts,
            also=ScalingGroups(world.database).trusts,
        )
        return manage.recovered(
            recoverer,
            no_leases(world.database, self.claims),
            Recovery(world.database),
            commit=commit,
            wait=lambda _seconds: between(),
        )

    def counting(self, job):
        found = self.world.jobs.read(job.uuid)
        return {server for each in found.parts for server in each.servers.values()}


@pytest.fixture
def service(tmp_path, placement, pool):
    return Restored(tmp_path, placement, pool)


def test_nothing_is_touched_before_it_is_committed(service, capsys):
    kept = service.create("kept")
    service.world.rounds(3)
    backup = service.back_up()
    service.create("new")
    service.world.rounds(3)
    service.restore(backup)
    before = dict(service.world.api.there())
    asked = []
    service.world.api.hook = lambda _when, what: asked.append(what)
    service.world.cancel(kept)
    service.world.rounds(5)
    assert service.recover() == 0
    service.world.rounds(5)
    assert service.world.api.there() == before
    assert {what.partition(" ")[0] for what in asked} == {"GET"}
    shown = capsys.readouterr().out
    assert "Engines do nothing for jobs: restored." in shown
    assert "Nothing was changed" in shown
    assert Recovery(service.world.database).recovering() is not None


def test_jobs_that_are_not_known_are_adopted_with_their_servers(service, capsys):
    backup = service.back_up()
    parts = (part("gpu", count=2, apart=True), part("cpu", count=1))
    job = service.create("trust-1", name="train", parts=parts)
    service.world.claims_of_plans = (ProviderAmount(service.pool, SLOT, 2),)
    service.world.rounds(3)
    servers = service.counting(job)
    (claim,) = service.claims.of_provider(service.pool)
    service.restore(backup)
    assert service.world.jobs.find() == []
    assert service.recover(commit=True) == 0
    assert f"ADOPT  job    {job.uuid}  is not known; servers that are there: 3" in (
        capsys.readouterr().out
    )
    service.world.rounds(4)
    adopted = service.world.jobs.read(job.uuid)
    assert (adopted.state, adopted.name, adopted.trust) == (RUNNING, "train", "trust-1")
    assert (adopted.project, adopted.user) == ("project-1", "user-1")
    assert [(each.name, each.count) for each in adopted.parts] == [("gpu", 2), ("cpu", 1)]
    assert service.counting(job) == servers == set(service.world.api.there())
    (held,) = service.claims.of_provider(service.pool)
    assert (held.consumer, held.amounts) == (claim.consumer, claim.amounts)
    assert service.world.trusts.deleted == []
    service.world.cancel(job)
    service.world.rounds(4)
    assert service.world.state(job) is JobState.CANCELLED
    assert (service.world.api.there(), service.world.api.groups) == ({}, {})
    assert list(service.claims.of_provider(service.pool)) == []


def test_a_backup_that_is_loaded_under_an_engine_that_runs_touches_no_server(
    url, database, placement
):
    """Nobody says so: the engine finds it out, and does nothing before it is committed."""
    claims = ClaimStore(placement.client)
    world = World(None, claims, url=url)

    def running(trust):
        world.trusts.all.append(GivenTrust(trust, "user-1", "project-1"))
        job = world.jobs.create(new_job(trust=trust))
        world.rounds(4)
        assert world.state(job) is RUNNING
        return job

    known = running("trust-1")
    backup = backed_up(database)
    unknown = running("trust-2")
    servers = dict(world.api.there())
    restored(database, backup)
    world.cancel(known)
    world.rounds(3)
    assert "older than what this engine has seen" in Recovery(database).recovering().why
    assert (world.state(known), world.api.there()) == (RUNNING, servers)
    world.jobs.set(world.jobs.read(known.uuid), USER, cancelled=False)
    recoverer = Recoverer(world.jobs, EndedTrusts(database), world.trusts, claims, world.hosts)
    of_leases = no_leases(database, claims)
    recovery = Recovery(database)
    assert manage.recovered(recoverer, of_leases, recovery, commit=True, wait=lambda _s: None) == 0
    world.rounds(4)
    assert [world.jobs.read(each.uuid).state for each in (known, unknown)] == [RUNNING, RUNNING]
    assert (world.api.there(), world.trusts.deleted) == (servers, [])


def test_a_job_that_waited_and_runs_by_now_goes_on_with_its_servers(service):
    service.world.slots = 0
    job = service.create("trust-1")
    service.world.rounds(1)
    backup = service.back_up()
    service.world.slots = 1
    service.world.rounds(3)
    servers, created = service.counting(job), service.world.api.created
    service.restore(backup)
    assert service.world.state(job) is QUEUED
    service.world.slots = 0
    service.recover(commit=True)
    service.world.rounds(4)
    assert (service.world.state(job), service.world.api.created) == (RUNNING, created)
    assert service.counting(job) == servers == set(service.world.api.there())


def test_a_job_that_was_going_back_to_the_queue_and_runs_again_is_not_stopped(service):
    job = service.create("trust-1")
    service.world.rounds(3)
    runs = service.world.jobs.read(job.uuid)
    why = (Reason("preempted", "other"),)
    service.world.jobs.move(runs, JobState.ENDING, why, USER, target=QUEUED)
    backup = service.back_up()
    service.world.rounds(6)
    assert service.world.state(job) is RUNNING
    servers = service.counting(job)
    service.restore(backup)
    service.recover(commit=True)
    service.world.rounds(4)
    assert service.world.state(job) is RUNNING
    assert service.counting(job) == servers == set(service.world.api.there())


@pytest.mark.parametrize("rounds", [2, 3], ids=["building", "running"])
def test_a_job_that_was_stopped_and_waits_goes_back_to_the_queue(service, capsys, rounds):
    """Its servers are gone and its trust is not: it was stopped, or it has ended just now. A person decides."""
    service.world.claims_of_plans = (ProviderAmount(service.pool, SLOT, 4),)
    job = service.create("trust-1")
    service.world.rounds(rounds)
    backup = service.back_up()
    runs = service.world.jobs.read(job.uuid)
    assert all(uuid for each in runs.parts for uuid in each.servers.values())
    why = (Reason("preempted", "other"),)
    service.world.jobs.move(runs, JobState.ENDING, why, USER, target=QUEUED)
    service.world.slots = 0
    service.world.rounds(4)
    assert (service.world.state(job), service.world.api.there()) == (QUEUED, {})
    service.restore(backup)
    service.recover(commit=True)
    assert f"REQUEUE  job  {job.uuid}" in capsys.readouterr().out
    service.world.slots = 0
    service.world.rounds(3)
    assert (service.world.state(job), service.world.why(job)[:1]) == (QUEUED, ["adopted=0"])
    assert list(service.claims.of_provider(service.pool)) == []
    service.world.slots = 1
    service.world.forget_back_off()
    service.world.rounds(4)
    held = service.world.jobs.read(job.uuid)
    assert (held.state, held.held) == (QUEUED, True), "it may have ended"
    service.world.jobs.set(held, USER, (Reason("released", "user-1"),), held=False)
    service.world.rounds(4)
    assert service.world.state(job) is RUNNING


def test_a_job_that_ran_and_has_ended_since_does_not_run_again(service):
    job = service.create("trust-1")
    service.world.rounds(3)
    backup = service.back_up()
    service.world.cancel(job)
    service.world.rounds(4)
    assert service.world.state(job) is JobState.CANCELLED
    created = service.world.api.created
    service.restore(backup)
    service.recover(commit=True)
    service.world.rounds(2)
    service.world.later(601)
    service.world.rounds(3)
    assert (service.world.state(job), service.world.api.created) == (JobState.FAILED, created)


def test_a_server_that_was_made_again_counts(service, capsys):
    job = service.create("trust-1", parts=(part("workers", count=2),))
    service.world.rounds(3)
    backup = service.back_up()
    first, second = service.world.jobs.read(job.uuid).parts[0].servers.values()
    shown = service.world.api.servers.pop(first)
    again = str(uuid.uuid4())
    service.world.api.servers[again] = {**shown, "id": again}
    service.restore(backup)
    service.recover(commit=True)
    assert f"ADOPT  server  {again}" in capsys.readouterr().out
    service.world.rounds(4)
    assert service.counting(job) == {again, second} == set(service.world.api.there())


def test_a_job_that_was_planned_keeps_what_it_has_claimed_since(service):
    """Were it released, others could take it before the job claims it again."""
    service.world.claims_of_plans = (ProviderAmount(service.pool, SLOT, 4),)
    job = service.create("trust-1")
    service.world.rounds(1)
    assert service.world.state(job) is JobState.PLANNED
    backup = service.back_up()
    service.world.rounds(3)
    (claim,) = service.claims.of_provider(service.pool)
    service.restore(backup)
    service.recover(commit=True)
    assert list(service.claims.of_provider(service.pool)) == [claim]
    service.world.rounds(4)
    assert service.world.state(job) is RUNNING
    assert list(service.claims.of_provider(service.pool)) == [claim]


def test_what_placement_holds_for_a_job_that_waits_is_written_again(service):
    """Whatever it holds by now: another amount than the old row says, or nothing."""
    service.world.slots = 0
    job = service.create("trust-1")
    amounts = (ProviderAmount(service.pool, SLOT, 2),)
    service.world.jobs.set(job, USER, reserved=amounts)
    service.restore(service.back_up())
    service.recover(commit=True)
    found = service.world.jobs.read(job.uuid)
    assert (found.reserved, unanswered(found)) == (amounts, True)


def test_a_job_that_waited_and_has_ended_since_does_not_run_again(service):
    service.world.slots = 0
    job = service.create("trust-1")
    waits = service.create("trust-2")
    service.world.rounds(1)
    backup = service.back_up()
    service.world.trusts.all = [
        each for each in service.world.trusts.all if each.trust != "trust-1"
    ]
    service.restore(backup)
    service.recover(commit=True)
    service.world.rounds(3)
    ended = service.world.jobs.read(job.uuid)
    assert (ended.state, ended.reasons[0].term) == (JobState.FAILED, "ended_since")
    assert service.world.state(waits) is RUNNING


def test_what_is_of_no_job_is_given_back_when_both_looks_have_found_it(service, capsys):
    ended = service.create("trust-1")
    service.world.cancel(ended)
    service.world.rounds(2)
    service.create("trust-2")
    service.world.slots = 0
    backup = service.back_up()
    service.restore(backup)
    service.world.slots = 0
    service.trust("lost")

    def late(job):
        tags = [f"{TAG}workers", f"{JOB_TAG}{job}", f"{MEMBER_TAG}0"]
        asked = {"name": "job-workers-0", "tags": tags, "imageRef": "i"}
        return service.world.api._create(asked)

    def claimed():
        consumer = str(uuid.uuid4())
        claim = Claim(consumer, JOB_CONSUMER, "project-1", "user-1", {service.pool: {SLOT: 1}})
        service.claims.write(claim)
        return consumer

    servers, consumers = [late(ended.uuid)], [claimed()]
    lost = str(uuid.uuid4())
    kept = [
        service.world.api.make_group(f"{TAG}web:front"),
        service.world.api.make_group(f"{TAG}{lost}:used", members=["a"]),
    ]
    service.world.api.make_group(f"{TAG}{lost}:workers")

    def between():
        servers.append(late(ended.uuid))
        consumers.append(claimed())
        service.trust("just-made")

    service.recover(commit=True, between=between)
    service.world.settle()
    assert list(service.world.api.there()) == servers, "its user may have been promised them"
    assert [each.consumer for each in service.claims.of_provider(service.pool)] == consumers[1:]
    assert sorted(service.world.api.groups) == sorted(kept)
    service.world.rounds(2)
    assert sorted(service.world.trusts.deleted) == ["lost", "trust-1"]
    shown = capsys.readouterr().out
    assert f"RELEASE  claim   {consumers[0]}" in shown
    assert f"LEAVE    server  {servers[0]}" in shown


def test_servers_whose_tags_lie_are_left_alone(service, capsys):
    """Tags are their user's to write: of another user's job, of no uuid, of a member that cannot be."""
    service.world.slots = 0
    job = service.create("trust-1")
    service.trust("of-mallory", "mallory", "evil")
    service.restore(service.back_up())
    service.world.slots = 0
    made = {}
    for name, tags in {
        "foreign": (job.uuid, "0"),
        "nonsense": ("../../x", "0"),
        "huge": (str(uuid.uuid4()), "1000000000"),
    }.items():
        asked = {
            "name": name,
            "tags": [f"{TAG}p", f"{JOB_TAG}{tags[0]}", f"{MEMBER_TAG}{tags[1]}"],
            "imageRef": "i",
        }
        server = service.world.api._create(asked)
        service.world.api.servers[server] |= {"tenant_id": "evil", "user_id": "mallory"}
        made[server] = name
    service.recover(commit=True)
    service.world.rounds(2)
    assert service.world.state(job) is QUEUED
    assert [each.uuid for each in service.world.jobs.find()] == [job.uuid]
    assert set(service.world.api.there()) == set(made)
    shown = capsys.readouterr().out
    for server in made:
        assert f"LEAVE   server  {server}" in shown or f"LEAVE  server  {server}" in shown


def test_nothing_is_committed_while_a_cell_does_not_answer(service, capsys):
    backup = service.back_up()
    service.create("trust-1")
    service.world.rounds(3)
    service.restore(backup)
    down = min(service.world.api.servers)
    service.world.api.down = {down}
    assert service.recover(commit=True) == 1
    assert f"cells of these servers do not answer: {down}" in capsys.readouterr().out
    assert service.world.jobs.find() == []
    assert Recovery(service.world.database).recovering() is not None


def test_nothing_of_a_project_without_rights_is_changed(service, capsys):
    """Its user may be disabled for a day; the trust is of use again afterwards."""
    backup = service.back_up()
    job = service.create("lost")
    service.world.rounds(3)
    servers = service.counting(job)
    service.restore(backup)
    service.world.trusts.lost.add("lost")
    ended, clock = EndedTrusts(service.world.database), [0.0]
    lost = LostTrusts(service.world.jobs, ended, service.world.trusts, lambda: clock[0])
    assert service.recover(commit=True) == 0
    assert "LEAVE  project  project-1  none of its users" in capsys.readouterr().out
    for clock[0] in (0.0, 4e3, 8e3):
        assert lost.release(lambda: None) == 0
    service.world.trusts.lost.clear()
    for clock[0] in (12e3, 16e3):
        assert lost.release(lambda: None) == 0, "it has servers of a job that is not known"
    Recovery(service.world.database).begin("again")
    service.recover(commit=True)
    service.world.rounds(3)
    assert service.world.state(job) is RUNNING
    assert service.counting(job) == servers == set(service.world.api.there())


def test_a_trust_of_an_elastic_group_stays(service):
    source, template = ScalingSource("a.csv"), MemberTemplate("web", "f", "i")
    groups = ScalingGroups(service.world.database)
    settings = ScalingSettings(35.0)
    groups.set("g", "project-1", "u", settings, source, template=template, trust="of-a-group")
    service.world.trusts.all = [GivenTrust("of-a-group", "user-1", "project-1")]
    service.restore(service.back_up())
    service.world.trusts.all = [GivenTrust("of-a-group", "user-1", "project-1")]
    assert service.recover(commit=True) == 0
    assert EndedTrusts(service.world.database).all() == set()


def test_a_commit_that_broke_off_is_done_by_the_next_one(service):
    backup = service.back_up()
    jobs = [service.create(f"trust-{number}") for number in range(2)]
    service.world.rounds(3)
    created = service.world.api.created
    service.restore(backup)
    plain, left = service.world.jobs.set_servers, [2]

    def dies(*given, **more):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return plain(*given, **more)

    service.world.jobs.set_servers = dies
    with pytest.raises(KeyboardInterrupt):
        service.recover(commit=True)
    service.world.jobs.set_servers = plain
    service.world.rounds(2)
    assert service.recover(commit=True) == 0
    service.world.rounds(4)
    assert [service.world.state(each) for each in jobs] == [RUNNING, RUNNING]
    assert (service.world.api.created, len(service.world.api.there())) == (created, created)


def lives_on(service, draw):
    """Something happens to the jobs."""
    world = service.world
    stored = [each for each in world.jobs.find() if not each.state.final]
    running = [each for each in stored if each.state is RUNNING]
    what = draw.choice(["submit", "submit", "round", "round", "cancel", "stop", "crash", "slots"])
    if what == "submit":
        parts = [part(f"p{number}", count=1) for number in range(draw.randint(1, 2))]
        service.create(f"trust-{draw.getrandbits(64)}", parts=tuple(parts))
    elif what == "cancel" and stored:
        world.cancel(draw.choice(stored))
    elif what == "stop" and running:
        why = (Reason("preempted", "other"),)
        world.jobs.move(draw.choice(running), JobState.ENDING, why, USER, target=QUEUED)
    elif what == "crash":
        world.start()
        world.expire()
    elif what == "slots":
        world.slots = draw.randint(0, 4)
        world.forget_back_off()
    world.rounds(draw.randint(0, 2))


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_is_left_whatever_has_happened_since_the_backup(service, seed):
    """Nothing that was running is touched; two rounds after nothing can come late, all that is there is of some job."""
    story_of_a_backup(service, random.Random(seed))


@pytest.mark.long
def test_nothing_is_lost_and_nothing_is_left_after_many_backups(tmp_path, placement, pool):
    for seed in range(4, 200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        service = Restored(folder, placement, pool)
        story_of_a_backup(service, random.Random(seed))
        for claim in service.claims.of_provider(pool):
            service.claims.write(emptied(claim))


def story_of_a_backup(service, draw):
    """A service lives on, is backed up, lives on and is restored."""
    service.world.claims_of_plans = (ProviderAmount(service.pool, SLOT, 1),)
    for _ in range(draw.randint(0, 15)):
        lives_on(service, draw)
    backup = service.back_up()
    in_backup = {each.uuid for each in service.world.jobs.find()}
    for _ in range(draw.randint(1, 15)):
        lives_on(service, draw)
    before = {each.uuid: each for each in service.world.jobs.find()}
    ran = {key: service.counting(job) for key, job in before.items() if job.state is RUNNING}
    service.restore(backup)
    world = service.world
    world.claims_of_plans, world.slots = (ProviderAmount(service.pool, SLOT, 1),), 0
    asked = []
    world.api.hook = lambda _when, what: asked.append(what)
    world.rounds(2)
    assert asked == []
    world.api.hook = None
    assert service.recover(commit=True) == 0
    world.rounds(2)
    for key, servers in ran.items():
        assert world.state(before[key]) is RUNNING
        assert service.counting(before[key]) == servers
        assert servers <= set(world.api.there())
    world.later(700)
    world.rounds(2)
    after = {each.uuid: each for each in world.jobs.find()}
    for key, job in before.items():
        known = key in in_backup or job.state in (RUNNING, JobState.BUILDING)
        if job.state.final:
            assert key not in after or after[key].state.final
        elif known and job.state is not JobState.ENDING and not job.cancelled:
            assert not after[key].state.final, job.state
    counted = {
        server
        for job in after.values()
        for each in job.parts
        for server in each.servers.values()
        if server
    }
    assert set(world.api.there()) == counted
    held = {each.consumer for each in service.claims.of_provider(service.pool)}
    assert held <= {step.about for job in after.values() for step in job.steps}
    owners = {each.trust for each in after.values() if not each.state.final}
    assert owners.isdisjoint(world.trusts.deleted)


def test_a_database_that_is_no_old_one_is_only_looked_at(service, capsys):
    service.create("trust-1")
    service.world.rounds(3)
    assert service.recover() == 0
    assert capsys.readouterr().out == (
        "The database knows all that is there.\n"
        "The database is not known to be an old one: engines do their work.\n"
    )
    assert service.recover(commit=True) == 1


def test_an_operator_says_that_a_database_is_old_and_nothing_is_purged(url, configure, capsys):
    conf = configure(f"[database]\nconnection = {url}\n")
    assert manage.main([conf, "recover", "--begin"]) == 0
    assert "Engines do nothing for jobs now" in capsys.readouterr().out
    assert Election(Database(url), "engine").campaign() is None
    assert manage.main([conf, "purge", "--older-than", "0"]) == 1
    assert "before jobs are purged" in capsys.readouterr().err
