# SPDX-License-Identifier: Apache-2.0
"""Servers with GPUs land, or are refused, as the topology-aware policy says: h1 is a Minsky, h2 a DGX-1.

The jobs are those of table 7 of the source (Amaral 2019), their times scaled: a job ends when the test deletes it.
"""

import json
from dataclasses import dataclass

import pytest

from tests.integration.cloud import LabCloud, LabHost, Server, eventually

GPU_IDS = "0x1b36 0x0005"
JOB = {"numa_ext:tier": "BE", "numa_ext:gpu_policy": "topo_p", "numa_ext:gpu_comm": "4"}


@dataclass(frozen=True)
class Gpus:
    """The GPUs of one host.

    :param host: the host
    :param node_of: NUMA node by PCI address, ascending, as the host's kernel says
    """

    host: LabHost
    node_of: dict[str, str]

    @classmethod
    def of(cls, host: LabHost) -> "Gpus":
        """Ask the kernel."""
        listed = host.run(
            "cd /sys/bus/pci/devices; for d in *; do "
            'echo "$d $(cat $d/vendor) $(cat $d/device) $(cat $d/numa_node)"; done'
        )
        rows = [line.split() for line in listed.splitlines()]
        return cls(host, {row[0]: row[3] for row in rows if " ".join(row[1:3]) == GPU_IDS})

    def positions(self, addresses: list[str]) -> tuple[int, ...]:
        """Numbers of GPUs, in order of address."""
        return tuple(sorted(list(self.node_of).index(address) for address in addresses))


def allocated(cloud: LabCloud, server: Server) -> list[str]:
    """Addresses of the GPUs that Placement has given to a server."""
    return [name.partition("_")[2].lower() for name in cloud.held(server) if "_" in name]


def scheduled(cloud: LabCloud, flavor: str, gpus: Gpus) -> tuple[Server, tuple[int, ...]]:
    """Create a server on a host and wait until nova has claimed its GPUs."""
    server = cloud.create(flavor, "--host", gpus.host.name)
    taken = eventually(f"{server.name} is scheduled", lambda: allocated(cloud, server), 120, 2.0)
    return server, gpus.positions(taken)


def refused(cloud: LabCloud, flavor: str, host: LabHost) -> str:
    """Create a server that no host takes; returns what numa-ext-explain says."""
    server = cloud.settled(cloud.create(flavor, "--host", host.name))
    assert server.status == "ERROR", f"{flavor} was placed on {server.host}"
    assert "No valid host" in server.fault
    conf = str(cloud.settings.etc / "nova" / "nova.conf")
    return cloud.command("numa-ext-explain", "--config-file", conf, server.id).stdout


def job(cloud: LabCloud, gpus: int, min_utility: float, **extra_specs: str) -> str:
    """Make a flavor of table 7."""
    return cloud.flavor(
        {
            **JOB,
            "pci_passthrough:alias": f"gpu:{gpus}",
            "numa_ext:min_utility": str(min_utility),
            **extra_specs,
        }
    )


@pytest.fixture
def minsky(running_cloud: LabCloud) -> Gpus:
    """The first host, when none of its GPUs is in use::

    h1
    ├─ socket 0, node 0    two GPUs
    └─ socket 1, node 2    two GPUs
    """
    found = Gpus.of(running_cloud.hosts["h1"])
    if any(domain["hostdevs"] for domain in found.host.read_back()["domains"]):
        pytest.skip("another server on h1 holds a GPU")
    assert list(found.node_of.values()) == ["0", "0", "2", "2"]
    return found


