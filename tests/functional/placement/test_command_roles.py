# SPDX-License-Identifier: Apache-2.0
"""Which roles ``openstack numa …`` needs in Placement, as the page of commands says: its own policies answer."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from osc_lib.exceptions import CommandError

from emulation.hosts import four_nodes
from nova_numa_ext.cli.capacity import ListCapacity, ShowCapacity
from nova_numa_ext.cli.doctor_command import Doctor
from nova_numa_ext.cli.fabric import (
    ApplyFabric,
    DrainFabric,
    ExportFabric,
    ImportFabric,
    RemoveFabric,
    ShowFabric,
    SweepFabric,
    UndrainFabric,
    VerifyFabric,
)
from nova_numa_ext.cli.fabric_figures import CalculateFabric, ShowFabricCapacity
from nova_numa_ext.cli.fabric_sources import native
from nova_numa_ext.cli.flavor import CheckFlavor
from nova_numa_ext.cli.group import ListGroup, ShowGroup, ShowGroupTopology, SimulateGroup
from nova_numa_ext.cli.group_repair import RepairGroup
from nova_numa_ext.cli.host import ListHost, SetHost, ShowHost
from nova_numa_ext.cli.maintenance import DrainHost, RemoveHost, UndrainHost
from nova_numa_ext.cli.pool import ListPool, ShowPool
from nova_numa_ext.cli.server import ShowServer
from nova_numa_ext.cli.simulate import Simulate
from nova_numa_ext.cli.topology import ShowTopology
from placement_traits.client import PlacementError
from placement_traits.fabric_tree import FabricWriter
from placement_traits.pool_reporter import PoolReporter
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from tests.support.commands import Compute, as_table, flavor, running_server
from tests.support.filled_placement import FilledPlacement
from tests.support.hosts import SETTINGS
from tests.support.placement_roles import PlacementWithRoles
from tests.support.pools import pool

PAGE = Path(__file__).parents[3] / "doc/source/cli/index.rst"
PLAN = Path(__file__).parents[3] / "etc/nova/numa-ext-fabric.yaml.sample"
SERVER = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
OF_JOB_SERVICE = (
    "job ",
    "lease ",
    *(f"group scaling {each}" for each in ("set", "list", "show", "delete", "pause", "resume")),
)
BE = {"numa_ext:tier": "BE"}

COMMANDS = {
    "host list": (ListHost,),
    "host show": (ShowHost, "h1"),
    "host set": (SetHost, "h1", "--mode", "observe"),
    "host drain": (DrainHost, "h1"),
    "host undrain": (UndrainHost, "h1"),
    "host remove": (RemoveHost, "h1"),
    "fabric apply": (ApplyFabric, str(PLAN)),
    "fabric show": (ShowFabric, "train"),
    "fabric capacity": (ShowFabricCapacity, "sample", "2"),
    "fabric drain": (DrainFabric, "train", "l1"),
    "fabric undrain": (UndrainFabric, "train", "l1"),
    "fabric remove": (RemoveFabric, "sample"),
    "fabric sweep": (SweepFabric,),
    "pool list": (ListPool,),
    "pool show": (ShowPool, "g1"),
    "group list": (ListGroup,),
    "group simulate": (SimulateGroup, "train", "1"),
    "group show": (ShowGroup, SERVER),
    "group topology": (ShowGroupTopology, SERVER, "--names"),
    "group repair": (RepairGroup, SERVER),
    "server show": (ShowServer, "web"),
    "capacity show": (ShowCapacity, "be"),
    "capacity list": (ListCapacity, "be"),
    "topology show": (ShowTopology, "h1"),
    "simulate": (Simulate, "--flavor", "be"),
    "doctor": (Doctor,),
}
WITHOUT = {
    "flavor check": (CheckFlavor, "be"),
    "fabric import": (ImportFabric, "--from", "native", str(PLAN)),
    "fabric export": (ExportFabric, "--to", "slurm-yaml", str(PLAN)),
    "fabric calculate": (CalculateFabric, "4,2", "1,2"),
    "fabric verify": (VerifyFabric, str(PLAN), "--from", "native", str(PLAN)),
    "topology show": (ShowTopology, "--preset", "dgx-1"),
}


@pytest.fixture(scope="module")
def placement():
    """A Placement with its own policies::

    h1                      as :func:`.conftest.reported_compute` draws it, without GPUs of nova's
    rgpu:g1                 the pool of a host that lends a GPU
    net:sample, …           the fabric of the sample plan
    """
    with PlacementWithRoles(policy_file=None) as found:
        FilledPlacement(found.adapter("service")).compute("h1")
        publish(found)
        PoolReporter(FilledPlacement(found.adapter("service")).client).sync(pool("g1"))
        FabricWriter(FilledPlacement(found.adapter("service")).client).apply(
            native.read(PLAN.read_text(), "sample")
        )
        yield found


def publish(placement):
    """Let the host's agent publish it."""
    client = FilledPlacement(placement.adapter("service")).client
    Reporter(client).sync(desired_tree("h1", four_nodes(), SETTINGS))


