# SPDX-License-Identifier: Apache-2.0
"""A job service whose queue is the simplest there is, over a fake of nova or a real one."""

from sqlalchemy import select, update

from nova_numa_ext.job_hint import HintKeys
from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.engine import EngineServices, JobEngine, JobPlanning, QueueDecision
from nova_numa_ext.orchestrator.hints import PlanHints
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import LASTS_S
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from placement_traits.reason import Reason
from tests.support.compute_api import ComputeApi, FakeHosts, FakeTrusts
from tests.support.jobs_database import with_tables

USER = Actor("user-1")
_ONE_THREAD = {
    "workers": 0,
    "watchers": 0,
    "watch_interval_s": 0.0,
    "trust_check_s": 0.0,
    "user_checks_per_round": 0,
}


class World:
    """A database, a cloud and one engine after the other.

    :ivar settle: lets nova finish what it has begun
    :ivar claims_of_plans: what each plan asks Placement for
    :ivar slots: jobs that have places at the same time
    :param url: of a database with tables, '' for one of its own
    :param api: of nova, None for one of its own
    :param name: of its engines, which are numbered
    :param lasts_s: seconds of a term
    :param tell: called with each job that comes to another state
    :param uplinks: what says on leafs what best-effort servers may send
    :param options: of the engines; without them all is done in the thread of the rounds, and all in each round
    """

    def __init__(
        self,
        folder,
        claims=None,
        *,
        url="",
        api=None,
        name="engine",
        lasts_s=LASTS_S,
        tell=None,
        uplinks=None,
        **options,
    ):
        self.url = url or f"sqlite:///{folder}/jobs.db"
        self.database = (
            Database(url, sqlite_synchronous=False) if url else with_tables(f"{folder}/jobs.db")
        )
        self.jobs = Jobs(self.database)
        self.api = api or ComputeApi()
        self.settle = self.api.settle
        self.trusts = FakeTrusts(self.api)
        self.hosts = FakeHosts(self.api)
        self.claims = claims
        self.name = name
        self.lasts_s = lasts_s
        self.options = EngineOptions(**(_ONE_THREAD | options))
        self.claims_of_plans = ()
        self.hint_keys = HintKeys()
        self.slots = 100
        self.uplinks = uplinks
        self.tell = tell or (lambda _job, _reasons: None)
        self.engines = 0
        self.engine = self.start()

    def start(self):
        """Another process."""
        self.engines += 1
        self.engine = JobEngine(
            f"{self.name}-{self.engines}",
            self.database,
            EngineServices(
                self.trusts, self.claims, self.hosts, tell=self.tell, uplinks=self.uplinks
            ),
            JobPlanning(self.decide, PlanHints(self.hint_keys)),
            self.options,
            lasts_s=self.lasts_s,
        )
        return self.engine

    def decide(self, waiting, active, now):
        """First come, first served, as long as there are slots."""
        ready = [job for job in waiting if not job.held and job.not_before <= now]
        started = ready[: max(self.slots - len(active), 0)]
        left = ready[len(started) :]
        starts = {job.uuid: self.plan(job) for job in started}
        return QueueDecision(
            starts, {job.uuid: (Reason("no_room", 0, 1, "workers"),) for job in left}
        )

    def plan(self, job):
        places = tuple(HostPlace(each.name, "h1", each.count) for each in job.parts)
        return Plan(places, claims=self.claims_of_plans)

    def rounds(self, count=1):
        for _ in range(count):
            self.engine.round()
            self.settle()

    def expire(self):
        with self.database.transaction() as connection:
            connection.execute(update(tables.leader).values(expires_at=0.0))

    def later(self, seconds):
        """Let time pass: all that is stored is so much older."""
        ages = (
            "queued_at",
            "building_at",
            "started_at",
            "ending_at",
            "trust_lost_at",
            "unanswered_at",
            "not_before",
        )
        with self.database.transaction() as connection:
            older = {name: tables.job.c[name] - seconds for name in ages}
            connection.execute(update(tables.job).values(older))
            for number, steps in connection.execute(select(tables.job.c.id, tables.job.c.steps)):
                for step in steps:
                    step["asked_at"] = step["asked_at"] and step["asked_at"] - seconds
                of_job = tables.job.c.id == number
                connection.execute(update(tables.job).where(of_job).values(steps=steps))
            connection.execute(update(tables.trust).values(not_before=0.0))

    def forget_back_off(self):
        with self.database.transaction() as connection:
            connection.execute(update(tables.job).values(not_before=0.0))

    def state(self, job):
        return self.jobs.read(job.uuid).state

    def why(self, job):
        return [str(each) for each in self.jobs.read(job.uuid).reasons]

    def cancel(self, job):
        return self.jobs.set(self.jobs.read(job.uuid), USER, cancelled=True)
