# SPDX-License-Identifier: Apache-2.0
"""Every ``openstack numa …`` of the documentation is run, page by page, against a real Placement with two hosts.

Nova is what the commands need of openstacksdk; its flavors are those that the pages make.
"""

import time
from pathlib import Path

import pytest

from placement_traits.beats import BeatWriter
from tests.functional.scheduler.conftest import BE
from tests.functional.scheduler.test_commands import SCHEDULER, ComputeApi
from tests.support.commands import execute, running_server
from tests.support.documented_commands import PAGES, ROOT, commands, flavor_of, plugin_of

HOSTS = ("h1", "compute1")
STANDS_FOR = {"HOST": "h1", "FLAVOR": "store.lc"}
NOVA_CONF = ("/etc/nova/nova.conf", ".lab/etc/nova/nova.conf")
# Other tests run these; tests/unit/test_documented_commands.py has their parsers read the words of the pages. Some read
# files of the user's and no cloud (tests/unit/nova_numa_ext); fabrics, groups and pools want their own providers
# (tests/functional/placement: test_fabric_commands.py, test_group_commands.py, test_pools.py), jobs and leases the job
# service (tests/functional/jobs/test_job_commands.py), ports their Neutron (tests/neutron).
ELSEWHERE = (
    ("simulate", "trace"),
    ("simulate", "network"),
    ("simulate", "remote"),
    ("group",),
    ("job",),
    ("fabric",),
    ("pool",),
    ("lease",),
    ("net", "qos"),
)


def elsewhere(words):
    """Whether these words of a command are run by other tests."""
    return any(words[: len(first)] == first for first in ELSEWHERE)


MADE = {
    flavor.name: flavor
    for page in PAGES
    for command in commands(page)
    if command.words[:3] == ("openstack", "flavor", "create")
    for flavor in [flavor_of(command)]
    if flavor.name != "lc.big"  # shown as refused
}
SHOWN = {
    page: found
    for page in PAGES
    if (
        found := [
            command.words[1:]
            for command in commands(page)
            if command.words[:2] == ("openstack", "numa") and not elsewhere(command.words[2:])
        ]
    )
}


class Nova(ComputeApi):
    """Flavors of the pages, an image with a port, and one server under any name."""

    def __init__(self, server, flavors):
        super().__init__(flavors, HOSTS)
        self._server = server
        self.image._properties = {"hw_qemu_guest_agent": "yes"}

    def find_flavor(self, name, **_options):
        return MADE[name]

    def find_server(self, name, **_options):
        return running_server(name, self._server, "h1", MADE["be.small"])

    def get_server(self, uuid):
        return self.find_server("any")


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_succeed(cloud, tmp_path: Path, page: Path) -> None:
    for host in HOSTS:
        cloud.host(host)
        BeatWriter(cloud.placement, host, time.time).beat(123)
    cloud.boot(BE)
    nova_conf = tmp_path / "nova.conf"
    nova_conf.write_text(SCHEDULER)
    stands_for = STANDS_FOR | dict.fromkeys(NOVA_CONF, str(nova_conf))
    for words in SHOWN[page]:
        command, arguments = plugin_of([stands_for.get(word, word) for word in words])
        flavors = () if "remove" in words else MADE.values()  # the page has them deleted before
        code, output = execute(command, cloud, Nova(cloud.last_servers[0], flavors), arguments)
        assert code == 0, f"{' '.join(words)}: {output}"
        assert output.strip(), words


def test_most_pages_for_operators_are_among_them() -> None:
    assert sum(map(len, SHOWN.values())) > 35
