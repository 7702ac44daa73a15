# SPDX-License-Identifier: Apache-2.0
"""The few questions the lab itself asks the cloud, with the standard library alone (no second of imports)."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .settings import Settings

_TIMEOUT_S = 30.0
_PUBLISHED = "CUSTOM_NUMA_EXT_TIER_BE"  # on the root of each host with an agent

_VIEW = (
    'numa_ext_scheduler_view_state{state="fresh"}',
    "numa_ext_scheduler_view_hosts",
    'numa_ext_scheduler_view_readings_total{result="done"}',
)


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """What nova-scheduler's plug-ins know of Placement.

    :param fresh: it may be trusted
    :param hosts: hosts with an agent in it
    :param readings: of Placement since the reader's start
    """

    fresh: bool = False
    hosts: int = 0
    readings: int = 0


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Whether an HTTP server answers at ``url``, with whatever status but an internal error."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, http.client.HTTPException):
        return False


class CloudApi:
    """Asks as the lab's administrator; the token is fetched at the first question.

    Methods raise ``OSError`` (``urllib.error`` is a kind of it) when a service does not answer.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._token = ""

    def hypervisors(self) -> list[dict[str, Any]]:
        """Nova's hypervisors: ``hypervisor_hostname``, ``state`` (up, down), ``status``."""
        answer = self._get(self._settings.ports.nova, "/v2.1/os-hypervisors/detail")
        return list(answer["hypervisors"])

    def has_hypervisor(self, name: str) -> bool:
        """Whether nova knows the hypervisor (its host has been discovered); False if nova is silent."""
        try:
            return name in {known["hypervisor_hostname"] for known in self.hypervisors()}
        except OSError:
            return False

    def services(self) -> list[dict[str, Any]]:
        """Nova's daemons: ``binary``, ``host``, ``state``, ``updated_at`` (ISO, UTC)."""
        return list(self._get(self._settings.ports.nova, "/v2.1/os-services")["services"])

    def has_reported(self, binary: str, host: str, since: float) -> bool:
        """Whether a daemon of nova has reported after ``since`` (seconds of the epoch).

        Nova itself calls a daemon up for a while after it has ended. False if nova is silent.
        """
        try:
            services = self.services()
        except OSError:
            return False
        for service in services:
            if (service["binary"], service["host"]) == (binary, host) and service["updated_at"]:
                reported = datetime.fromisoformat(service["updated_at"]).replace(tzinfo=UTC)
                return service["state"] == "up" and reported.timestamp() >= since - 1
        return False

    def has_agent(self, host: str) -> bool:
        """Whether our agent has published the host in Placement; False if Placement is silent.

        The tiers are the last that an agent writes; before any agent has, Placement knows no such trait and refuses.
        """
        query = f"/resource_providers?name={host}&required={_PUBLISHED}"
        try:
            answer = self._get(self._settings.ports.placement, query, "placement 1.39")
        except OSError:
            return False
        return bool(answer["resource_providers"])

    def scheduler_view(self) -> SchedulerView:
        """What nova-scheduler's plug-ins know of Placement; all zero while their metrics cannot be read."""
        url = self._settings.url(self._settings.ports.scheduler_metrics, "/metrics")
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
                lines = answer.read().decode().splitlines()
        except (OSError, http.client.HTTPException):
            return SchedulerView()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        fresh, hosts, readings = (float(values.get(series, 0)) for series in _VIEW)
        return SchedulerView(fresh == 1, int(hosts), int(readings))

    def servers(self) -> list[dict[str, Any]]:
        """All servers of all projects: ``name``, ``status``, ``OS-EXT-SRV-ATTR:host`` …"""
        answer = self._get(self._settings.ports.nova, "/v2.1/servers/detail?all_tenants=1")
        return list(answer["servers"])

    def _get(self, port: int, path: str, version: str = "compute 2.53") -> dict[str, Any]:
        if not self._token:
            self._token = self._new_token()
        headers = {"X-Auth-Token": self._token, "OpenStack-API-Version": version}
        return self._ask(self._settings.url(port, path), headers)[1]

    def _new_token(self) -> str:
        user = {
            "name": "admin",
            "domain": {"id": "default"},
            "password": self._settings.passwords().admin,
        }
        scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
        identity = {"methods": ["password"], "password": {"user": user}}
        body = {"auth": {"identity": identity, "scope": scope}}
        url = self._settings.url(self._settings.ports.keystone, "/v3/auth/tokens")
        headers, _ = self._ask(url, {}, json.dumps(body).encode())
        return str(headers["X-Subject-Token"])

    def _ask(
        self, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[Mapping[str, str], dict[str, Any]]:
        everything = {"Content-Type": "application/json", **headers}
        request = urllib.request.Request(url, data=body, headers=everything)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return answer.headers, json.load(answer)
