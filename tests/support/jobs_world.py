# SPDX-License-Identifier: Apache-2.0
"""A job service whose queue is the simplest there is, over a fake of nova or a real one."""

from sqlalchemy import update

from nova_numa_ext.orchestrator.engine import JobEngine, QueueDecision
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Actor, Jobs
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from placement_traits.reason import Reason
from tests.support.compute_api import ComputeApi, FakeTrusts

USER = Actor("user-1")


class World:
    """A database, a cloud and one engine after the other.

    :ivar settle: lets nova finish what it has begun
    :ivar claims_of_plans: what each plan asks Placement for
    :ivar slots: jobs that have places at the same time
    """

    def __init__(self, folder, claims=None):
        self.url = f"sqlite:///{folder}/jobs.db"
        self.database = Database(self.url, sqlite_synchronous=False)
        self.database.sync()
        self.jobs = Jobs(self.database)
        self.api = ComputeApi()
        self.settle = self.api.settle
        self.trusts = FakeTrusts(self.api)
        self.claims = claims
        self.claims_of_plans = ()
        self.slots = 100
        self.engines = 0
        self.engine = self.start()

    def start(self):
        """Another process."""
        self.engines += 1
        self.engine = JobEngine(
            f"engine-{self.engines}", self.database, self.trusts, self.claims, self.decide
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

    def forget_back_off(self):
        with self.database.transaction() as connection:
            connection.execute(update(tables.job).values(not_before=0.0))

    def state(self, job):
        return self.jobs.read(job.uuid).state

    def why(self, job):
        return [str(each) for each in self.jobs.read(job.uuid).reasons]

    def cancel(self, job):
        return self.jobs.set(self.jobs.read(job.uuid), USER, cancelled=True)
