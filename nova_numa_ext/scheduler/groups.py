# SPDX-License-Identifier: Apache-2.0
"""What a RequestSpec says of a server group on the fabric: which group, how many of its servers, what they request.

A group is nova's server group of policy anti-affinity, and the servers of one request with the hint ``group``, or one
that is moved. In a move nova keeps the number of servers of the old create: it counts for one.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nova_numa_ext.fabrics import GroupOwner
from nova_numa_ext.job_hint import HINT
from nova_numa_ext.scheduler import moves
from placement_traits.errors import cut
from placement_traits.network_request import HINT_PREFIX, HINTS, NetworkRequest, network_request
from placement_traits.remote_gpu_request import LEASE_HINT
from placement_traits.request import InvalidRequestError

LOG = logging.getLogger(__name__)

_POLICY: Final = "anti-affinity"
_OTHERS: Final = frozenset({HINT, LEASE_HINT})  # of ours that say nothing about groups


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """A group whose servers are to be placed.

    :param uuid: of nova's server group
    :param project: whose it is
    :param user: whose it is
    :param request: what is requested of the network
    :param servers: how many of them are to be placed now
    :param per_host: servers of the group that may be on one host
    :param hosts: where the group has servers already, as nova-compute calls itself there
    :param members: uuids of its servers, those that are to be placed included
    :param moves: a server of it leaves its host
    :param problem: why it cannot be placed, '' where it can
    """

    uuid: str = ""
    project: str = ""
    user: str = ""
    request: NetworkRequest = field(default_factory=NetworkRequest)
    servers: int = 1
    per_host: int = 1
    hosts: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    moves: bool = False
    problem: str = ""

    @property
    def owner(self) -> GroupOwner:
        """Who holds its leafs."""
        return GroupOwner(self.uuid, self.project, self.user)

    @property
    def hosts_needed(self) -> int:
        """Hosts for the servers that are to be placed."""
        return -(-self.servers // self.per_host)


def has_hint(spec: Any) -> bool:
    """Return whether a RequestSpec has a hint about the network; nothing else may cost one that has none."""
    return any(name.startswith(HINT_PREFIX) and name not in _OTHERS for name in _hints(spec))


def read(spec: Any, host_states: Sequence[Any]) -> ServerGroup | None:
    """Return the group of a RequestSpec, None where nothing is requested of the network for a group.

    :param host_states: the hosts among which nova looks for one
    """
    extra_specs = dict(spec.flavor.extra_specs) if "extra_specs" in spec.flavor else {}
    moving = moves.is_move(spec, host_states)
    try:
        request = _request(extra_specs, _hints(spec))
    except InvalidRequestError as error:
        if moving:
            LOG.warning("Server %s may move although: %s", spec.instance_uuid, error)
            return None
        return ServerGroup(problem=str(error))
    group = spec.instance_group if "instance_group" in spec else None
    if request is None or (group is None and not has_hint(spec)):
        return None
    if group is None or group.policy != _POLICY:
        if moving:
            return None
        return ServerGroup(
            problem="what is requested of the network is for server groups of policy anti-affinity, and the "
            + ("server has no group." if group is None else f"group's policy is {group.policy}.")
        )
    return ServerGroup(
        group.uuid,
        spec.project_id,
        spec.user_id,
        request,
        1 if moving else max(1, spec.num_instances),
        group.rules.get("max_server_per_host", 1),
        tuple(group.hosts or ()) if "hosts" in group else (),
        tuple(group.members or ()) if "members" in group else (),
        moving,
    )


def _request(
    extra_specs: Mapping[str, str], hints: Mapping[str, Sequence[str]]
) -> NetworkRequest | None:
    """Return what flavor and hints request of the network; a hint of ours that does not exist is a mistake.

    :raises InvalidRequestError: a value or a hint is not allowed
    """
    unknown = [
        name for name in hints if name.startswith(HINT_PREFIX) and name not in {*HINTS, *_OTHERS}
    ]
    if unknown:
        raise InvalidRequestError(
            tuple(
                f"{cut(name)} is not a scheduler hint of numa_ext; allowed: {', '.join(HINTS)}."
                for name in sorted(unknown)
            )
        )
    return network_request(extra_specs, hints)


def _hints(spec: Any) -> Mapping[str, Sequence[str]]:
    return (spec.scheduler_hints if "scheduler_hints" in spec else None) or {}
