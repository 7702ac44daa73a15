# SPDX-License-Identifier: Apache-2.0
"""Requests of hosts: the leases that they serve or use, and their reports."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import flask

from nova_numa_ext.orchestrator.api import bodies, policies, request, views
from nova_numa_ext.orchestrator.api.handlers import unreadable_leases
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.api.schemas import check_report
from nova_numa_ext.orchestrator.lease_steps import LOST_S
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import LostRaceError
from nova_numa_ext.orchestrator.store.stored_lease import StoredLease
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.policy.remote_gpu.leases import LeaseState

_LOG: Final = logging.getLogger(__name__)


class HostHandlers:
    """Answers them."""

    def __init__(self, stores: Stores, rights: Rights) -> None:
        self._stores = stores
        self._rights = rights

    def leases(self, host: str) -> Any:
        self._rights.allow_host(request.asking(), policies.HOST_LEASES, host)
        return views.host_leases(self._leases_of(host), host)

    def report(self, host: str) -> Any:
        asking = request.asking()
        self._rights.allow_host(asking, policies.HOST_REPORT, host)
        report = check_report(bodies.parsed(flask.request.get_data()))
        serves = {each["id"]: each for each in report["serves"]}
        ended = {each["id"]: each["epoch"] for each in report["ended"]}
        kept = report if self._stores.recovery.recovering() else None
        # It lives, whatever becomes of the rest; of what it has, an old database is made whole.
        self._stores.lease_hosts.report(
            host,
            report["servers"],
            kept,
            report.get("requests", ()),
            _figures(report, "busy"),
            can_move=report.get("can_move", False),
            link_mbps=_figures(report, "link_mbps"),
            used_mb=_figures(report, "used_mb"),
        )
        moves = {each["id"]: each for each in report.get("moves", ())}
        for read in self._leases_of(host):
            lease = self._noted(read, host, moves.get(read.uuid), Actor(asking.user))
            served, actor = lease.lease.epoch_at(host) is not None, Actor(asking.user)
            ending = lease.lease.ends_at(host) is not None
            try:
                if ending and lease.uuid in ended:
                    self._stores.leases.acknowledge(lease, host, ended[lease.uuid], "", actor)
                elif served and lease.uuid in serves:
                    epoch, address = serves[lease.uuid]["epoch"], serves[lease.uuid]["address"]
                    self._stores.leases.acknowledge(lease, host, epoch, address, actor)
                elif served and lease.uuid in ended:
                    self._stores.leases.fail(lease, host, ended[lease.uuid], actor)
            except LostRaceError as error:
                _LOG.info("lease %s: %s", lease.uuid, error)  # it is reported again
        return views.host_leases(self._leases_of(host), host)

    def _noted(
        self, lease: StoredLease, host: str, said: Mapping[str, Any] | None, actor: Actor
    ) -> StoredLease:
        """Take note of what a host reports of the move of a lease; return it."""
        move = lease.move
        moves = move is not None and move.carried and lease.state is LeaseState.MOVING
        if move is None or said is None or not moves or said["epoch"] != lease.lease.epoch:
            return lease
        noted = move
        if host == lease.lease.gpu_host:
            noted = replace(noted, sent_mb=said["sent_mb"], of_mb=said["of_mb"])
            if said["why"]:
                noted = replace(noted, trouble=noted.trouble or said["why"], stays=True)
        elif said["why"]:
            noted = replace(noted, trouble=noted.trouble or said["why"])
        else:
            noted = replace(noted, address=said["address"])
        if noted == move:
            return lease
        try:
            return self._stores.leases.plan_move(lease, noted, actor)
        except LostRaceError as error:
            _LOG.info("lease %s: %s", lease.uuid, error)  # it is reported again
            return lease

    def off(self, host: str) -> Any:
        asking = request.asking()
        self._rights.allow(asking, policies.HOST_OFF)
        silent_s = self._stores.lease_hosts.silent_s(host)
        if silent_s is None:
            raise RefusedRequestError(404, f"No host {host} has ever reported.")
        if silent_s < LOST_S:
            raise RefusedRequestError(
                409,
                f"Host {host} has reported {silent_s:.0f} s ago: it is on. Turn it off, and wait until it has been "
                f"silent for {LOST_S:.0f} s.",
            )
        ended = []
        for lease in self._leases_of(host):
            if lease.lease.gpu_host == host and lease.claimed:
                ended.append(self._written_off(lease.uuid, Actor(asking.user)))
        return {"leases": [views.lease(each, internals=True) for each in ended if each is not None]}

    def _written_off(self, uuid: str, actor: Actor) -> StoredLease | None:
        """Return a lease that was ended, None where it had ended meanwhile."""

        def attempt() -> StoredLease | None:
            lease = self._stores.leases.read(uuid)
            if lease is None or lease.state.final:
                return None
            return self._stores.leases.write_off(lease, actor)

        return request.changed(f"Lease {uuid}", attempt)

    def _leases_of(self, host: str) -> list[StoredLease]:
        """Return a host's leases.

        :raises RefusedRequestError: the database is an old one, or a lease is of another release
        """
        if self._stores.recovery.recovering():
            raise RefusedRequestError(503, "The database recovers: leases run on as they are.")
        return self._stores.leases.of_host(host, unreadable_leases.refuse)


def _figures(report: Mapping[str, Any], name: str) -> dict[str, float]:
    """Return a figure of each lease that a host serves, of those of which it says one."""
    return {each["id"]: each[name] for each in report["serves"] if name in each}
