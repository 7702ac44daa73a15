# SPDX-License-Identifier: Apache-2.0
"""Many nova-computes with nova's fake driver in one process, beside the lab: hosts of a fabric that run nothing.

What an agent would publish of each host is published once, for there is nothing to keep current.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from numa_lab.cloud_api import CloudApi
from numa_lab.process import Process

from placement_traits import names
from placement_traits.client import PlacementClient
from tests.integration.cloud import LabCloud, eventually

PROGRAM = Path(__file__).with_name("computes_in_one_process.py")

STARTED_S = 300.0
_CONF = """\
[DEFAULT]
host = fake-computes
compute_driver = fake.MediumFakeDriver
state_path = {state}
log_file = {log}
heal_instance_info_cache_interval = -1
update_resources_interval = 600
[api_database]
connection =
"""


class FakeComputes:
    """The computes; :meth:`start` and :meth:`end` come in pairs.

    :param hosts: their names, which no other host of the lab has
    """

    def __init__(self, cloud: LabCloud, hosts: Sequence[str]) -> None:
        self._cloud, self._hosts = cloud, hosts
        self._state = cloud.settings.lab / "fake-computes"
        self._log = cloud.settings.log / "fake-computes.log"
        self._process = Process("fake-computes", self._state / "pid", self._log)
        self._asks = CloudApi(cloud.settings)
        self._placement = PlacementClient(cloud.api.placement)

    def start(self) -> None:
        """Start them, and publish each as an agent does; return when nova may schedule there."""
        self._forget()  # of a run that was ended from outside
        before = self._asks.scheduler_view().hosts
        (self._state / "lock").mkdir(parents=True, exist_ok=True)
        conf = self._state / "fakes.conf"
        conf.write_text(_CONF.format(state=self._state, log=self._log))
        lab = self._cloud.settings.etc / "nova" / "nova.conf"
        environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
        environment["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "1"
        words = [sys.executable, "-P", f"{PROGRAM}", f"{lab}", f"{conf}", "--", *self._hosts]
        self._process.start(words, environment)

        def up() -> bool:
            self._process.require_alive()
            known = {each["hypervisor_hostname"] for each in self._asks.hypervisors()}
            states = {each["host"]: each["state"] for each in self._asks.services()}
            return known >= {*self._hosts} and {states[host] for host in self._hosts} == {"up"}

        eventually("nova sees the fake computes", up, STARTED_S, 3.0)
        for host in self._hosts:
            root = self._placement.provider_named(host)
            assert root is not None
            self._publish(root["uuid"], names.HOST)
            child = {"name": f"{host}:rdt", "parent_provider_uuid": root["uuid"]}
            self._publish(self._placement.post("/resource_providers", child)["uuid"], names.OWNER)

        self.wait_until_read(before + len(self._hosts))

    def wait_until_read(self, hosts: int = 0) -> None:
        """Wait until nova-scheduler knows what is in Placement now: of two readings more one has begun since.

        :param hosts: that it knows then at least
        """
        before = self._asks.scheduler_view().readings

        def read() -> bool:
            view = self._asks.scheduler_view()
            return view.hosts >= hosts and view.readings >= before + 2

        eventually("nova-scheduler has read Placement", read, STARTED_S, 2.0)

    def end(self) -> None:
        """End servers and computes, and take away what they have made in nova and Placement."""
        self._cloud.end()
        self._process.stop()
        self._forget()

    def _publish(self, provider: str, trait: str) -> None:
        path = f"/resource_providers/{provider}/traits"
        there = self._placement.get(path)
        self._placement.put(path, {**there, "traits": [*there["traits"], trait]})

    def _forget(self) -> None:
        """Take hosts and fabrics away; nova deletes the providers of its hosts with their services."""
        for host in self._hosts:
            child = self._placement.provider_named(f"{host}:rdt")
            if child is not None:
                self._placement.delete(f"/resource_providers/{child['uuid']}")
        for service in self._cloud.api.compute.services(binary="nova-compute"):
            if service.host in self._hosts:
                self._cloud.api.compute.delete_service(service)
