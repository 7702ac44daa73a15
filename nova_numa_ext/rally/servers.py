# SPDX-License-Identifier: Apache-2.0
"""What scenarios have in common: servers that are booted, examined and surely deleted."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from keystoneauth1.adapter import Adapter
from novaclient.exceptions import NotFound
from rally.common import cfg
from rally.task import atomic, utils
from rally_openstack.task.scenarios.nova import utils as nova_utils

from nova_numa_ext.cli.jobs_client import SERVICE_TYPE, JobsClient, Lease
from nova_numa_ext.rally import samples
from nova_numa_ext.rally.agreement import Facts, HeldAmounts
from nova_numa_ext.rally.cloud_checks import CloudChecks, Commands, NotInTimeError
from nova_numa_ext.rally.figures import SCHEDULE
from nova_numa_ext.rally.lease_checks import LeaseChecks
from nova_numa_ext.rally.samples import Topic
from placement_traits.errors import InvalidValueError
from placement_traits.request import parse

CONF = cfg.CONF

MICROVERSION: Final = "2.96"
"""Of compute: servers without networks are there from 2.37 on, ``host`` from 2.74 on."""

_HOST: Final = "OS-EXT-SRV-ATTR:host"


class NumaScenario(nova_utils.NovaScenario):  # type: ignore[misc]
    """Base of the scenarios.

    ``server`` of a task holds more arguments of a server's creation: ``nics`` (``none`` where there is no network
    service), and ``host``, which nova allows to administrators only. Rally's own methods take no ``nics: none``, and
    its clean-up looks only at what its users own.
    """

    def begin(self, server: Mapping[str, Any] | None, *, as_admin: bool = False) -> None:
        """Begin without servers.

        :param server: more arguments of each server's creation
        :param as_admin: they are the administrator's, as those that name a host are
        """
        self.made: list[Any] = []
        self._server = dict(server or {})
        self._as_admin = as_admin or "host" in self._server
        nova = self.admin_clients if self._as_admin else self.clients
        self._nova = nova("nova", MICROVERSION)

    @contextmanager
    def _servers(
        self, server: Mapping[str, Any] | None, *, as_admin: bool = False
    ) -> Iterator[None]:
        """Delete all servers at the end that the scenario has not deleted itself; arguments as for :meth:`begin`."""
        self.begin(server, as_admin=as_admin)
        try:
            yield
        finally:
            if self.made:
                self.delete(*self.made)

    def boot(self, image: Any, flavor: str) -> Any:
        """Boot a server and wait until it is ACTIVE.

        :param flavor: name
        """
        return self._active(self._create(self.generate_random_name(), image, self._flavor(flavor)))

    def boot_together(self, image: Any, flavor: str, count: int) -> None:
        """Boot several servers with one request, and wait until all are ACTIVE.

        :param flavor: name
        """
        name = self.generate_random_name()
        many = {"min_count": count, "max_count": count} if count > 1 else {}
        try:
            self._create(name, image, self._flavor(flavor), **many)
        finally:
            booted = self._named(name) if many else self.made[-1:]
        for each in booted:
            self._active(each)

    def _active(self, server: Any) -> Any:
        """Wait until a server is ACTIVE."""
        return utils.wait_for_status(
            server,
            ready_statuses=["ACTIVE"],
            update_resource=utils.get_from_manager(),
            timeout=CONF.openstack.nova_server_boot_timeout,
            check_interval=CONF.openstack.nova_server_boot_poll_interval,
        )

    def _named(self, name: str) -> list[Any]:
        """Return the servers of one request, and have them deleted in the end."""
        known = {server.id for server in self.made}
        listed: list[Any] = self._nova.servers.list(search_opts={"name": f"^{name}"})
        self.made += [each for each in listed if each.id not in known]
        return listed

    def _create(self, name: str, image: Any, size: Any, **more: int) -> Any:
        """Request servers of a flavor; returns the first."""
        with atomic.ActionTimer(self, "numa_ext.create"):
            first = self._nova.servers.create(name, image, size, **more, **self._server)
        self.made.append(first)
        return first

    def schedule(self, image: Any, flavor: str, count: int, within_s: float) -> None:
        """Request servers and wait until Placement counts something for each; then delete them."""
        cloud, project, size = self._cloud(), self._project(), self._flavor(flavor)
        name = self.generate_random_name()
        many = {"min_count": count, "max_count": count} if count > 1 else {}
        before = cloud.consumers(project)
        try:
            with atomic.ActionTimer(self, SCHEDULE):
                self._create(name, image, size, **many)
                cloud.wait_for_consumers(project, before + count, within_s)
        finally:
            if many:
                self._named(name)
        self.delete(*self.made)

    def delete(self, *servers: Any) -> None:
        """Delete servers, all at once, and wait until nova knows them no more."""
        with atomic.ActionTimer(self, "numa_ext.delete"):
            for server in servers:
                with suppress(NotFound):
                    server.delete()
            end = time.monotonic() + CONF.openstack.nova_server_delete_timeout
            for server in servers:
                while self._is_there(server.id):
                    if time.monotonic() >= end:
                        raise NotInTimeError(f"{server.id} is still there after its deletion")
                    time.sleep(CONF.openstack.nova_server_delete_poll_interval)
        gone = {server.id for server in servers}
        self.made = [each for each in self.made if each.id not in gone]

    @contextmanager
    def _server_group(self, policy: str = "soft-anti-affinity") -> Iterator[str]:
        """Yield the uuid of a server group; in the end it is deleted with all that is in it.

        Servers that are requested from here on are in it, until there is another one.
        """
        groups = self._nova.server_groups
        group = str(groups.create(self.generate_random_name(), policy).id)
        self._server["scheduler_hints"] = {"group": group}
        try:
            yield group
        finally:
            left = []
            for uuid in self._in_group(group):
                with suppress(NotFound):  # it has just gone
                    left.append(self.server(uuid))
            self.delete(*left)
            groups.delete(group)

    def _in_group(self, group: str) -> frozenset[str]:
        """UUIDs of the servers that nova has in a server group."""
        return frozenset(map(str, self._nova.server_groups.get(group).members))

    def _is_there(self, uuid: str) -> bool:
        try:
            self._nova.servers.get(uuid)
        except NotFound:
            return False
        return True

    def _migrate(self, server: Any, within_s: float) -> None:
        """Live-migrate a server to a host of nova's choice and wait until it runs there."""
        servers = self.admin_clients("nova", MICROVERSION).servers
        old, deadline = self._host_of(server), time.monotonic() + within_s
        with atomic.ActionTimer(self, "numa_ext.live_migrate"):
            servers.live_migrate(server.id, host=None, block_migration="auto")
            while True:
                shown = servers.get(server.id)
                if shown.status == "ACTIVE" and getattr(shown, _HOST) != old:
                    return
                if shown.status == "ERROR" or time.monotonic() >= deadline:
                    raise NotInTimeError(
                        f"{server.id} is {shown.status} on {getattr(shown, _HOST)}"
                    )
                time.sleep(1.0)

    def _attached(
        self, checks: LeaseChecks, server: Any, flavor: str, within_s: float
    ) -> list[Lease]:
        """Wait until a server can use the leases of remote GPUs that its flavor asks for.

        :param flavor: name
        :raises InvalidValueError: it asks for none
        """
        size = self._flavor(flavor)
        asked = parse(size.get_keys(), vcpus=size.vcpus, memory_mb=size.ram).remote_gpus
        if asked is None:
            raise InvalidValueError("flavor", flavor, "one with numa_ext:remote_gpu_memory_mb")
        with atomic.ActionTimer(self, "numa_ext.attach_leases"):
            return checks.attached(server.id, asked.count, within_s)

    def printed(self, server: Any, pattern: str, within_s: float) -> re.Match[str]:
        """Wait until a server has printed something on its console."""
        deadline = time.monotonic() + within_s
        while True:
            console = self._nova.servers.get_console_output(server.id) or ""
            if found := re.search(pattern, console):
                return found
            if time.monotonic() >= deadline:
                raise NotInTimeError(
                    f"{server.id} has not printed {pattern!r} within {within_s:g} s"
                )
            time.sleep(0.5)

    def _flavor(self, name: str) -> Any:
        found = [each for each in self._nova.flavors.list() if each.name == name]
        if not found:
            raise InvalidValueError("flavor", name, "the name of a flavor of this cloud")
        return found[0]

    def image(self, name: str) -> str:
        """ID of the image of a name."""
        found = self._adapter("image").get("/v2/images", params={"name": name}).json()["images"]
        if not found:
            raise InvalidValueError("image", name, "the name of an image of this cloud")
        return str(found[0]["id"])

    def server(self, uuid: str) -> Any:
        """A server of the scenario's own user, by its UUID."""
        return self._nova.servers.get(uuid)

    def _shown(self, server: Any) -> Any:
        """A server as administrators see it."""
        return self.admin_clients("nova", MICROVERSION).servers.get(server.id)

    def _host_of(self, server: Any) -> str:
        return str(getattr(self._shown(server), _HOST))

    def _adapter(self, service: str) -> Adapter:
        """The administrator's access to a service for which Rally has no client, or another in each release."""
        session, _ = self._admin_clients.keystone.get_session()
        credential = self._admin_clients.credential
        return Adapter(
            session,
            service_type=service,
            region_name=credential.region_name or None,
            interface=credential.endpoint_type or None,
        )

    def _jobs(self) -> JobsClient:
        """The administrator's access to the job service."""
        return JobsClient(self._adapter(SERVICE_TYPE))

    def _project(self) -> str:
        """ID of the project that owns the servers."""
        if not self._as_admin:
            return str(self.context["tenant"]["id"])
        session, _ = self._admin_clients.keystone.get_session()
        return str(session.get_project_id())

    def _cloud(self, read_back: str = "", explain: str = "") -> CloudChecks:
        return CloudChecks(self._adapter("placement"), Commands(read_back, explain))

    def _held(self, cloud: CloudChecks, servers: Sequence[Any]) -> list[HeldAmounts]:
        shown = [self._shown(server) for server in servers]
        return [
            cloud.held(one.id, getattr(one, _HOST), one.flavor.get("extra_specs")) for one in shown
        ]

    def _examine(
        self, cloud: CloudChecks, servers: Sequence[Any], settle_s: float
    ) -> tuple[list[HeldAmounts], dict[str, Facts]]:
        """Wait until hosts do what was allocated and hand on samples; returns allocations and what hosts show."""
        held = self._held(cloud, servers)
        with atomic.ActionTimer(self, "numa_ext.settle"):
            facts = cloud.settled(held, settle_s)
        found = cloud.findings(held, facts)
        for chart in found.charts():
            self.add_output(additive=chart)
        self._add_text("What is wrong", found.sentences())
        return held, facts

    def _gone(
        self,
        cloud: CloudChecks,
        servers: Sequence[Any],
        held: Sequence[HeldAmounts],
        before: Mapping[str, Facts],
        settle_s: float,
        *,
        earlier: Sequence[HeldAmounts] = (),
    ) -> None:
        """Delete servers and hand on what is left of them, and of those that were deleted earlier."""
        self.delete(*servers)
        with atomic.ActionTimer(self, "numa_ext.clean"):
            left = cloud.left([*earlier, *held], before, settle_s)
        gone = len(earlier) + len(held)
        self.add_output(additive=samples.chart(Topic.ORPHANS, gone, len(left)))
        self._add_text("What is left of deleted servers", left)

    def _add_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Hand on a table, for the report."""
        table = {"cols": list(columns), "rows": [list(row) for row in rows]}
        self.add_output(complete={"title": title, "chart_plugin": "Table", "data": table})

    def _add_text(self, title: str, sentences: Sequence[str]) -> None:
        """Hand on sentences for people, for the report."""
        if sentences:
            self.add_output(
                complete={"title": title, "chart_plugin": "TextArea", "data": list(sentences)}
            )
