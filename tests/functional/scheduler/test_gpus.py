# SPDX-License-Identifier: Apache-2.0
"""Servers with GPUs on a Minsky: real Placement, real nova scheduler, nova's own PCI filter."""

from uuid import UUID, uuid5

import pytest
from nova import exception, objects
from nova.conf import CONF

from emulation.hosts import four_nodes
from nova_numa_ext import gpu_options
from nova_numa_ext.cli import explain_command
from nova_numa_ext.cli.server import ShowServer
from nova_numa_ext.cli.simulate import Simulate
from nova_numa_ext.conf import GROUP, GpuOptions, SchedulerOptions
from nova_numa_ext.scheduler import gpus as scheduler_gpus
from nova_numa_ext.scheduler import process, session
from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.names import GPU_COMM_TRAITS, GpuLink
from placement_traits.offers import L3State
from placement_traits.topology import Gpu, GpuEdge
from tests.support.commands import Compute, flavor, run, running_server
from tests.support.job_hints import KEY, hints, sealed

ADDRESSES = ("0000:21:00.0", "0000:22:00.0", "0000:61:00.0", "0000:62:00.0")
MINSKY = four_nodes(
    gpus=tuple(Gpu(address, node) for address, node in zip(ADDRESSES, (0, 0, 2, 2), strict=True)),
    gpu_links=(
        GpuEdge(ADDRESSES[0], ADDRESSES[1], GpuLink.NV2),
        GpuEdge(ADDRESSES[2], ADDRESSES[3], GpuLink.NV2),
    ),
)
TOPO = {"numa_ext:gpu_policy": "topo"}


def device(host, name):
    """Uuid of the provider of a device."""
    return str(uuid5(UUID(host.uuid), name))


def child(cloud, host, name, *traits, **resources):
    """Add a provider as nova-compute makes it for a device; returns its uuid."""
    made = device(host, name)
    [(resource, total)] = resources.items()

    def write():
        if resource.startswith("CUSTOM_"):
            cloud.placement.put(f"/resource_classes/{resource}")
        body = {"name": f"{host.host}_{name}", "uuid": made, "parent_provider_uuid": host.uuid}
        cloud.placement.post("/resource_providers", body)
        path = f"/resource_providers/{made}"
        cloud.placement.put(
            f"{path}/inventories",
            {"resource_provider_generation": 0, "inventories": {resource: {"total": total}}},
        )
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                cloud.placement.put(f"/traits/{trait}")
        cloud.placement.put(
            f"{path}/traits", {"resource_provider_generation": 1, "traits": list(traits)}
        )

    cloud.once((made, traits, resource, total), write)
    return made


def pools(providers, busy=()):
    """What nova-compute reports of its free PCI devices: a pool for each."""
    return objects.PciDevicePoolList(
        objects=[
            objects.PciDevicePool(
                vendor_id="10de",
                product_id="15f9",
                numa_node=0 if address < "0000:60" else 2,
                count=0 if address in busy else 1,
                tags={
                    "dev_type": "type-PCI",
                    "address": address,
                    "resource_class": "CUSTOM_GPU",
                    "rp_uuid": uuid,
                },
            )
            for address, uuid in providers.items()
        ]
    )


