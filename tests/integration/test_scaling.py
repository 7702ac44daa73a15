# SPDX-License-Identifier: Apache-2.0
"""An elastic group on the lab's nova: it grows and shrinks with its load, and outlives engines that are killed.

The service is a load balancer that the story stands for: its hook writes down which member carries load, and its
monitoring is the file that the story appends to. A member can do 100 reads per second.
"""

import io
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numa_lab import models
from numa_lab.terminal import Progress

from tests.integration.cloud import LabCloud, Server, eventually
from tests.integration.jobs import FOLLOWED_S, LabJobs
from tests.support.prometheus_server import prometheus_server, shown_page

OBJECTIVE_MS = 35.0
CAPACITY_PER_S = 100.0
PERIOD_S = 15.0
LEAST, MOST = 3, 6
LEARNT_FROM = (
    120,
    180,
    240,
    285,
    315,
    360,
    420,
    480,
    *[430] * 8,
)  # reads per second of three members
HIGH, LOW = 430.0, 180.0  # reads per second: five members, and three
WALKED = (*dict.fromkeys(LEARNT_FROM), *[LOW] * 6)
CALLS = 3  # of a hook until it is done, one a round: so each step lasts long enough for a kill
SCALED_S = 900.0
STEPS = ("asked", "building", "adding", "joining", "draining", "deleting")
DOWN_S = 2.0 * PERIOD_S  # so long the source may say nothing new
NOTICED_S = 150.0  # a group that was looked at in vain is looked at again after a minute
LEARNT_S = 2.0 * NOTICED_S  # the models of all periods of a walk are fitted first
SCRAPED_S = 1
QUERIES = {
    # What was scraped before a silence says nothing after it.
    "reads": "last_over_time(web_reads[3s])",
    # Where the load has just changed, latencies are those of the one before, too.
    "latency_ms": "last_over_time(web_latency_ms[3s]) unless on (server) changes(web_reads[$window]) > 0",
}
HEAD = "time_s,member,reads_per_s,latencies_ms,placement\n"
HOOK = """#!/bin/sh
echo "$1 $2" >> "{log}"
[ "$(grep -c "^$1 $2\\$" "{log}")" -ge {calls} ] || exit 75
"""


