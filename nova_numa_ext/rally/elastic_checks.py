# SPDX-License-Identifier: Apache-2.0
"""Does an elastic group come to the size that its load needs, and does it ever leave its limits?

A task puts loads on the group by a command of its own (:mod:`.asking`), because only its operator knows how: a load
generator in most clouds, a trace of monitoring in the lab. What the group is made of meanwhile is asked of nova and of
the job service.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nova_numa_ext.cli.jobs_client import JobsClient
from nova_numa_ext.policy.elastic.member_steps import MemberStep
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.rally import samples
from nova_numa_ext.rally.asking import ask
from nova_numa_ext.rally.samples import Topic

_COMMAND_S: Final = 60.0
_PAUSE_S: Final = 1.0


@dataclass(slots=True)
class ScalingFindings:
    """What was seen of a group.

    :param loads: that were put on it after it had learnt; ``missed`` says at which it did not come to its size
    :param looks: at its servers, and at decisions on it; ``outside`` says which were outside its limits
    """

    loads: int = 0
    missed: list[str] = field(default_factory=list)
    looks: int = 0
    outside: list[str] = field(default_factory=list)

    def charts(self) -> list[dict[str, Any]]:
        """Return the samples."""
        return [
            samples.chart(Topic.SCALED, self.loads, len(self.missed)),
            samples.chart(Topic.SCALING_LIMITS, self.looks, len(self.outside)),
        ]

    def sentences(self) -> list[str]:
        """Return all that is wrong, what was seen several times once."""
        return [*self.missed, *dict.fromkeys(self.outside)]


class ElasticChecks:
    """One elastic group under the loads of a task.

    :param jobs: the job service, as who may set the group
    :param group: uuid of the server group
    :param servers: returns the uuids of its servers that nova has now
    :param users: those that its user has put into it
    :param settings: that it is sized by
    :param load: command that puts ``{operations}`` per second on ``{members}`` (uuids with commas between) of
        ``{group}``, whose objective is ``{objective_ms}``, and prints JSON
    """

    def __init__(
        self,
        jobs: JobsClient,
        group: str,
        servers: Callable[[], frozenset[str]],
        *,
        users: frozenset[str],
        settings: ScalingSettings,
        load: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._jobs, self._group, self._servers = jobs, group, servers
        self._users, self._settings, self._load = users, settings, load
        self._clock, self._sleep = clock, sleep
        self.found = ScalingFindings()

    def teach(self, loads: Sequence[float]) -> None:
        """Have the user's servers carry loads, operations per second, a period each, before the group is set."""
        for one in loads:
            self._put(one, self._users)
            self._sleep(self._settings.period_s)

    def follow(self, operations: float, members: int, within_s: float) -> None:
        """Have a load until the group has its size, nothing comes or leaves, or the time is over.

        :param operations: per second, of the whole group
        :param members: servers that it needs
        """
        self.found.loads += 1
        end, due = self._clock() + within_s, self._clock()
        while True:
            steps = self._steps()
            carrying = self._users | {
                one for one, step in steps.items() if step == MemberStep.JOINED
            }
            self._look()
            if len(carrying) == members and carrying == self._users | steps.keys():
                return
            if self._clock() >= end:
                self.found.missed.append(
                    f"{len(carrying)} members carry {operations:g} operations per second after {within_s:g} s, "
                    f"{members} were expected: {self._why()}"
                )
                return
            if self._clock() >= due:
                self._put(operations, carrying)
                due = self._clock() + self._settings.period_s
            self._sleep(_PAUSE_S)

    def judge_steps(self) -> None:
        """Look at all that was decided on the group: no change is larger than a step."""
        least, most = -self._settings.largest_in, self._settings.largest_out
        for line in self._jobs.scaling_decisions(self._group):
            self.found.looks += 1
            if not least <= line["change"] <= most:
                self.found.outside.append(
                    f"{line['change']:+d} members were decided, {least:+d} to {most:+d} are a step"
                )

    def strays(self, within_s: float) -> list[str]:
        """Return servers in the group that neither its user nor the service has put there, once none is."""
        end = self._clock() + within_s
        while left := sorted(self._servers() - self._users - self._steps().keys()):
            if self._clock() >= end:
                break
            self._sleep(_PAUSE_S)
        return left

    def _put(self, operations: float, members: frozenset[str]) -> None:
        ask(
            self._load,
            _COMMAND_S,
            group=self._group,
            members=",".join(sorted(members)),
            operations=repr(float(operations)),
            objective_ms=repr(self._settings.objective_ms),
        )

    def _steps(self) -> Mapping[str, str]:
        """Return the step of each member that the service adds or takes out; of one without a server by its number."""
        shown = self._jobs.scaling(self._group)["members"]
        return {
            str(each["server_id"] or number): str(each["step"]) for number, each in enumerate(shown)
        }

    def _look(self) -> None:
        there, settings = self._servers(), self._settings
        self.found.looks += 1
        if not settings.least <= len(there) <= settings.most:
            self.found.outside.append(
                f"the group has {len(there)} servers, {settings.least} to {settings.most} are allowed"
            )
        elif self._users - there:
            gone = ", ".join(sorted(self._users - there))
            self.found.outside.append(f"servers of its user are gone: {gone}")

    def _why(self) -> str:
        shown = self._jobs.scaling(self._group)
        last = shown["last_decision"]
        return str(shown["trouble"] or (last["why"] if last else "nothing was decided"))


def networks(server: Mapping[str, Any] | None) -> list[str]:
    """Return the networks of servers that the service adds, of what novaclient takes: ``nics``."""
    nics = (server or {}).get("nics", "auto")
    if isinstance(nics, str):
        return [] if nics == "auto" else [nics]
    return [str(each["net-id"]) for each in nics]


def of_group(source: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return a source of the API in which ``{group}`` is a group's uuid; other braces are PromQL's."""

    def filled(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: filled(each) for name, each in value.items()}
        return value.replace("{group}", group) if isinstance(value, str) else value

    return dict(filled(source))