class Minskys:
    """Hosts with four GPUs each, counted by nova; :meth:`job` boots a server with some of them."""

    def __init__(self, cloud):
        self.cloud = cloud
        self.providers = {}
        self.places = {}

    def add(self, name, *, told=True, **changes):
        host = self.cloud.host(name, agent=False, **changes)
        self.cloud.once(("gpus", host.uuid), lambda: self._devices(host))
        self.providers[name] = {address: device(host, address) for address in ADDRESSES}
        host.pci_device_pools = pools(self.providers[name])
        self.places |= {uuid: address for address, uuid in self.providers[name].items()}
        if told:
            self.cloud.publish(name, MINSKY)

    def _devices(self, host):
        """Count the GPUs in Placement, as nova-compute does."""
        for address in ADDRESSES:
            child(self.cloud, host, address, "COMPUTE_MANAGED_PCI_DEVICE", CUSTOM_GPU=1)

    def job(self, gpus, comm=0, policy="topo", min_utility=0.0, hints=None, **specs):
        """Boot a server; returns its host and its GPUs' positions there."""
        [(host, taken)] = self.jobs(
            1, gpus, comm, policy, min_utility=min_utility, hints=hints, **specs
        )
        self._compute_takes(host, taken)
        return host, taken

    def jobs(self, count, gpus, comm=0, policy="topo", *, min_utility=0.0, hints=None, **specs):
        """Boot servers of one request; returns host and positions of each. Nova-compute has not seen them yet."""
        extra_specs = {
            "numa_ext:gpu_policy": policy,
            "numa_ext:gpu_comm": str(comm),
            "numa_ext:min_utility": str(min_utility),
            **specs,
        }
        request = objects.InstancePCIRequest(
            request_id="11111111-1111-1111-1111-111111111111",
            count=gpus,
            spec=[{"resource_class": "CUSTOM_GPU"}],
            alias_name="gpu",
        )
        asked = objects.RequestSpec(
            pci_requests=objects.InstancePCIRequests(requests=[request]), requested_resources=[]
        )
        asked.generate_request_groups_from_pci_requests()
        placed = self.cloud.boot(
            extra_specs,
            count=count,
            pci_requests=asked.pci_requests,
            requested_resources=asked.requested_resources,
            hints=hints,
        )
        servers = self.cloud.last_servers
        return [(host, self.taken(one)) for (host, _), one in zip(placed, servers, strict=True)]

    def taken(self, server):
        """Positions of the GPUs that a server has allocated."""
        allocations = self.cloud.placement.get(f"/allocations/{server}")["allocations"]
        addresses = [self.places[uuid] for uuid in allocations if uuid in self.places]
        return tuple(sorted(ADDRESSES.index(address) for address in addresses))

    def _compute_takes(self, name, positions):
        taken = {ADDRESSES[position] for position in positions}
        [host] = [node for node in self.cloud.hosts.computes if node.host == name]
        free = {
            pool.tags["address"] for pool in host.pci_device_pools.objects if pool.count
        } - taken
        host.pci_device_pools = pools(self.providers[name], busy=set(ADDRESSES) - free)

    def end(self, server, name, *positions):
        """Delete a server."""
        self.cloud.placement.delete(f"/allocations/{server}")
        [host] = [node for node in self.cloud.hosts.computes if node.host == name]
        busy = {p.tags["address"] for p in host.pci_device_pools.objects if not p.count}
        host.pci_device_pools = pools(
            self.providers[name], busy=busy - {ADDRESSES[position] for position in positions}
        )


@pytest.fixture
def minskys(cloud, nova_configuration):
    """One host as an IBM Minsky, its GPUs counted by nova; more come with :meth:`Minskys.add`::

    h1                       4 nodes of 2 CPUs; its agent has published the GPUs' places and links
    ├─ socket 0, node 0      0000:21:00.0 ═ NV2 ═ 0000:22:00.0    positions 0 and 1
    └─ socket 1, node 2      0000:61:00.0 ═ NV2 ═ 0000:62:00.0    positions 2 and 3
       each a provider of CUSTOM_GPU 1, as nova has PCI devices in Placement
    """
    nova_configuration.set("pci_in_placement", True, "filter_scheduler")
    found = Minskys(cloud)
    found.add("h1")
    return found


@pytest.mark.parametrize(("policy", "gpus"), [("pack", (0, 1)), ("spread", (0, 2))])
def test_f_000_14_policies_choose_the_devices_that_are_claimed(minskys, policy, gpus):
    """F-000-14, F-000-21: ``pack`` claims a linked pair, ``spread`` one GPU of each socket."""
    assert minskys.job(2, policy=policy) == ("h1", gpus)


def test_f_000_15_a_job_goes_to_the_other_socket_than_one_that_disturbs_it(minskys):
    """F-000-15: J1 of table 7 does not go beside J0 though that would mend a broken socket."""
    assert minskys.job(1, comm=4) == ("h1", (0,))
    assert minskys.job(1, comm=4) == ("h1", (2,))


def test_a_minimum_that_cannot_be_judged_is_not_taken_for_reached(cloud, nova_configuration):
    """No agent has told where the GPUs are: without a minimum the host serves, with one it does not."""
    nova_configuration.set("pci_in_placement", True, "filter_scheduler")
    blind = Minskys(cloud)
    blind.add("h1", told=False)
    cloud.view.refresh()
    assert blind.job(1)[0] == "h1"
    with pytest.raises(exception.NoValidHost):
        blind.job(1, min_utility=0.3)
    [group] = cloud.entries("filter")[-1]["refused"]
    assert group["reason"].startswith("numa_ext:min_utility=0.3 cannot be judged: Placement does")