class ElasticService:
    """A service on the lab: three servers of its user in a server group, a hook, and a monitoring.

    :ivar group: uuid of the server group
    :ivar placement: how good a member's place is said to be, 1 where nothing is said
    """

    def __init__(self, cloud: LabCloud, jobs: LabJobs) -> None:
        self._cloud, self._jobs = cloud, jobs
        self.name = f"it-{uuid.uuid4().hex[:8]}"
        body = {"server_group": {"name": self.name, "policy": "soft-anti-affinity"}}
        made = cloud.api.compute.post("/os-server-groups", json=body, microversion="2.64")
        self.group = str(made.json()["server_group"]["id"])
        users = [self._boot() for _ in range(LEAST)]
        self.users = {cloud.active(server).id for server in users}
        self.placement: dict[str, float] = {}
        state = cloud.settings.state
        self.trace = state / "traces" / f"{self.name}.csv"
        self._hook, self._log = state / "hooks" / self.name, state / f"{self.name}.log"
        for folder in (self.trace.parent, self._hook.parent):
            folder.mkdir(exist_ok=True)
        self._log.touch()
        self._hook.write_text(HOOK.format(log=self._log, calls=CALLS))
        self._hook.chmod(0o755)

    def _boot(self) -> Server:
        return self._cloud.create("lab.tiny", "--hint", f"group={self.group}")

    def sized(
        self,
        *,
        enforce: bool,
        queries: dict[str, str] | None = None,
        flavor: str = "lab.tiny",
    ) -> None:
        """Have the group sized, of what was monitored until now.

        :param queries: of the Prometheus that is the source; None: a file is
        :param flavor: of servers that are added
        """
        if queries is None:
            now_s = time.time()
            rows = [
                row
                for back, total in zip(range(len(LEARNT_FROM), 0, -1), LEARNT_FROM, strict=True)
                for row in self._rows(now_s - PERIOD_S * back, total)
            ]
            self.trace.write_text(HEAD + "".join(rows))
        asked: dict[str, Any] = {
            "settings": {
                "objective_ms": OBJECTIVE_MS,
                "granularity": [10.0, 10.0, 5.0],
                "least": LEAST,
                "most": MOST,
                "head_room": 1.0,
                "lead_periods": 1,
                "period_s": PERIOD_S,
            },
            "source": {"csv": self.trace.name} if queries is None else {"prometheus": queries},
        }
        if enforce:
            # Five minutes of cool-down and twelve actions an hour are for clouds, not for a story.
            asked["settings"] |= {"cool_down_in_s": 0.0, "actions_per_hour": 100}
            asked["enforce"] = {
                "flavor": flavor,
                "image": "toucher",
                "networks": ["none"],
                "hook": self.name,
                "name": self.name,
            }
        self._jobs.api.set_scaling(self.group, asked)

    def measured(self, total: float) -> None:
        """Append a period in which the members share a load."""
        with self.trace.open("a") as file:
            file.write("".join(self._rows(time.time(), total)))

    def shared(self, total: float) -> tuple[list[str], float, float]:
        """Return who carries a load now, how much of it each one does, per second, and its latency, milliseconds."""
        members = sorted(self.users | self.carrying())
        reads = total / len(members)
        return members, reads, OBJECTIVE_MS * reads / CAPACITY_PER_S

    def _rows(self, at_s: float, total: float) -> list[str]:
        members, reads, latency_ms = self.shared(total)
        return [
            f"{at_s!r},{one},{reads!r},{latency_ms!r},{self.placement.get(one, 1.0)!r}\n"
            for one in members
        ]

    def calls(self) -> list[tuple[str, str]]:
        """Events and servers of the hook's calls that were done, in their order."""
        seen, done = dict[tuple[str, str], int](), list[tuple[str, str]]()
        for line in self._log.read_text().splitlines():
            event, _, server = line.partition(" ")
            seen[event, server] = seen.get((event, server), 0) + 1
            if seen[event, server] == CALLS:
                done.append((event, server))
        return done

    def carrying(self) -> set[str]:
        """Members that were added and carry load: the balancer has them, and drains them not yet."""
        drained = {
            line.partition(" ")[2]
            for line in self._log.read_text().splitlines()
            if line.startswith("drain ")
        }
        return {server for event, server in self.calls() if event == "ready"} - drained

    def events(self, server: str) -> list[str]:
        """What was done with a member, in order."""
        return [event for event, about in self.calls() if about == server]

    def servers(self) -> set[str]:
        """Servers that nova has in the group, those that it deletes left out."""
        shown = self._cloud.api.compute.get(f"/os-server-groups/{self.group}").json()
        return set(shown["server_group"]["members"])

    def tagged(self) -> set[str]:
        """Servers that carry the group's tag, anywhere in the cloud."""
        query = {"all_tenants": "1", "tags": f"numa-ext-scaling:{self.group}"}
        compute = self._cloud.api.compute
        found = compute.get("/servers/detail", params=query, microversion="2.100").json()
        return {each["id"] for each in found["servers"]}

    def steps(self) -> list[str]:
        """Steps of the members that the service has added, as they are stored."""
        query = (
            "SELECT step FROM scaling_member JOIN scaling_group"
            " ON scaling_member.group_id = scaling_group.id WHERE uuid = %s"
        )
        return [str(step) for (step,) in self._jobs.ask(query, self.group)]

    def has(self, added: int) -> bool:
        """Whether so many members were added, all of them carry load, and nothing is under way."""
        return self.steps() == ["joined"] * added and len(self.carrying()) == added

    def under(self, total: float, added: int, each_look: Callable[[], None] = lambda: None) -> None:
        """Have a load until so many members were added.

        :param each_look: called some times a second
        """

        def reached() -> bool:
            each_look()
            return self.has(added)

        self.while_under(total, f"{added} members more", reached, SCALED_S)

    def while_under(
        self, total: float, what: str, reached: Callable[[], bool], timeout_s: float
    ) -> None:
        """Have a load until something is so; see :func:`tests.integration.cloud.eventually`."""
        measured_at = -PERIOD_S

        def probe() -> bool:
            nonlocal measured_at
            if time.monotonic() >= measured_at + PERIOD_S:
                self.measured(total)
                measured_at = time.monotonic()
            return reached()

        self.eventually(f"{what} at {total:.0f}/s", probe, timeout_s, 0.2)

    def eventually(
        self, what: str, reached: Callable[[], bool], timeout_s: float, pause_s: float = 1.0
    ) -> None:
        """See :func:`tests.integration.cloud.eventually`; says what there is of the group instead."""
        eventually(what, reached, timeout_s, pause_s, lambda: (self.shown(), self.steps()))

    def shown(self) -> dict[str, Any]:
        """What the API shows of the group: the last decision, and what stands in the way."""
        found = self._jobs.api.scaling(self.group)
        return {name: found[name] for name in ("last_decision", "trouble", "source")}

    @property
    def last_term(self) -> str:
        """Why the group was changed or held last; '' where nothing was decided yet."""
        last = self._jobs.api.scaling(self.group)["last_decision"]
        return str(last["term"]) if last else ""

    @property
    def trouble(self) -> str:
        """What stands in the way now, '' for nothing."""
        return str(self._jobs.api.scaling(self.group)["trouble"])

    @property
    def refusals(self) -> int:
        """Refusals of nova, one after the other, until now."""
        query = "SELECT refusals FROM scaling_group WHERE uuid = %s"
        [(refusals,)] = self._jobs.ask(query, self.group)
        return int(refusals)

    def end(self) -> None:
        """Delete group, servers and files."""
        self._jobs.running_again()
        if any(each["id"] == self.group for each in self._jobs.api.scaling_groups()):
            self._jobs.api.delete_scaling(self.group)
        self._cloud.delete(sorted(self.servers() | self.tagged()))
        self._cloud.api.compute.delete(f"/os-server-groups/{self.group}")
        for path in (self.trace, self._hook, self._log):
            path.unlink(missing_ok=True)


