# SPDX-License-Identifier: Apache-2.0
"""An elastic group whose members a stack of a real Heat has, on the lab's nova: its size follows the load.

Heat (:mod:`tests.integration.heat`) is installed once below the lab's folder, which takes minutes the first time.
"""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cloud import LabCloud, eventually
from tests.integration.heat import LabHeat
from tests.integration.jobs import FOLLOWED_S, LabJobs
from tests.integration.test_scaling import (
    CAPACITY_PER_S,
    HEAD,
    HIGH,
    LEARNT_FROM,
    LEAST,
    LOW,
    MOST,
    OBJECTIVE_MS,
    PERIOD_S,
    SCALED_S,
    libraries,
)

__all__ = ["libraries"]

PARAMETER = "size"
TEMPLATE: dict[str, Any] = {
    "heat_template_version": "2021-04-16",
    "parameters": {PARAMETER: {"type": "number"}, "group": {"type": "string"}},
    "resources": {
        "members": {
            "type": "OS::Heat::AutoScalingGroup",
            "properties": {
                "desired_capacity": {"get_param": PARAMETER},
                "min_size": 0,
                "max_size": 100,
                "resource": {
                    "type": "OS::Nova::Server",
                    "properties": {
                        "flavor": "lab.tiny",
                        "image": "toucher",
                        "networks": [{"allocate_network": "none"}],
                        # Else Heat writes scripts for its own tools, for which it needs a further API.
                        "user_data_format": "RAW",
                        "scheduler_hints": {"group": {"get_param": "group"}},
                    },
                },
            },
        }
    },
}


class StackService:
    """A service of three servers that a stack has, and its monitoring: the file that the story appends to."""

    def __init__(self, cloud: LabCloud, jobs: LabJobs, heat: LabHeat) -> None:
        self._cloud, self._jobs, self._heat = cloud, jobs, heat
        self.name = f"it-{uuid.uuid4().hex[:8]}"
        body: dict[str, Any] = {"server_group": {"name": self.name, "policy": "soft-anti-affinity"}}
        made = cloud.api.compute.post("/os-server-groups", json=body, microversion="2.64")
        self.group = str(made.json()["server_group"]["id"])
        self.trace = cloud.settings.state / "traces" / f"{self.name}.csv"
        self.trace.parent.mkdir(exist_ok=True)

    def begin(self) -> None:
        """Have Heat make the stack, and wait for it."""
        body = {
            "stack_name": self.name,
            "template": TEMPLATE,
            "parameters": {PARAMETER: LEAST, "group": self.group},
        }
        self._heat.api.post("/stacks", json=body)
        eventually(f"{self.name} has {LEAST} servers", lambda: self.has(LEAST), SCALED_S)

    def servers(self) -> set[str]:
        """Servers that nova has in the group, those that it deletes left out."""
        shown = self._cloud.api.compute.get(f"/os-server-groups/{self.group}").json()
        return set(shown["server_group"]["members"])

    def has(self, count: int) -> bool:
        """Whether the stack has so many servers, and nothing is under way."""
        status = self._heat.stack(self.name)["stack_status"]
        assert not status.endswith("_FAILED"), self._heat.stack(self.name)["stack_status_reason"]
        return status.endswith("_COMPLETE") and len(self.servers()) == count

    def sized(self) -> None:
        """Have the group enforced by the stack, of what was monitored until now."""
        now_s = time.time()
        rows = [
            row
            for back, total in zip(range(len(LEARNT_FROM), 0, -1), LEARNT_FROM, strict=True)
            for row in self._rows(now_s - PERIOD_S * back, total)
        ]
        self.trace.write_text(HEAD + "".join(rows))
        settings = {
            "objective_ms": OBJECTIVE_MS,
            "granularity": [10.0, 10.0, 5.0],
            "least": LEAST,
            "most": MOST,
            "head_room": 1.0,
            "lead_periods": 1,
            "period_s": PERIOD_S,
            "cool_down_in_s": 0.0,
            "actions_per_hour": 100,
        }
        enforce = {"heat": {"stack": self.name, "parameter": PARAMETER}}
        asked = {"settings": settings, "source": {"csv": self.trace.name}, "enforce": enforce}
        self._jobs.api.set_scaling(self.group, asked)

    def under(self, total: float, count: int, *, kill: bool = False) -> None:
        """Have a load until the stack has so many servers.

        :param kill: SIGKILL for the engine that leads when Heat is first at work
        """
        measured_at, killed = -PERIOD_S, not kill

        def probe() -> bool:
            nonlocal measured_at, killed
            if time.monotonic() >= measured_at + PERIOD_S:
                with self.trace.open("a") as file:
                    file.write("".join(self._rows(time.time(), total)))
                measured_at = time.monotonic()
            status = self._heat.stack(self.name)["stack_status"]
            if not killed and status == "UPDATE_IN_PROGRESS":
                killed, term = True, self._jobs.term()
                self._jobs.kill_leader()
                self._jobs.running_again()
                eventually("another engine leads", lambda: self._jobs.term() > term, FOLLOWED_S)
            return killed and self.has(count)

        eventually(f"{count} servers at {total:.0f}/s", probe, SCALED_S, 0.2)

    def _rows(self, at_s: float, total: float) -> list[str]:
        members = sorted(self.servers())
        reads = total / len(members)
        latency_ms = OBJECTIVE_MS * reads / CAPACITY_PER_S
        return [f"{at_s!r},{one},{reads!r},{latency_ms!r},1.0\n" for one in members]

    def updates(self) -> int:
        """How often Heat was asked for another size."""
        return self._heat.updates(self.name)

    def changes(self) -> list[int]:
        """What was decided to be changed, in order."""
        found = self._jobs.api.scaling_decisions(self.group)
        return [int(line["change"]) for line in found if line["change"]]

    def end(self) -> None:
        """Delete all of it."""
        self._jobs.running_again()
        if any(each["id"] == self.group for each in self._jobs.api.scaling_groups()):
            self._jobs.api.delete_scaling(self.group)
        self._heat.delete(self.name)
        self._cloud.delete(sorted(self.servers()))
        self._cloud.api.compute.delete(f"/os-server-groups/{self.group}")
        self.trace.unlink(missing_ok=True)


@pytest.fixture
def service(
    libraries: str,
    cloud: LabCloud,
    jobs: LabJobs,
) -> Iterator[StackService]:
    """See :class:`StackService`; it ends with the test, and Heat with it."""
    heat = LabHeat(cloud)
    try:
        heat.start()
        made = StackService(cloud, jobs, heat)
        try:
            made.begin()
            yield made
        finally:
            made.end()
    finally:
        heat.end()


@pytest.mark.long
def test_a_stack_grows_from_three_to_five_and_shrinks_to_three(
    service: StackService, jobs: LabJobs
) -> None:
    """Issue 21, second actuator: one update for each size, also where the engine that leads is killed within it."""
    before = {*jobs.left()}  # Heat's own trust stays with the stack
    service.sized()
    service.under(HIGH, 5, kill=True)
    service.under(LOW, 3)
    changes = service.changes()
    assert sum(changes) == 0
    assert service.updates() == len(changes)
    jobs.api.delete_scaling(service.group)
    eventually("nothing is left of the group", lambda: {*jobs.left()} <= before, 120)