def test_servers_of_one_request_see_each_other(minskys):
    """Nova asked Placement once for both, before the first was claimed."""
    placed = minskys.jobs(2, gpus=1, comm=4)
    assert placed == [("h1", (0,)), ("h1", (2,))]


def test_jobs_that_do_not_communicate_fill_a_socket_first(minskys):
    assert minskys.job(1) == ("h1", (0,))
    assert minskys.job(1) == ("h1", (1,))


def test_f_000_15_a_placement_below_the_minimum_is_refused_and_says_what_is_needed(minskys, capsys):
    """F-000-15: with GPUs 0 and 3 left between two jobs that disturb, J3 waits for a whole socket."""
    minskys.job(1, comm=4)
    minskys.job(1, comm=4)
    cloud = minskys.cloud
    with pytest.raises(exception.NoValidHost):
        minskys.job(2, comm=4, policy="topo_p", min_utility=0.5)
    [refused] = [h for h in cloud.entries("filter")[-1]["details"] if h["reasons"]]
    terms = [reason["term"] for reason in refused["reasons"]]
    assert terms == [
        "gpu_utility_below_minimum",
        "gpu_communication",
        "gpu_interference",
        "gpu_fragmentation",
        "gpu_needed",
        "gpu_postponed",
    ]
    assert refused["reasons"][0]["value"] == pytest.approx(1 / 6, abs=1e-3)
    [server] = cloud.last_servers
    assert explain_command.main([server, "--journal", str(cloud.journal_path)]) == 0
    told = capsys.readouterr().out
    assert "the best GPUs it offers have utility 0.167, numa_ext:min_utility is 0.5" in told
    assert "the distance between these GPUs costs 1 of 1" in told
    assert "interference with jobs beside these GPUs costs" in told
    assert "needed: GPUs 0000:21:00.0, 0000:22:00.0 with utility 0.66" in told
    assert "when the jobs on 0000:21:00.0 end" in told
    assert "nothing waits in nova, with numa_ext:gpu_policy=topo_p neither" in told


def test_a_job_that_was_postponed_for_the_last_time_takes_any_gpus(minskys):
    """The queue counts postponements, and says so in the hint of its servers."""
    minskys.cloud.configure(job_hint_keys=(KEY,))
    minskys.job(1, comm=4)
    minskys.job(1, comm=4)
    root = minskys.cloud.provider("h1")
    topo_p = {"comm": 4, "policy": "topo_p", "min_utility": 0.5}
    with pytest.raises(exception.NoValidHost):
        minskys.job(2, **topo_p, hints=hints(sealed(root)))
    host, _ = minskys.job(2, **topo_p, hints=hints(sealed(root, any_utility=True)))
    assert host == "h1"


def test_f_000_15_it_is_placed_when_a_socket_is_whole_again(minskys):
    """F-000-15: after the job on one socket has ended."""
    minskys.job(1, comm=4)
    [first] = minskys.cloud.last_servers
    minskys.job(1, comm=4)
    minskys.end(first, "h1", 0)
    assert minskys.job(2, comm=4, policy="topo_p", min_utility=0.5) == ("h1", (0, 1))


def test_what_an_agent_tells_of_older_servers_counts_like_own_picks(minskys, nova_configuration):
    """After a restart of nova-scheduler, or for servers of another one, only the agent knows who disturbs whom."""
    minskys.job(1)  # of its own it would be harmless
    busy = {0: L3State(frozenset({GPU_COMM_TRAITS[4]}))}
    minskys.cloud.publish("h1", MINSKY, busy)
    process.use(session.Engine(CONF, SchedulerOptions(), minskys.cloud.view, None))
    assert minskys.job(1, comm=4) == ("h1", (2,))


def test_f_000_21_the_weigher_prefers_the_host_with_the_better_set(minskys, nova_configuration):
    """F-000-21: one host has a whole socket left, the other one GPU per socket."""
    minskys.add("h2")
    for gpus in (1, 1):
        minskys.job(gpus, policy="spread", comm=4, **{"numa_ext:interference_class": "sheep"})
    used = {
        name: [p.tags["address"] for p in host.pci_device_pools.objects if not p.count]
        for name, host in ((h.host, h) for h in minskys.cloud.hosts.computes)
    }
    assert sum(map(len, used.values())) == 2
    host, gpus = minskys.job(2, comm=4)
    assert gpus in ((0, 1), (2, 3))
    [entry] = minskys.cloud.entries("weigh")[-1:]
    best, other = (score["terms"]["gpu"] for score in entry["scores"])
    assert best >= other
    assert entry["scores"][0]["node"] == host


