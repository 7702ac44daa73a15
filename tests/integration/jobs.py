# SPDX-License-Identifier: Apache-2.0
"""The lab's job service as the integration tests see it: jobs as a user has them, its processes as an operator does.

What a test asserts about servers, server groups, trusts and claims comes from nova, Keystone and Placement; of the
service's own database only the leader's row and the states of jobs are read, where the API would be too slow.
"""

import dataclasses
import io
import itertools
import os
import re
import signal
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pymysql
from keystoneauth1.adapter import Adapter
from numa_lab.cloud_api import answers
from numa_lab.controlplane import ControlPlane
from numa_lab.process import Process, session_members
from numa_lab.service import Service
from numa_lab.terminal import Progress

from nova_numa_ext.cli.jobs_client import SERVICE_TYPE, JobsClient
from nova_numa_ext.orchestrator.store.database import Database
from placement_traits.errors import ServiceUnavailableError
from tests.integration.cloud import Facts, LabCloud, eventually

ENDED = ("done", "failed", "cancelled")
# A term of a leader that is gone, the rounds of the next one, and a server that boots beside.
FOLLOWED_S = 60.0
BOOTED_S = 240.0
# A request that nova has not answered may come to something for a minute.
ENDED_S = 180.0
_LED_ROUNDS = re.compile(r'^numa_ext_jobs_rounds_total\{.*result="led".*\} (\S+)$', re.MULTILINE)


def part(name: str, flavor: str, **more: Any) -> Facts:
    """A part of a job, without a network: the lab has none."""
    return {"name": name, "flavor": flavor, "image": "toucher", "networks": ["none"], **more}


