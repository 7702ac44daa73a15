# SPDX-License-Identifier: Apache-2.0
"""Where nova sent a server, as nova's API shows it: totals are no answer, for nova may take another host than the best.

A claim that fails, ``[filter_scheduler]host_subset_size``, an alternate after a failed build and a request that nova
gives up are all invisible to filters and weighers. But each nova-compute that begins to build a server, or to take it
over, writes an event with its host into the request's action (``GET /servers/ID/os-instance-actions/REQUEST``). That
an event is a success says little: a build that is tried again elsewhere is one, too.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from keystoneauth1.adapter import Adapter

# What nova-compute does on the host that the scheduler chose (nova/compute/manager.py, wrap_instance_event).
_AT_DESTINATION: Final = frozenset(
    {
        "compute__do_build_and_run_instance",
        "compute_prep_resize",
        "compute_finish_resize",
        "compute_prep_snapshot_based_resize_at_dest",
        "compute_finish_snapshot_based_resize_at_dest",
        "compute_rebuild_instance",
        "compute_unshelve_instance",
        "compute_check_can_live_migrate_destination",
        "compute_pre_live_migration",
        "compute_post_live_migration_at_destination",
    }
)


@dataclass(frozen=True, slots=True)
class Destination:
    """What nova shows of one request about one server.

    :param hosts: to which nova sent the server, in that order; the last one it took. None: nova does not show it
    :param unknown: why it does not; empty where it does
    :param now: the host where the server is; None: on none, or nova does not show it
    :param status: the server's; None: nova does not show it
    """

    hosts: tuple[str, ...] | None
    unknown: str = ""
    now: str | None = None
    status: str | None = None


def ask(compute: Adapter, server: str, request: str | None) -> Destination:
    """Ask nova where it sent a server.

    :param compute: compute endpoint, microversion 2.62 or newer (hosts of events)
    :param server: uuid
    :param request: request id; None: none is known
    :raises keystoneauth1.exceptions.ClientException: nova does not answer
    """
    shown = _body(compute, f"/servers/{server}").get("server", {})
    where = shown.get("OS-EXT-SRV-ATTR:host"), shown.get("status")
    if request is None:
        return Destination(None, "the decision has no request id", *where)
    body = _body(compute, f"/servers/{server}/os-instance-actions/{request}")
    if "instanceAction" not in body:
        return Destination(None, f"nova shows no action of {request} for this server", *where)
    events = body["instanceAction"].get("events", ())
    if not all("host" in event for event in events):
        policy = "os_compute_api:os-instance-actions:events"
        return Destination(None, f"nova shows this user no hosts of events ({policy})", *where)
    return Destination(_hosts(events), "", *where)


def _hosts(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the hosts in order of time; nova shows the newest event first, and its times are whole seconds."""
    oldest_first = events[::-1]
    in_order = sorted(oldest_first, key=lambda event: str(event["start_time"]))
    hosts = [event["host"] for event in in_order if event["event"] in _AT_DESTINATION]
    return tuple(host for host, _ in itertools.groupby(hosts))


def _body(compute: Adapter, path: str) -> Mapping[str, Any]:
    """Return the decoded body; empty where nova refuses or knows nothing of it."""
    response = compute.get(path, raise_exc=False)
    body: Mapping[str, Any] = response.json() if response.status_code == 200 else {}
    return body