def test_a_server_shows_its_gpus_with_nodes_and_links(minskys):
    minskys.job(2, comm=4)
    cloud = minskys.cloud
    job = running_server("job", cloud.last_servers[0], "h1", flavor("job", {}))
    _, shown = run(ShowServer, cloud, Compute([], [job]), "job")
    first, second = ADDRESSES[:2]
    assert shown["gpus"].splitlines() == [
        f"{first} (node 0)",
        f"{second} (node 0)",
        f"{first} - {second}: NV2",
    ]


def test_the_explanation_names_gpus_and_terms(minskys, capsys):
    minskys.job(2, comm=4)
    cloud = minskys.cloud
    explain_command.main([cloud.last_servers[0], "--journal", str(cloud.journal_path)])
    told = capsys.readouterr().out
    assert "GPUs 0000:21:00.0 0000:22:00.0 (NUMA node 0, utility 0.66" in told
    assert "loses on gpu=" in told


A100 = ("--pci-alias", '{"name": "a100", "resource_class": "gpu"}')


def test_a_what_if_shows_the_best_gpus_and_what_would_be_needed(minskys):
    """The what-if judges by the view, which is read afresh; jobs on busy GPUs are known by what agents publish."""
    wanted = {"pci_passthrough:alias": "a100:2", "numa_ext:gpu_comm": "4"}
    strict = {**wanted, "numa_ext:gpu_policy": "topo_p", "numa_ext:min_utility": "0.5"}
    compute = Compute([flavor("two", wanted), flavor("strict", strict)])
    _, [row] = run(Simulate, minskys.cloud, compute, "--flavor", "two", *A100)
    assert (row["Possible"], row["GPUs"]) == ("yes", "0000:21:00.0 0000:22:00.0 (0.663)")
    minskys.job(1, comm=4)
    minskys.job(1, comm=4)
    disturbed = L3State(frozenset({GPU_COMM_TRAITS[4]}))
    minskys.cloud.publish("h1", MINSKY, {0: disturbed, 2: disturbed})
    _, [row] = run(Simulate, minskys.cloud, compute, "--flavor", "strict", *A100)
    assert row["Possible"] == "no"
    assert "needed: GPUs 0000:21:00.0, 0000:22:00.0 with utility 0.663" in row["Lacks"]
    minskys.job(2)
    _, [row] = run(Simulate, minskys.cloud, compute, "--flavor", "two", *A100)
    assert row["Lacks"] == "GPUs free in Placement: 0, requested: 2"


def test_what_an_alias_stands_for_is_what_nova_says_not_its_name(minskys, capsys):
    """Nobody has CUSTOM_H100; a network card is no GPU; of an unknown alias nothing can be said, and that is said."""
    devices = {"h100": "h100:1", "gpunic": "gpunic:1", "unknown": "unknown:1"}
    compute = Compute(
        [flavor(n, {"pci_passthrough:alias": a, "numa_ext:tier": "BE"}) for n, a in devices.items()]
    )
    card = child(
        minskys.cloud,
        minskys.cloud.hosts.computes[0],
        "nic",
        "COMPUTE_MANAGED_PCI_DEVICE",
        CUSTOM_NIC=1,
    )
    assert card
    minskys.cloud.view.refresh()
    aliases = [
        f'{{"name": "{name}", "resource_class": "{resource}"}}'
        for name, resource in (("h100", "CUSTOM_H100"), ("gpunic", "CUSTOM_NIC"))
    ]
    known = [word for each in aliases for word in ("--pci-alias", each)]
    answers = {}
    for name in devices:
        _, [row] = run(Simulate, minskys.cloud, compute, "--flavor", name, *known)
        answers[name] = (row["Possible"], row["Lacks"])
    lacks = "GPUs free in Placement: 0, requested: 1"
    assert answers == {"h100": ("no", lacks), "gpunic": ("yes", ""), "unknown": ("yes", "")}
    assert "the PCI alias unknown are not judged" in capsys.readouterr().err


def test_vgpus_are_chosen_by_the_place_of_their_gpu(cloud):
    """A guest on node 2 gets its vGPU from a GPU there: nova itself has no affinity for vGPUs."""
    host = cloud.host("h1", agent=False, used={0: (2, 0), 1: (2, 0), 3: (2, 0)})
    parents = [f"pci_{address.replace(':', '_').replace('.', '_')}" for address in ADDRESSES]
    places = {child(cloud, host, name, "OWNER_NOVA", VGPU=2): name for name in parents}
    cloud.publish("h1", MINSKY)
    cloud.boot({**TOPO, "resources:VGPU": "1", "hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"})
    taken = cloud.placement.get(f"/allocations/{cloud.last_servers[0]}")["allocations"]
    assert [places[uuid] for uuid in taken if uuid in places] == ["pci_0000_61_00_0"]


