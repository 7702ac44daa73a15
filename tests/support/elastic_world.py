# SPDX-License-Identifier: Apache-2.0
"""An elastic group that is enforced, over a nova of the tests."""

from sqlalchemy import update

from nova_numa_ext.orchestrator.scaling_prometheus import PrometheusSource
from nova_numa_ext.orchestrator.scaling_rounds import ScalingRounds
from nova_numa_ext.orchestrator.scaling_saga import ScalingSaga
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.scaling import (
    MemberTemplate,
    ScalingGroups,
    ScalingSource,
)
from nova_numa_ext.orchestrator.store.scaling_members import ScalingMembers
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from tests.support.compute_api import ComputeApi, FakeTrusts
from tests.support.elastic import SameCapacity

HEAD = "time_s,member,reads_per_s,latencies_ms,placement"
SETTINGS = ScalingSettings(
    35.0,
    head_room=1.0,
    lead_periods=1,
    grid=Grid(100.0, 100.0),
    least=3,
    most=6,
    cool_down_in_s=0.0,
    actions_per_hour=100_000,
)
TEMPLATE = MemberTemplate("web", "flavor-1", "image-1", ("none",), "hook")


class CalledHooks:
    """Takes note of hooks that are called.

    :ivar calls: event and server, in their order
    :ivar later: events that are not done yet
    :ivar fails: events at which the hook fails, with what it raises
    """

    def __init__(self, stops):
        self.calls, self.later, self.fails, self._stops = [], set(), {}, stops

    def call(self, hook, event, server, about):
        assert hook == TEMPLATE.hook
        assert about.keys() == {"group", "project", "name"}
        self._stops("before", f"hook {event}")
        if event in self.fails:
            raise self.fails[event]
        self.calls.append((str(event), server))
        self._stops("after", f"hook {event}")
        return event not in self.later

    def of(self, server):
        """Events of one server, calls that came twice in a row once."""
        found = []
        for event, about in self.calls:
            if about == server and (not found or found[-1] != event):
                found.append(event)
        return found


class ElasticWorld:
    """A server group with three servers of its user, and what the engine does with it::

    ScalingGroups    one group: capacity of a member 100 reads/s, 3 to 6 members, enforced
    ├─ jobs.db       SQLite
    ├─ web.csv       its source, written by :meth:`tell`
    ├─ ComputeApi    nova: what it is asked for is there when it is settled; each write is checked
    └─ CalledHooks   all are done at once
    """

    def __init__(self, folder, settings=SETTINGS, stops=lambda *_what: None):
        self.settings, self.folder = settings, folder
        self.database = Database(f"sqlite:///{folder}/jobs.db", sqlite_synchronous=False)
        self.database.sync()
        self.api = ComputeApi()
        self.trusts = FakeTrusts(self.api)
        self.hooks = CalledHooks(stops)
        self.groups, self.members = ScalingGroups(self.database), ScalingMembers(self.database)
        self.uuid = self.api.make_group("web")
        self.users = [self.api.make_server(self.uuid) for _ in range(3)]
        self.foreign = self.api.make_server()
        self.troubles, self.placement, self.at_s = [], {}, 0.0
        self.api.hook = self._checked
        self.stops = stops
        self.prometheus = PrometheusSource("", 5.0)
        self.deleted, self.broken = [], []
        self.set()
        self.start()

    def set(self, **changes):
        """Have the group enforced."""
        given = {"template": TEMPLATE, "trust": "trust-1"} | changes
        settings = given.pop("settings", self.settings)
        source = given.pop("source", ScalingSource("web.csv"))
        return self.groups.set(self.uuid, "project-1", "user-1", settings, source, **given)

    def start(self):
        """Another process."""
        saga = ScalingSaga(self.groups, self.members, self.trusts, self.hooks, 3600.0)
        self.saga = saga
        self.rounds = ScalingRounds(
            self.groups, self.folder, lambda _season: SameCapacity(), saga, self.prometheus
        )

    @property
    def group(self):
        """The group as it is stored."""
        return self.groups.read(self.uuid)

    def there(self):
        """Servers that nova has in the group."""
        with self.api._lock:
            shown = self.api._group(self.api.groups[self.uuid])
        return set(shown["members"])

    def ours(self):
        """Of these, what the service has added."""
        return self.there() - set(self.users)

    def steps(self):
        """Steps of the members that the service has added."""
        return [str(each.step) for each in self.members.of(self.group)]

    def tell(self, reads, members=None, ago_s=0.0):
        """Let the source say a load of each member; without names of those that nova has."""
        self.at_s = max(self.at_s + 0.01, self.database.now() - ago_s)
        names = sorted(self.there()) if members is None else members
        rows = [
            f"{self.at_s!r},{name},{reads},20,{self.placement.get(name, 1.0)}" for name in names
        ]
        path = self.folder / "web.csv"
        before = path.read_text() if path.exists() else HEAD + "\n"
        path.write_text(before + "".join(f"{row}\n" for row in rows))

    def go(self, rounds=2, actor=None):
        """Some rounds; nova does what it was asked for between them."""
        self.troubles = []
        for _ in range(rounds):
            self.rounds.round(
                actor or Actor("engine"),
                lambda: None,
                lambda *found: self.troubles.append(str(found[1])),
            )
            self.api.settle()
        assert self.broken == []

    def log(self):
        """Terms and changes that were decided."""
        return [(each["term"], each["change"]) for each in self.groups.decisions(self.uuid)]

    def later(self, seconds):
        """Let time pass for members, and look at all again."""
        columns = tables.scaling_member.c
        with self.database.transaction() as connection:
            older = {"since": columns.since - seconds, "asked_at": columns.asked_at - seconds}
            connection.execute(update(tables.scaling_member).values(older))
            columns = tables.scaling_group.c
            connection.execute(
                update(tables.scaling_group).values(not_before=columns.not_before - seconds)
            )
        self.saga._looked_s.clear()

    def _checked(self, when, what):
        """Nova's side of what must never happen; what is broken is kept, for an engine catches all errors."""
        self.stops(when, what)
        method, _, path = what.partition(" ")
        if when == "before" and what == "POST /servers":
            there = len(self.there()) + len(self.api._asked)
            self._never(there >= self.settings.most, f"above the most: {there}")
        if when == "before" and method == "DELETE":
            self._check_deleted(path.rpartition("/")[2])

    def _check_deleted(self, server):
        tags, there = self.api.servers[server]["tags"], self.there()
        members = self.members.of(self.group)
        known = [each for each in members if f"numa-ext-token:{each.token}" in tags]
        self._never(f"numa-ext-scaling:{self.uuid}" not in tags, f"{server} lacks its tag")
        self._never(not known, f"{server} is not in the database")
        self._never(server in {*self.users, self.foreign}, f"{server} is of a user")
        leaves = [each for each in known if (each.server, each.step) == (server, "deleting")]
        few = len(there - {server}) < self.settings.least
        self._never(bool(leaves) and few, f"below the least: {sorted(there)}")
        self.deleted.append(server)

    def _never(self, is_so, what):
        if is_so:
            self.broken.append(what)
