# SPDX-License-Identifier: Apache-2.0
"""Requests about elastic groups."""

from typing import Any

import flask

from nova_numa_ext.orchestrator.api import bodies, intake, policies, request, views
from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError
from nova_numa_ext.orchestrator.api.rights import Rights
from nova_numa_ext.orchestrator.api.routes import MOST_ROWS, ROWS
from nova_numa_ext.orchestrator.api.scaling_schema import check_scaling, source_of
from nova_numa_ext.orchestrator.cloud.user import CloudOf
from nova_numa_ext.orchestrator.store.scaling import StoredScaling
from nova_numa_ext.orchestrator.store.stores import Stores


class ScalingHandlers:
    """Answers them."""

    def __init__(self, stores: Stores, rights: Rights, cloud: CloudOf) -> None:
        self._stores = stores
        self._rights = rights
        self._cloud = cloud

    def set(self, uuid: str) -> Any:
        asking = request.asking()
        self._rights.allow(asking, policies.SCALING_SET)
        settings, given, enforce = check_scaling(bodies.parsed(flask.request.get_data()))
        cloud = self._cloud(flask.request.environ)
        project = cloud.server_group(uuid)
        if project is None or not self._rights.may(asking, policies.SCALING_SET, project):
            raise RefusedRequestError(404, f"There is no server group {uuid}.")
        template, trust = None, ""
        if enforce is not None:
            if asking.project != project:
                raise RefusedRequestError(
                    403,
                    f"Servers of group {uuid} are made in its project {project}: use a token of that project.",
                )
            template = intake.template_of(enforce, cloud)
            cloud.check_trust()
            # One that is not stored after all is found by the engine and given back.
            trust = cloud.trust(None)
        source = source_of(given, project)
        group = self._stores.scaling.set(
            uuid, project, asking.user, settings, source, template=template, trust=trust
        )
        return self._shown(group)

    def find(self) -> Any:
        asking = request.asking()
        everywhere = request.flag("all_projects")
        rule = policies.SCALING_LIST_ALL if everywhere else policies.SCALING_LIST
        self._rights.allow(asking, rule)
        found = self._stores.scaling.find(
            project=None if everywhere else asking.project,
            after=flask.request.args.get("marker"),
            limit=request.number("limit", ROWS, 1, MOST_ROWS),
        )
        return {"scaling": list(map(views.listed_scaling, found))}

    def delete(self, uuid: str) -> Any:
        self._rights.allow(request.asking(), policies.SCALING_DELETE)
        if not self._stores.scaling.delete(uuid):
            raise _no_scaling(uuid)
        return "", 204

    def show(self, uuid: str) -> Any:
        return self._shown(self._group(uuid, policies.SCALING_SHOW))

    def decisions(self, uuid: str) -> Any:
        self._group(uuid, policies.SCALING_SHOW)
        found = self._stores.scaling.decisions(
            uuid, after=request.seconds("marker"), limit=request.number("limit", ROWS, 1, MOST_ROWS)
        )
        return {"decisions": found}

    def pause(self, uuid: str) -> Any:
        return self._paused(uuid, paused=True)

    def resume(self, uuid: str) -> Any:
        return self._paused(uuid, paused=False)

    def _paused(self, uuid: str, *, paused: bool) -> Any:
        asking = request.asking()
        self._group(uuid, policies.SCALING_PAUSE)
        group = self._stores.scaling.pause(uuid, asking.user, paused=paused)
        if group is None:
            raise _no_scaling(uuid)
        return self._shown(group)

    def _group(self, uuid: str, rule: str) -> StoredScaling:
        """Return an elastic group; see :meth:`Rights.readable`."""
        return self._rights.readable(
            self._stores.scaling.read, uuid, policies.SCALING_SHOW, rule, _no_scaling(uuid)
        )

    def _shown(self, group: StoredScaling) -> dict[str, Any]:
        last = self._stores.scaling.last_decision(group)
        return {"scaling": views.scaling(group, last, self._stores.scaling_members.of(group))}


def _no_scaling(uuid: str) -> RefusedRequestError:
    return RefusedRequestError(404, f"There is no elastic group {uuid}.")