@pytest.mark.parametrize(
    ("specs", "gpus"),
    [
        ({"resources:VGPU": "2"}, ["0000:61:00.0"]),
        (
            {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "none"},
            ["0000:21:00.0", "0000:61:00.0"],
        ),
    ],
)
def test_a_what_if_asks_all_parts_of_an_amount_of_one_gpu(cloud, specs, gpus):
    """GPU 0 serves one more, GPU 2 two more: an amount of two is given by one provider, two groups by any."""
    host = cloud.host("h1", agent=False)
    for position, parts in ((0, 1), (2, 2)):
        name = f"pci_{ADDRESSES[position].replace(':', '_').replace('.', '_')}"
        child(cloud, host, name, "OWNER_NOVA", VGPU=parts)
    cloud.publish("h1", MINSKY)
    compute = Compute([flavor("vgpu", {**TOPO, **specs}), flavor("many", {"resources:VGPU": "3"})])
    _, [row] = run(Simulate, cloud, compute, "--flavor", "vgpu")
    assert row["Possible"] == "yes"
    assert row["GPUs"].partition(" (")[0].split() == gpus
    _, [row] = run(Simulate, cloud, compute, "--flavor", "many")
    assert row["Lacks"] == "GPUs free in Placement: 0, requested: 1"


def vgpus_of_one_request(cloud, count, each=1, **specs):
    """Boot servers with so many vGPUs of one GPU each; returns the position of each one's GPU."""
    cloud.boot({**TOPO, "resources:VGPU": str(each), **specs}, count=count)
    names_of = {
        f"pci_{address.replace(':', '_').replace('.', '_')}": address for address in ADDRESSES
    }
    found = []
    for server in cloud.last_servers:
        taken = cloud.placement.get(f"/allocations/{server}")["allocations"]
        devices = [cloud.placement.get(f"/resource_providers/{uuid}")["name"] for uuid in taken]
        found += [
            ADDRESSES.index(names_of[name.partition("_")[2]]) for name in devices if "_pci_" in name
        ]
    return found


def add_vgpus(cloud, positions, each):
    """Add a host whose GPUs serve so many vGPUs each."""
    host = cloud.host("h1", agent=False)
    for position in positions:
        name = f"pci_{ADDRESSES[position].replace(':', '_').replace('.', '_')}"
        child(cloud, host, name, "OWNER_NOVA", VGPU=each)
    cloud.publish("h1", MINSKY)


@pytest.mark.parametrize("comm", ["0", "4"])
def test_vgpus_of_one_request_are_on_different_gpus_when_each_serves_one(cloud, comm):
    """Nova asked Placement once for both; the first one's GPU is still offered, but the claim would fail."""
    add_vgpus(cloud, (0, 1), each=1)
    assert vgpus_of_one_request(cloud, 2, **{"numa_ext:gpu_comm": comm}) == [0, 1]


def test_vgpus_of_one_request_share_a_gpu_until_it_is_full(cloud):
    add_vgpus(cloud, (0, 2), each=2)
    assert vgpus_of_one_request(cloud, 4) == [0, 0, 2, 2]


def test_servers_of_one_request_take_several_vgpus_each_as_long_as_a_gpu_has_them(cloud):
    """Of three parts the second server's two are no longer there, though Placement still offers the GPU for both."""
    add_vgpus(cloud, (0, 2), each=3)
    assert vgpus_of_one_request(cloud, 2, each=2) == [0, 2]


def test_two_groups_of_one_server_may_take_their_vgpus_of_one_gpu(cloud):
    """Of six parts all three servers get two; one of them finds a single part on each GPU, or leaves that to others."""
    add_vgpus(cloud, (0, 2), each=3)
    groups = {"group_policy": "none", "resources1:VGPU": "1", "resources2:VGPU": "1"}
    cloud.boot({**TOPO, **groups}, count=3)
    held = [
        [
            taken["resources"]["VGPU"]
            for taken in cloud.placement.get(f"/allocations/{server}")["allocations"].values()
            if "VGPU" in taken["resources"]
        ]
        for server in cloud.last_servers
    ]
    assert [sum(parts) for parts in held] == [2, 2, 2]