class Gauges:
    """What a Prometheus scrapes of a service. A load begins with a period, as the engines cut time into periods."""

    def __init__(self, service: ElasticService) -> None:
        self._service = service
        self._loads: list[tuple[float, float]] = []

    def begin(self, total: float) -> float:
        """Have another load from the next period on, the first one at once; return the middle of that period."""
        at_s = PERIOD_S * (time.time() // PERIOD_S + 1.0)
        self._loads.append((at_s if self._loads else 0.0, total))
        return at_s + 0.5 * PERIOD_S

    def page(self, _path: str) -> bytes:
        """See :func:`tests.support.prometheus_server.shown_page`."""
        now_s = time.time()
        total = next(total for at_s, total in reversed(self._loads) if at_s <= now_s)
        members, reads, latency_ms = self._service.shared(total)
        shown = {"web_reads": reads, "web_latency_ms": latency_ms}
        lines = [
            f'{metric}{{server="{one}"}} {value!r}'
            for metric, value in shown.items()
            for one in members
        ]
        return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="module")
def libraries(running_cloud: LabCloud) -> str:
    """The folder of the libraries that fit models, from which the lab's engines start their workers."""
    return str(models.ensure(running_cloud.settings, Progress(io.StringIO())))


@pytest.fixture
def service(libraries: str, cloud: LabCloud, jobs: LabJobs) -> Iterator[ElasticService]:
    """See :class:`ElasticService`; it ends with the test."""
    made = ElasticService(cloud, jobs)
    try:
        yield made
    finally:
        made.end()


def nothing_is_left(service: ElasticService, jobs: LabJobs) -> None:
    """Only the user's servers are there, and no trust or claim when the group is deleted."""
    assert service.servers() == service.users
    assert service.tagged() == set()
    jobs.api.delete_scaling(service.group)
    eventually("nothing is left of the group", lambda: not jobs.left(), 120)


