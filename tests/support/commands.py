# SPDX-License-Identifier: Apache-2.0
"""``openstack numa …`` run as the shell does; Nova is what the commands need of openstacksdk."""

import io
import json
import sys
from types import SimpleNamespace

from keystoneauth1.exceptions import EndpointNotFound

from nova_numa_ext.cli.cloud import Cloud
from nova_numa_ext.cli.jobs_client import JobsClient


class Compute:
    """Flavors and servers by name, and host aggregates."""

    default_microversion = None

    def __init__(self, flavors, servers=(), aggregates=None, image=None):
        self.flavors = {flavor.name: flavor for flavor in flavors}
        self.servers = {server.name: server for server in servers}
        self._aggregates = aggregates or {}  # metadata by uuid
        self.image = Images(image or {})

    def aggregates(self):
        return [SimpleNamespace(uuid=u, metadata=data) for u, data in self._aggregates.items()]

    def find_flavor(self, name, **_options):
        return self.flavors[name]

    def find_server(self, name, **_options):
        return self.servers[name]

    def get_server(self, uuid):
        return next(server for server in self.servers.values() if server.id == uuid)


class Images:
    """Glance with one image."""

    def __init__(self, properties):
        self._properties = properties

    def images(self):
        return [SimpleNamespace(name="image", properties=self._properties)]

    def find_image(self, name, **_options):
        return SimpleNamespace(id=name)

    def get(self, _path):
        return SimpleNamespace(json=lambda: self._properties)


def flavor(name, extra_specs):
    return SimpleNamespace(name=name, extra_specs=extra_specs, vcpus=1, ram=512)


def running_server(name, uuid, host, its_flavor):
    """A server that runs on ``host``."""
    return SimpleNamespace(
        name=name,
        id=uuid,
        status="ACTIVE",
        hypervisor_hostname=host,
        compute_host=host,
        flavor=its_flavor,
    )


def run(command_class, cloud, compute, *arguments):
    """Run a command with JSON output; returns (exit code, parsed output)."""
    code, output = execute(command_class, cloud, compute, [*arguments, "-f", "json"])
    return code, json.loads(output)


def as_table(command_class, cloud, compute, *arguments):
    """Run a command for people; returns what it prints."""
    return execute(command_class, cloud, compute, arguments)[1]


class NoJobService:
    """What keystoneauth is to the commands where the catalogue has no job service."""

    def request(self, *_words, **_options):
        raise EndpointNotFound


class CloudWithoutJobs(Cloud):
    """Placement and Nova without our job service."""

    def jobs(self):
        return JobsClient(NoJobService())


def execute(command_class, cloud, compute, arguments):
    """Run a command; returns (exit code, what it prints)."""
    connection = SimpleNamespace(placement=cloud.adapter, compute=compute, image=compute.image)
    app = SimpleNamespace(
        client_manager=SimpleNamespace(numa=CloudWithoutJobs(connection)),
        stdout=io.StringIO(),
        stderr=sys.stderr,
    )
    command = command_class(app, None)
    code = command.run(command.get_parser("numa").parse_args(list(arguments)))
    return code, app.stdout.getvalue()