def test_the_links_of_the_recorded_matrices_are_in_placement(cloud: LabCloud) -> None:
    """F-000-01, F-000-02: nodes, switches and NVLinks that the agents read are told as traits."""
    for host, gpus, links in (("h1", 4, 2), ("h2", 8, 16)):
        if host not in cloud.hosts:
            continue
        shown = json.loads(cloud.openstack("numa", "host", "show", host, "-f", "json").stdout)
        rows = [row for row in shown if row["Provider"].strip().startswith(f"{host}:gpu-")]
        assert len(rows) == gpus
        ends = [word for row in rows for word in row["Traits"].split(", ") if "GPU LINK NV" in word]
        assert len(ends) == 2 * links, f"{host}: {ends}"


@pytest.mark.long
def test_f_000_15_table_7_runs_as_the_policy_says(cloud: LabCloud, minsky: Gpus) -> None:
    """F-000-15: J1 avoids J0's socket, J3 is not put on GPUs 0 and 3, but on a socket that is wholly free."""
    one, two = job(cloud, 1, 0.3), job(cloud, 2, 0.5)
    j0, at0 = scheduled(cloud, one, minsky)
    assert at0 == (0,)
    j1, at1 = scheduled(cloud, one, minsky)
    assert at1 == (2,), "J1 is beside J0"
    j2, at2 = scheduled(cloud, one, minsky)
    assert at2 == (1,)
    for server in (j0, j1, j2):
        assert cloud.settled(server).status == "ACTIVE", server.fault
    cloud.delete([j0.id])
    told = eventually("J3 waits", lambda: _below(refused(cloud, two, minsky.host)), 120)
    assert "numa_ext:min_utility is 0.5" in told
    assert "needed: GPUs" in told
    cloud.delete([j2.id])

    def lands() -> tuple[int, ...]:
        j3 = cloud.settled(cloud.create(two, "--host", minsky.host.name))
        return minsky.positions(allocated(cloud, j3)) if j3.status == "ACTIVE" else ()

    assert eventually("J3 lands", lands) == (0, 1)


def _below(told: str) -> str | None:
    """Pass on an explanation that speaks of utility: right after a deletion Placement may have no GPUs yet."""
    return told if "have utility" in told else None


def test_f_000_22_cpus_and_memory_are_where_the_gpus_are(cloud: LabCloud, minsky: Gpus) -> None:
    """F-000-22, F-000-23: devices, vCPUs and memory on one NUMA node, and the guest sees no other GPUs; all say so."""
    flavor = job(cloud, 2, 0.5, **{"hw:numa_nodes": "1", "numa_ext:gpu_policy": "pack"})
    server = cloud.boot(flavor, "--host", minsky.host.name)
    domain = minsky.host.enforced(server.id)
    held = domain.facts["hostdevs"]
    assert sorted(held) == sorted(allocated(cloud, server))
    (node,) = {minsky.node_of[address] for address in held}
    assert domain.nodes == {node}
    assert domain.memory_share.get(node, 0.0) >= 0.99
    host = minsky.host
    drivers = [
        host.run(f"basename $(readlink /sys/bus/pci/devices/{address}/driver)") for address in held
    ]
    assert {driver.strip() for driver in drivers} == {"vfio-pci"}
    files = host.run(f"ls -l /proc/{domain.facts['pid']}/fd")
    assert "/dev/vfio/" in files, "QEMU does not hold a VFIO group"
    explained = json.dumps(host.ctl("explain", server.id))
    assert {address for address in held if f'"{address}"' not in explained} == set(), explained
    (told,) = [row for row in host.ctl("status") if row["uuid"] == server.id]
    assert told["gpus"] == [{"address": address, "node": int(node)} for address in sorted(held)]


def test_four_gpus_of_a_dgx_1_are_one_mesh(cloud: LabCloud) -> None:
    """A job of four that communicates gets a quad in which every pair is linked."""
    if "h2" not in cloud.hosts:
        pytest.skip("the lab runs with one emulated host")
    dgx = Gpus.of(cloud.hosts["h2"])
    assert len(dgx.node_of) == 8
    _, taken = scheduled(cloud, job(cloud, 4, 0.5), dgx)
    assert taken in ((0, 1, 2, 3), (4, 5, 6, 7))