def only_members_were_added(service: ElasticService, added: int) -> None:
    """The group has so many servers that were added, each asked for once; the cloud has no other one of it."""
    assert len(service.carrying()) == added
    assert service.tagged() == service.carrying()
    assert service.servers() == service.users | service.carrying()


@pytest.mark.long
def test_a_group_grows_from_three_to_five_and_shrinks_to_three(
    service: ElasticService, jobs: LabJobs
) -> None:
    """Issue 21, point 6: hooks in order, and the member with the worst place leaves first."""
    service.sized(enforce=True)
    service.under(HIGH, 2)
    added = service.carrying()
    assert service.servers() == service.users | added
    assert service.tagged() == added
    for server in added:
        assert service.events(server) == ["add", "ready"]

    better, worst = sorted(added)  # by name the other one would leave first
    service.placement = {better: 0.9, worst: 0.2}
    service.under(LOW, 0)
    gone = [server for event, server in service.calls() if event == "delete"]
    assert gone == [worst, better]
    for server in added:
        assert service.events(server) == ["add", "ready", "drain", "delete"]
    nothing_is_left(service, jobs)


@pytest.mark.long
def test_an_engine_killed_at_each_step_leaves_no_server_doubled_or_lost(
    service: ElasticService, jobs: LabJobs
) -> None:
    """SIGKILL for the engine that leads when a member is first seen in a step; the other one goes on."""
    killed = list[str]()

    def kill() -> None:
        seen = service.steps()
        now = next((step for step in STEPS if step in seen and step not in killed), None)
        if now is None:
            return
        killed.append(now)
        term = jobs.term()
        jobs.kill_leader()
        jobs.running_again()
        eventually("another engine leads", lambda: jobs.term() > term, FOLLOWED_S, 0.2)

    service.sized(enforce=True)
    for _ in range(3):  # until the other engine leads, the next steps may go by unseen
        service.under(HIGH, 2, kill)
        assert service.tagged() == service.carrying()
        assert service.servers() == service.users | service.carrying()
        service.under(LOW, 0, kill)
        assert service.servers() == service.users
        if len(killed) == len(STEPS):
            break
    assert sorted(killed) == sorted(STEPS)
    nothing_is_left(service, jobs)


@pytest.mark.long
def test_no_host_for_a_flavor_is_said_and_no_server_is_asked_for(
    service: ElasticService, cloud: LabCloud, jobs: LabJobs
) -> None:
    """A terabyte of memory: Placement is asked before nova, which would make a server in ERROR and be asked again."""
    service.sized(enforce=True, flavor=cloud.flavor({}, ram=2**20))
    unmet = "no host has room"
    service.while_under(HIGH, unmet, lambda: service.last_term == "no_host", NOTICED_S)
    why = str(service.shown()["last_decision"]["why"])
    assert why == "no host for this flavor: none has 1 VCPU, 1048576 MEMORY_MB free"
    assert (service.steps(), service.refusals, service.tagged()) == ([], 0, set())

    service.sized(enforce=True)
    service.under(HIGH, 2)
    only_members_were_added(service, 2)


@pytest.mark.long
def test_a_group_grows_to_one_size_though_nova_is_down_meanwhile(
    service: ElasticService, jobs: LabJobs
) -> None:
    """Without nova's API nothing is done, and the reason is stored; it is down in steps of members, too."""
    service.sized(enforce=False)
    jobs.api.pause_scaling(service.group, paused=True)
    service.sized(enforce=True)
    with jobs.stopped("nova-api"):
        jobs.api.pause_scaling(service.group, paused=False)
        unseen = "the group must grow, and cannot be seen"
        service.while_under(HIGH, unseen, lambda: service.last_term == "unseen", NOTICED_S)
        assert service.steps() == []
        assert "does not answer" in service.trouble

    downs = list[str]()

    def down_in(step: str) -> None:
        if step in service.steps() and step not in downs:
            downs.append(step)
            with jobs.stopped("nova-api"):
                time.sleep(DOWN_S)

    service.under(HIGH, 2, partial(down_in, "building"))
    only_members_were_added(service, 2)
    service.under(LOW, 0, partial(down_in, "deleting"))
    assert downs == ["building", "deleting"]
    nothing_is_left(service, jobs)