def nova():
    """Nova with a flavor and a server."""
    found = Compute([flavor("be", BE)], [running_server("web", SERVER, "h1", flavor("be", BE))])
    flavors = [*found.flavors.values()]
    found.find_flavor = lambda *_names, **_options: flavors[0]
    found.flavors = lambda **_options: flavors
    found.hypervisors = lambda **_options: [SimpleNamespace(name="h1", state="up")]  # type: ignore[attr-defined]
    found.get_endpoint_data = lambda: SimpleNamespace(max_microversion=(2, 100))  # type: ignore[attr-defined]
    found.request = group_of_one  # type: ignore[attr-defined]
    return found


def group_of_one(url, _method, **_options):
    """Nova's answer about a group with a server on h1, which hangs on no fabric."""
    body = {"server_group": {"members": [SERVER], "project_id": "p"}}
    if url.startswith("/servers/"):
        host = {"OS-EXT-SRV-ATTR:hypervisor_hostname": "h1"}
        body = {"server": {"status": "ACTIVE", "name": "web", **host}}
    return SimpleNamespace(status_code=200, json=lambda: body)


def call(adapter, command, *words):
    """Run a command; return what it prints, or the refusal that ended it."""
    try:
        return as_table(command, SimpleNamespace(adapter=adapter), nova(), *words)
    except (CommandError, PlacementError) as error:
        return str(error)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_is_refused_by_placement_in_a_sentence(placement, command):
    assert "Placement refused" in call(placement.adapter("reader"), *COMMANDS[command])


@pytest.mark.parametrize("role", ["admin", "service"])
@pytest.mark.parametrize("command", COMMANDS)
def test_each_of_two_roles_is_enough(placement, command, role):
    adapter = placement.adapter(role)
    assert "refused" not in call(adapter, *COMMANDS[command])
    assert adapter.log
    publish(placement)  # what was removed


@pytest.mark.parametrize("command", WITHOUT)
def test_what_needs_no_placement_asks_it_nothing(placement, command):
    adapter = placement.adapter("reader")
    assert "refused" not in call(adapter, *WITHOUT[command])
    assert adapter.log == []


def test_the_page_says_so():
    rows = re.findall(r"^   \* - ``openstack numa ([\w ]+)``\n     - (.+)$", PAGE.read_text(), re.M)
    told = {command: role for command, role in rows if not command.startswith(OF_JOB_SERVICE)}
    asking = {command for command, role in told.items() if role.startswith("admin or service")}
    assert asking == set(COMMANDS)
    assert set(told) - asking == {
        "flavor check",
        "group scaling replay",
        "simulate trace",
        "simulate network",
        "simulate remote",
        "fabric import",
        "fabric export",
        "fabric calculate",
        "fabric verify",
        "net qos apply",
        "net qos remove",
    }
