# SPDX-License-Identifier: Apache-2.0
"""Requests of users about leases of remote GPUs."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import flask

from nova_numa_ext.orchestrator.api import bodies, policies, request, views
from nova_numa_ext.orchestrator.api.handlers import unreadable_leases
from nova_numa_ext.orchestrator.api.handlers.limits import ProjectLimits
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.api.routes import MOST_ROWS, ROWS
from nova_numa_ext.orchestrator.api.schemas import check_attach, check_lease, check_move
from nova_numa_ext.orchestrator.cloud.user import CloudOf
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.lease_hosts import NO_USE, LeaseHost
from nova_numa_ext.orchestrator.store.stored_lease import StoredLease
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.lease_terms import LeaseTerm
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits.errors import InvalidValueError
from placement_traits.reason import Reason


class LeaseHandlers:
    """Answers them."""

    def __init__(
        self, stores: Stores, rights: Rights, cloud: CloudOf, limits: ProjectLimits
    ) -> None:
        self._stores = stores
        self._rights = rights
        self._cloud = cloud
        self._limits = limits

    def create(self) -> Any:
        asking = request.asking()
        self._rights.allow(asking, policies.LEASE_CREATE)
        asked, server = check_lease(bodies.parsed(flask.request.get_data()))
        if asked.priority > 0:
            self._rights.allow(asking, policies.LEASE_PRIORITY)
        if server:
            self._check_server("$.lease.server_id", server, asking.project)
        self._limits.check_lease(asking.project, asked)
        made = self._stores.leases.create(asking.project, asking.user, asked, server)
        return self._shown(made), 202

    def find(self) -> Any:
        asking = request.asking()
        everywhere = request.flag("all_projects")
        self._rights.allow(asking, policies.LEASE_LIST_ALL if everywhere else policies.LEASE_LIST)
        found = self._stores.leases.find(
            project=None if everywhere else asking.project,
            states=request.states(LeaseState),
            after=flask.request.args.get("marker"),
            limit=request.number("limit", ROWS, 1, MOST_ROWS),
            unreadable=unreadable_leases.leave_out,
        )
        hosts = self._stores.lease_hosts.all() if found else {}
        return {"leases": [self._shown(each, hosts)["lease"] for each in found]}

    def show(self, uuid: str) -> Any:
        return self._shown(self._lease(uuid, policies.LEASE_SHOW))

    def attach(self, uuid: str) -> Any:
        @cache
        def server(project: str) -> str:
            found = check_attach(bodies.parsed(flask.request.get_data()))
            self._check_server("$.attach.server_id", found, project)
            return found

        def assigned(lease: StoredLease, actor: Actor) -> StoredLease:
            return self._stores.leases.assign(lease, server(lease.project), actor)

        return self._changed(uuid, policies.LEASE_ATTACH, assigned)

    def _check_server(self, where: str, server: str, project: str) -> None:
        """Look whether a server is of the project whose lease it is to use.

        :raises InvalidValueError: it is not, or is not there
        """
        if self._cloud(flask.request.environ).project_of(server) != project:
            raise InvalidValueError(where, server, "a server of the lease's project")

    def release(self, uuid: str) -> Any:
        def released(lease: StoredLease, actor: Actor) -> StoredLease:
            if lease.state is LeaseState.RELEASING:
                return lease
            if lease.state.final:
                raise RefusedRequestError(409, f"Lease {uuid} has ended.")
            reasons = (Reason(LeaseTerm.RELEASED, actor.name),)
            return self._stores.leases.change(lease, life.release, actor, reasons)

        return self._changed(uuid, policies.LEASE_RELEASE, released)

    def move(self, uuid: str) -> Any:
        @cache
        def host() -> str:
            return check_move(bodies.parsed(flask.request.get_data()))

        def moved(lease: StoredLease, actor: Actor) -> StoredLease:
            return self._stores.leases.ask_move(lease, host(), actor)

        return self._changed(uuid, policies.LEASE_MOVE, moved)

    def requeue(self, uuid: str) -> Any:
        def requeued(lease: StoredLease, actor: Actor) -> StoredLease:
            after = (each.value for each in lease.reasons if each.term == LeaseTerm.REPLACED)
            if heir := next(after, None):
                return self._lease(str(heir), policies.LEASE_REQUEUE)
            return self._stores.leases.requeue(lease, actor)

        return self._changed(uuid, policies.LEASE_REQUEUE, requeued)

    def _changed(
        self, uuid: str, rule: str, change: Callable[[StoredLease, Actor], StoredLease]
    ) -> Any:
        """Answer with a lease that was changed, as it was read; read again where another was faster."""
        actor = Actor(request.asking().user)
        lease = request.changed(f"Lease {uuid}", lambda: change(self._lease(uuid, rule), actor))
        return self._shown(lease), 202

    def _shown(
        self, lease: StoredLease, hosts: Mapping[str, LeaseHost] | None = None
    ) -> dict[str, Any]:
        """Return a lease with what the host of its GPU says of it.

        :param hosts: as they have reported; None: they are not read yet
        """
        name = lease.lease.gpu_host
        if hosts is None:
            hosts = self._stores.lease_hosts.all(name) if name else {}
        use = hosts[name].use_of(lease.uuid) if name in hosts else NO_USE
        internals = self._rights.may(request.asking(), policies.LEASE_INTERNALS, lease.project)
        return {"lease": views.lease(lease, internals=internals, use=use)}

    def _lease(self, uuid: str, rule: str) -> StoredLease:
        """Return a lease; see :meth:`Rights.readable`."""
        missing = RefusedRequestError(404, f"There is no lease {uuid}.")
        return self._rights.readable(
            self._stores.leases.read, uuid, policies.LEASE_SHOW, rule, missing
        )