def test_a_used_up_gpu_counts_as_a_neighbour_within_a_request(cloud):
    """Four servers that disturb each other: the second goes to the other socket, though Placement still offers all."""
    add_vgpus(cloud, (0, 1, 2, 3), each=1)
    assert vgpus_of_one_request(cloud, 2, **{"numa_ext:gpu_comm": "4"}) == [0, 2]


def test_a_vgpu_of_an_earlier_request_that_placement_offers_again_is_free(cloud):
    """Its server has ended; the scheduler still remembers the pick."""
    add_vgpus(cloud, (0, 1), each=1)
    assert vgpus_of_one_request(cloud, 1) == [0]
    cloud.placement.delete(f"/allocations/{cloud.last_servers[0]}")
    assert vgpus_of_one_request(cloud, 1) == [0]


def test_any_device_whose_provider_tells_its_place_is_chosen_by_it(cloud):
    """Accelerators on four nodes, the first and the last linked: counted by a class of the operator's own."""
    host = cloud.host("h1", agent=False)
    link = names.gpu_link(GpuLink.NV1, 0, 3)
    places = {
        child(
            cloud,
            host,
            f"fpga{number}",
            names.GPU,
            names.numbered("NODE", number),
            *([link] if number in (0, 3) else []),
            CUSTOM_FPGA=1,
        ): number
        for number in range(4)
    }
    cloud.publish("h1", four_nodes(gpus=(), gpu_links=()))
    pack = {"numa_ext:gpu_policy": "pack", "group_policy": "none"}
    cloud.boot({**pack, "resources1:CUSTOM_FPGA": "1", "resources2:CUSTOM_FPGA": "1"})
    taken = cloud.placement.get(f"/allocations/{cloud.last_servers[0]}")["allocations"]
    assert {places[uuid] for uuid in taken if uuid in places} == {0, 3}


def test_a_request_without_devices_is_not_looked_at(cloud, monkeypatch):
    cloud.host("h1", MINSKY)
    monkeypatch.setattr(scheduler_gpus, "gpu_map", lambda _view: 1 / 0)
    assert cloud.boot({"numa_ext:tier": "BE"}) == [("h1", [])]


def rules(**options):
    return gpu_options.rules(GpuOptions(**options), GROUP)


def test_f_000_10_the_three_weights_are_options_and_count_by_their_ratio():
    """F-000-10: weights that are normalised."""
    found = rules(communication_weight=2.0, interference_weight=0.0)
    assert found.options.communication == pytest.approx(2 / 3)
    assert found.options.fragmentation == pytest.approx(1 / 3)


def test_f_000_07_profiles_of_flavors_and_weights_come_from_a_file(tmp_path):
    """F-000-07: the 95th percentile of five runs; what the file does not name stays built in."""
    path = tmp_path / "profiles.yaml"
    runs = "[10, 10, 10, 10, 10]"
    path.write_text(
        f"train:\n  pack_s: {runs}\n  beside_s:\n    comm-4: [11, 12, 15, 12, 12]\n"
        f"comm-3:\n  pack_s: {runs}\n"
    )
    store = rules(profiles=str(path)).store
    assert store.slowdown("train", "comm-4") == pytest.approx(1.5)
    assert store.slowdown("comm-3", "comm-4") == 1.0
    assert store.slowdown("comm-4", "comm-4") == pytest.approx(1.3)


def test_f_000_04_measured_distances_come_from_a_file_and_decide(
    minskys, nova_configuration, tmp_path
):
    """F-000-04: by levels and links GPUs 0 and 1 are the pair; measured, it is 1 and 3."""
    path = tmp_path / "distances.yaml"
    rows = "[[0, 9, 9, 9], [9, 0, 9, 1], [9, 9, 0, 9], [9, 1, 9, 0]]"
    path.write_text(f"minsky:\n  gpus: {list(ADDRESSES)}\n  distances: {rows}\n")
    minskys.cloud.configure(gpu=GpuOptions(distances=str(path)))
    assert minskys.job(2, comm=4, policy="pack") == ("h1", (1, 3))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"profiles": "/nonexistent.yaml"}, "a readable YAML or JSON file"),
        ({"distances": "/nonexistent.yaml"}, "a readable YAML or JSON file"),
        (
            {f"{n}_weight": 0.0 for n in ("communication", "interference", "fragmentation")},
            "one of them > 0",
        ),
    ],
)
def test_a_mistake_in_the_options_is_told_in_one_sentence(options, sentence):
    with pytest.raises(InvalidValueError, match=sentence):
        rules(**options)