class LabJobs:
    """Jobs of one test, and the processes that carry them on."""

    def __init__(self, cloud: LabCloud) -> None:
        self._cloud = cloud
        self._controller = ControlPlane(cloud.settings, Progress(io.StringIO()))
        self._submitted: list[str] = []
        self._trusts_before = self._trusts()
        self.api = self.client()

    # -- as a user

    def client(self, url: str | None = None) -> JobsClient:
        """The service's API as the lab's administrator asks it.

        :param url: of another process than the catalogue names
        """
        return JobsClient(self.adapter(url))

    def adapter(self, url: str | None = None) -> Adapter:
        """What sends requests to the API; see :meth:`client`."""
        return Adapter(
            self._cloud.api.session,
            service_type=SERVICE_TYPE,
            interface="public",
            region_name="RegionOne",
            endpoint_override=url,
        )

    def submit(self, *parts: Facts, name: str = "it", **more: Any) -> str:
        """Submit a job; it ends with the test."""
        return self.noted(str(self.api.create({"name": name, "parts": [*parts], **more})["id"]))

    def noted(self, job: str) -> str:
        """Let a job end with the test, which has submitted it in another way."""
        self._submitted.append(job)
        return job

    def shown(self, job: str) -> Mapping[str, Any]:
        """The job as the API shows it."""
        return self.api.find(job)

    def answers(self, job: str) -> bool:
        """Whether the API shows a job: while something is started again it may not."""
        try:
            return bool(self.shown(job))
        except ServiceUnavailableError:
            return False

    def cancel(self, *jobs: str) -> None:
        """Cancel jobs, without waiting."""
        for job in jobs:
            self.api.change(self.shown(job), "cancel")

    def reached(self, job: str, state: str, timeout_s: float = BOOTED_S) -> Mapping[str, Any]:
        """Wait until a job is in a state; fails at once when it has ended in another one."""

        def probe() -> Mapping[str, Any] | None:
            found = self.shown(job)
            if found["state"] == state:
                return found
            why = [each["sentence"] for each in found["reasons"]]
            assert found["state"] not in ENDED, f"job {job} is {found['state']}: {why}"
            return None

        return eventually(f"job {job} is {state}", probe, timeout_s)

    def waits(self, job: str, *terms: str, timeout_s: float = 60.0) -> Mapping[str, Any]:
        """Wait until a job waits for one of these reasons."""

        def probe() -> Mapping[str, Any] | None:
            found = self.shown(job)
            assert found["state"] == "queued", f"job {job} is {found['state']}"
            return found if {each["term"] for each in found["reasons"]} & {*terms} else None

        return eventually(f"job {job} waits because of {' or '.join(terms)}", probe, timeout_s)

    def states(self, job: str) -> list[str]:
        """The states that a job has gone through, in order."""
        told = (str(event["state"]) for event in self.api.events(self.shown(job)))
        return [state for state, _ in itertools.groupby(told)]

    # -- as an operator

    def ask(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Ask the service's database."""
        settings = self._cloud.settings
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=settings.ports.mariadb,
                user="openstack",
                password=settings.passwords().database,
                database="numa_ext",
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query, values)
            return [tuple(row) for row in cursor.fetchall()]

    def database(self) -> Database:
        """The service's database."""
        settings = self._cloud.settings
        user = f"openstack:{quote(settings.passwords().database, safe='')}"
        return Database(f"mysql+pymysql://{user}@127.0.0.1:{settings.ports.mariadb}/numa_ext")

    def recover(self, *words: str) -> str:
        """What ``numa-ext-manage recover WORDS`` prints."""
        conf = self._cloud.settings.etc / "numa-ext-jobs" / "numa-ext-jobs.conf"
        return self._cloud.command(
            "numa-ext-manage", f"--config-file={conf}", "recover", *words
        ).stdout

    def state(self, job: str) -> str:
        """The state that is stored: a hundred times quicker than the API tells it."""
        [(state,)] = self.ask("SELECT state FROM job WHERE uuid = %s", job)
        return str(state)

    def term(self) -> int:
        """The number of the leader's term."""
        [(number,)] = self.ask("SELECT term FROM leader")
        return int(number)

    def leader(self) -> Process:
        """The engine that leads; waits until one does."""

        def probe() -> Process | None:
            row = "SELECT holder FROM leader WHERE expires_at > UNIX_TIMESTAMP(NOW(6))"
            holders = [str(holder) for (holder,) in self.ask(row) if holder]
            pids = {int(holder.rsplit("-", 2)[1]) for holder in holders}
            return next((each for each in self.engines() if _pid(each) in pids), None)

        return eventually("an engine leads", probe, FOLLOWED_S, 0.2)

    def engines(self) -> list[Process]:
        """The processes of all engines, whether they run or not."""
        return [each.process for each in self._services("numa-ext-engine-")]

    def service(self, name: str) -> Service:
        """A service of the controller."""
        [found] = self._services(name)
        return found

    def restart(self, name: str) -> None:
        """Stop a service of the controller, and start it again."""
        with self.stopped(name):
            pass

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Stop a service of the controller; at the end it serves again."""
        service = self.service(name)
        service.process.stop()
        try:
            yield
        finally:
            service.ensure(Progress(io.StringIO()))

    def rounds(self) -> int:
        """How many rounds the engines that run now have led, as their metrics count them."""
        ports, counted = self._cloud.settings.ports, 0
        for number, engine in enumerate(self.engines()):
            if _pid(engine) < 0:
                continue
            with urllib.request.urlopen(
                self._cloud.settings.url(ports.engine_metrics(number), "/metrics"), timeout=5
            ) as answer:
                found = _LED_ROUNDS.search(answer.read().decode())
            counted += int(float(found[1])) if found else 0
        return counted

    def kill_leader(self) -> None:
        """SIGKILL for the engine that leads."""
        os.kill(_pid(self.leader()), signal.SIGKILL)

    def running_again(self) -> None:
        """Start what of the service does not run."""
        for service in self._services("numa-ext-"):
            service.ensure(Progress(io.StringIO()))

    @contextmanager
    def paused(self, process: Process) -> Iterator[None]:
        """Pause a process, and what it has forked."""
        members = session_members(_pid(process))
        for member in members:
            os.kill(member, signal.SIGSTOP)
        try:
            yield
        finally:
            for member in members:
                os.kill(member, signal.SIGCONT)

    @contextmanager
    def another_api(self) -> Iterator[str]:
        """A second process of the API; yields its URL."""
        settings, first = self._cloud.settings, self.service("numa-ext-jobs-api")
        port = settings.ports.base + 14  # none of the lab's
        words = first.environment["GUNICORN_CMD_ARGS"]
        process = dataclasses.replace(
            first.process, name="numa-ext-jobs-api-2", pid_file=settings.run / "jobs-api-2.pid"
        )
        environment = {
            **first.environment,
            "GUNICORN_CMD_ARGS": f"{words} --bind 127.0.0.1:{port}",
        }
        url = settings.url(port)
        second = dataclasses.replace(
            first,
            process=process,
            environment=environment,
            ready=lambda: answers(f"{url}/healthcheck"),
        )
        try:
            second.ensure(Progress(io.StringIO()))
            yield url
        finally:
            process.stop()

    # -- what is there of jobs

    def servers(self, job: str) -> dict[str, str]:
        """Nova's servers of a job: the part by the uuid, by their tags."""
        compute = self._cloud.api.compute
        query = {"all_tenants": "1", "tags": f"numa-ext-job:{job}"}
        found = compute.get("/servers/detail", params=query, microversion="2.100").json()
        return {
            each["id"]: next(
                tag.removeprefix("numa-ext:") for tag in each["tags"] if tag.startswith("numa-ext:")
            )
            for each in found["servers"]
        }

    def untouched(self, job: str) -> dict[str, tuple[str, ...]]:
        """What tells for each server of a job whether it runs on as it did: state, start, host."""
        return {
            server: (shown.status, shown.launched_at, shown.compute_host)
            for server in self.servers(job)
            for shown in [self._cloud.api.compute.get_server(server)]
        }

    def left(self, *jobs: str) -> list[str]:
        """What there is of jobs that have ended, or of none: servers, groups, trusts, and claims in Placement.

        The trust of a job that has not ended is none of these, nor one that :meth:`kept` names.
        """
        found = [f"server {server} of {job}" for job in jobs for server in self.servers(job)]
        groups = self._cloud.api.compute.get("/os-server-groups?all_projects=1").json()
        for group in groups["server_groups"]:
            found += [f"group {group['name']}" for job in jobs if job in group["name"]]
        others = {
            str(each) for (each,) in self.ask("SELECT trust_id FROM job WHERE ended_at IS NULL")
        }
        trusts = self._trusts() - self._trusts_before - others - self.kept()
        found += [f"trust {trust}" for trust in trusts]
        listed = self._cloud.api.compute.servers(details=False, all_projects=True)
        known = {server.id for server in listed}
        published = self._cloud.published()
        holders = {
            consumer
            for name, provider in published.items()
            if name not in ("traits", "classes")
            for consumer in provider["allocations"]
        }
        return found + [f"allocation of {consumer}" for consumer in holders - known]

    def kept(self) -> set[str]:
        """Trusts that the service keeps on purpose: nova may still make what it was asked for and did not answer."""
        query = "SELECT trust_id FROM trust WHERE tries = 0 AND not_before > UNIX_TIMESTAMP(NOW(6))"
        return {str(trust) for (trust,) in self.ask(query)}

    def end(self) -> None:
        """Let all jobs of the test end; what the test has stopped runs again."""
        self.running_again()
        if self.ask("SELECT id FROM leader WHERE recover_at IS NOT NULL"):
            self.recover("--commit")
        left = [job for job in self._submitted if self.shown(job)["state"] not in ENDED]
        self.cancel(*left)
        for job in left:
            eventually(
                f"job {job} has ended",
                lambda job=job: self.shown(job)["state"] in ENDED,
                ENDED_S,
            )

    # -- helpers

    def _services(self, head: str) -> Sequence[Service]:
        return [each for each in self._controller.services() if each.name.startswith(head)]

    def _trusts(self) -> set[str]:
        api = self._cloud.api
        query = {"trustor_user_id": api.current_user_id}
        found = api.identity.get("/OS-TRUST/trusts", params=query).json()
        return {str(each["id"]) for each in found["trusts"]}


def _pid(process: Process) -> int:
    identity = process.identity()
    return identity.pid if identity else -1