@pytest.mark.long
def test_a_group_grows_to_one_size_though_placement_is_down_meanwhile(
    service: ElasticService, jobs: LabJobs
) -> None:
    """Nova finds no host then; what it has made is deleted, and it is asked again later."""
    with jobs.stopped("placement"):
        service.sized(enforce=True)
        service.while_under(HIGH, "a refusal", lambda: service.refusals > 0, NOTICED_S)
        assert service.carrying() == set()
    service.under(HIGH, 2)
    only_members_were_added(service, 2)


@pytest.mark.long
def test_a_group_holds_its_size_while_prometheus_is_down_and_goes_on_after(
    service: ElasticService, cloud: LabCloud, jobs: LabJobs, tmp_path: Path
) -> None:
    """A real Prometheus, which learns of loads as the service has them: low at last, and high while it is down."""
    settings = cloud.settings
    url = settings.url(settings.ports.prometheus)
    of_engine = settings.etc / "numa-ext-jobs" / "numa-ext-engine-0.conf"
    assert url in of_engine.read_text(), f"{settings.command} up has the engines ask {url}"
    gauges = Gauges(service)
    gauges.begin(LEARNT_FROM[0])
    with shown_page(gauges.page) as address:
        prometheus = partial(
            prometheus_server,
            tmp_path,
            {"web": [address]},
            SCRAPED_S,
            port=settings.ports.prometheus,
        )
        with prometheus():
            for total in WALKED:
                until_s = gauges.begin(total)
                time.sleep(max(until_s - time.time(), 0.0))
            service.sized(enforce=True, queries=QUERIES)
            small = ("enough", "least")
            enough = "the group is large enough"
            service.eventually(enough, lambda: service.last_term in small, LEARNT_S)
        gauges.begin(HIGH)
        silent = "Prometheus at 127.0.0.1 does not answer"

        service.eventually("it is stored why", lambda: silent in service.trouble, NOTICED_S)
        time.sleep(DOWN_S)
        assert silent in service.trouble, service.shown()
        assert service.steps() == []
        assert service.servers() == service.users
        with prometheus():
            service.eventually("two members more", lambda: service.has(2), SCALED_S)
            only_members_were_added(service, 2)
            service.eventually("nothing is wrong", lambda: not service.trouble, NOTICED_S)
            gauges.begin(LOW)
            service.eventually("no member more", lambda: service.has(0), SCALED_S)
    nothing_is_left(service, jobs)


@pytest.mark.long
def test_the_service_decides_as_the_replay_of_its_trace(
    service: ElasticService,
    jobs: LabJobs,
    libraries: str,
    cloud: LabCloud,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group is observed; models are fitted by the same libraries in the engine's worker and in the command."""
    service.sized(enforce=False)

    def decided() -> bool:
        found = sum(1 for _ in jobs.api.scaling_decisions(service.group))
        return found == len(LEARNT_FROM)

    eventually("each period is decided", decided, 120)
    paths = (libraries, os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    log = service.trace.with_suffix(".jsonl")
    words = (
        "numa group scaling replay",
        f"{service.trace} --decision-log {log} --objective-ms {OBJECTIVE_MS:g} --granularity 10,10,5",
        f"--least {LEAST} --most {MOST} --head-room 1 --lead-periods 1 --period-s {PERIOD_S:g}",
    )
    try:
        cloud.openstack(*" ".join(words).split())
        replayed = [json.loads(line) for line in log.read_text().splitlines()]
    finally:
        log.unlink(missing_ok=True)
    assert [*jobs.api.scaling_decisions(service.group)] == replayed
