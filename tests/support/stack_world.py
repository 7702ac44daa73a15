# SPDX-License-Identifier: Apache-2.0
"""An elastic group whose members a stack of Heat has, over a Heat and a nova of the tests."""

from sqlalchemy import update

from nova_numa_ext.orchestrator.scaling_actuator import Actuators
from nova_numa_ext.orchestrator.scaling_rounds import ScalingRounds
from nova_numa_ext.orchestrator.scaling_saga import ScalingSaga
from nova_numa_ext.orchestrator.scaling_stacks import StackActuator
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.scaling import StackTemplate
from tests.support.elastic import SameCapacity
from tests.support.elastic_world import SETTINGS, ElasticWorld
from tests.support.heat_api import PARAMETER, HeatApi


class StackWorld(ElasticWorld):
    """A server group with a server of its user and two of a stack::

    ScalingGroups    one group: capacity of a member 100 reads/s, 3 to 6 members, enforced by a stack
    ├─ jobs.db, web.csv
    ├─ ComputeApi    nova: the service asks it, and writes nothing
    └─ HeatApi       makes and deletes servers when it is settled; each update is checked
    """

    def __init__(self, folder, settings=SETTINGS, stops=lambda *_what: None):
        self.heat = None
        super().__init__(folder, settings, stops)
        for server in self.users[1:]:
            del self.api.servers[server]
        del self.users[1:]
        self.heat = HeatApi(self.api, self.uuid, 2)
        self.heat.hook = self._checked
        self.trusts.heat = self.heat
        self.set()

    def set(self, **changes):
        """Have the group enforced by the stack."""
        if self.heat is None:
            return super().set(**changes)
        template = StackTemplate(self.heat.uuid, self.heat.name, PARAMETER)
        return super().set(**{"template": template} | changes)

    def start(self):
        """Another process."""
        servers = ScalingSaga(self.groups, self.members, self.trusts, self.hooks, 3600.0)
        self.stacks = StackActuator(self.groups, self.members, self.trusts)
        self.rounds = ScalingRounds(
            self.groups,
            self.folder,
            lambda _season: SameCapacity(),
            Actuators(servers, self.stacks),
            self.prometheus,
        )

    def go(self, rounds=2, actor=None):
        """Some rounds; Heat and nova do what they were asked for between them."""
        for _ in range(rounds):
            super().go(1, actor)
            self.heat.settle()
            self.api.settle()

    def later(self, seconds):
        """Let time pass, and look at all again."""
        resize = self.group.resize
        columns = tables.scaling_group.c
        values = {"not_before": columns.not_before - seconds}
        if resize is not None:
            asked = resize.asked_at and resize.asked_at - seconds
            values["resize"] = {
                "before": resize.before,
                "after": resize.after,
                "since": resize.since - seconds,
                "asked_at": asked,
            }
        with self.database.transaction() as connection:
            connection.execute(update(tables.scaling_group).values(values))
        self.stacks.forget(self.uuid)

    def _checked(self, when, what):
        self.stops(when, what)
        method, _, path = what.partition(" ")
        if when != "before" or method == "GET":
            return
        self._never(method != "PATCH" or not path.startswith("/stacks/"), f"{what} is not ours")
        group, heat = self.group, self.heat
        self._never(group.paused, "paused")
        self._never(heat.status.endswith(("_IN_PROGRESS", "_FAILED")), f"stack is {heat.status}")
        resize = group.resize
        self._never(resize is None or resize.asked_at is None, "it is not stored that it is asked")
        step, count = resize.after - heat.size, len(self.there()) + resize.after - len(heat.made)
        small = -self.settings.largest_in <= step <= self.settings.largest_out
        self._never(not small, f"more than a step: {step}")
        self._never(step > 0 and count > self.settings.most, f"above the most: {count}")
        self._never(step < 0 and count < self.settings.least, f"below the least: {count}")
