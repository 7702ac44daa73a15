# SPDX-License-Identifier: Apache-2.0
"""Requests about where a server group hangs on a fabric."""

from typing import Any

import flask

from nova_numa_ext.group_topology import FORMATS, CabledServer, hashed, hashed_fabric
from nova_numa_ext.orchestrator.api import policies, request
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.cloud.cabling import CablingOf
from nova_numa_ext.orchestrator.cloud.user import CloudOf
from placement_traits.errors import InvalidValueError


class TopologyHandlers:
    """Answers them.

    :param key: under which names of nodes are hashed; empty: none is shown
    """

    def __init__(self, rights: Rights, cloud: CloudOf, cabling: CablingOf, key: bytes) -> None:
        self._rights = rights
        self._cloud = cloud
        self._cabling = cabling
        self._key = key

    def show(self, uuid: str) -> Any:
        asking = request.asking()
        self._rights.allow(asking, policies.TOPOLOGY)
        form = flask.request.args.get("format", "json")
        if form not in FORMATS:
            raise InvalidValueError("query format", form, ", ".join(FORMATS))
        cloud = self._cloud(flask.request.environ)
        group = cloud.user_group(uuid)
        if group is None or not self._rights.may(asking, policies.TOPOLOGY, group.project):
            raise RefusedRequestError(404, f"There is no server group {uuid}.")
        if not self._key:
            raise RefusedRequestError(
                409, "The operator has set no topology_key: no topology is shown."
            )
        names = cloud.servers_of(group.project)
        seen = [server for server in group.members if server in names]
        found = self._cabling.of(seen)
        if found is None:
            raise RefusedRequestError(409, f"No server of group {uuid} is on a host of a fabric.")
        cabled = list(map(CabledServer, (names[each] for each in seen), found.nodes))
        servers = hashed(cabled, group.project, found.fabric, self._key)
        return {
            "topology": {
                "server_group_id": uuid,
                "fabric": hashed_fabric(group.project, found.fabric, self._key),
                "levels": list(found.levels),
                "servers": [
                    {"id": server, "name": each.name, "nodes": list(each.nodes)}
                    for server, each in zip(seen, servers, strict=True)
                ],
                "file": None if form == "json" else FORMATS[form](servers, found.levels),
            }
        }
