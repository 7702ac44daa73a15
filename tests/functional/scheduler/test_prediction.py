# SPDX-License-Identifier: Apache-2.0
"""Our restatement of nova's cell choice against nova's own function, over random hosts and guests."""

import logging
import math
import os
import random
import sys
import time

import pytest
from nova import objects
from nova.virt import hardware

from host_agent.decide.partitions.requests import l3_amounts
from host_agent.model.workload import Cell
from nova_numa_ext.policy.numa import cells, home
from nova_numa_ext.policy.numa.candidates import Candidate
from nova_numa_ext.scheduler import decision
from nova_numa_ext.scheduler import nova_objects as facts
from nova_numa_ext.scheduler.judge import DecisionContext, Judge
from placement_traits.fleet import L3View
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import PackingTrait
from placement_traits.offers import TreeSettings
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.tree import desired_tree, l3_place
from placement_traits.workload_request import L3Amount
from tests.support import novas_choice


@pytest.fixture(autouse=True, scope="module")
def nova_objects():
    objects.register_all()
    logging.getLogger("nova").setLevel(logging.ERROR)


class Host:
    """The part of a HostState that says what the host's cells are."""

    def __init__(self, topology, limits, stats):
        self.numa_topology = topology
        self.cpu_allocation_ratio = limits.cpu_allocation_ratio
        self.ram_allocation_ratio = limits.ram_allocation_ratio
        self.pci_stats = stats


def test_a_mixed_guest_that_packs_but_overcommits_leaves_its_mark_on_novas_search():
    """Nova numbers a guest cell once its CPUs pack, though the limits forbid the host cell: later pairs look known."""
    sizes = ((4, 4, 512, 2), (8, 8, 0, 2), (2, 8, 0, 10))
    host = objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=number,
                socket=0,
                cpuset=set(range(64 * number, 64 * number + shared)),
                pcpuset=set(range(64 * number + 32, 64 * number + 32 + dedicated)),
                memory=1024,
                memory_usage=used,
                cpu_usage=usage,
                pinned_cpus=set(),
                siblings=[{64 * number + 32 + cpu} for cpu in range(dedicated)],
                mempages=[],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            )
            for number, (shared, dedicated, used, usage) in enumerate(sizes)
        ]
    )
    guest = objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=0, cpuset={0}, pcpuset={1}, memory=512, cpu_policy="mixed", pagesize=None
            ),
            objects.InstanceNUMACell(
                id=1, cpuset={2, 3}, pcpuset={4}, memory=1024, cpu_policy="mixed", pagesize=None
            ),
        ]
    )
    limits = objects.NUMATopologyLimits(cpu_allocation_ratio=1.5, ram_allocation_ratio=1.0)
    known = facts.host_facts(Host(host, limits, None))
    mixed = [
        cells.GuestCell(cpus, 1, mib, cells.CpuPolicy.MIXED) for cpus, mib in ((1, 512), (2, 1024))
    ]
    ours = cells.predict(known.cells, mixed, known.limits)
    nova = hardware.numa_fit_instance_to_host(host, guest.obj_clone(), None, limits=limits)
    assert ours.nodes == tuple(cell.id for cell in nova.cells) == (0, 1)


HOSTS = REQUESTS = 16  # drawn together and compared each with each


def compared(rng):
    """Draw hosts and requests; yield for each pair both, and what we and nova-compute make of it.

    As when a request makes several servers, each RequestSpec carries what nova gave it on the host before.
    """
    hosts = [novas_choice.host(rng) for _ in range(HOSTS)]
    for _ in range(REQUESTS):
        request = novas_choice.request(rng)
        spec = request.spec()
        for host in hosts:
            parsed = decision.parse_spec(spec)
            assert parsed.request, parsed.problems
            host.allocation_candidates = [host.candidate(rng, request)]
            view = FleetSnapshot(FleetArrays.of(()), 0.0, ViewState.FRESH)
            judge = Judge(parsed.request, parsed.guest, spec, DecisionContext(view, pack=host.pack))
            ours = judge.predictions(host, None, facts.host_facts(host))(Candidate(0, (), ()))
            claimed = host.claim(request, host.allocation_candidates[0])
            spec.numa_topology = claimed  # type: ignore[attr-defined]
            yield request, host, ours, claimed


def test_floating_and_dedicated_are_what_nova_makes_of_flavor_and_image():
    """Any flavor and image that nova takes; ``NUMA_EXT_SEED`` repeats a run."""
    seed = int(os.environ.get("NUMA_EXT_SEED", time.time_ns()))
    rng, floating = random.Random(seed), 0
    for _ in range(2_000):
        request = novas_choice.request(rng)
        ours = decision.parse_spec(request.spec()).request
        cells_of_guest = request.topology.cells if request.topology else []
        dedicated = bool(cells_of_guest) and cells_of_guest[0].cpu_policy == "dedicated"
        found = (ours.floating, ours.dedicated, ours.numa_nodes or int(bool(cells_of_guest)))
        expected = (not cells_of_guest, dedicated, len(cells_of_guest))
        assert found == expected, (f"NUMA_EXT_SEED={seed}", request.flavor, request.image)
        floating += ours.floating
    assert floating > 20


def pinning(cell):
    """CPUs of a cell as nova-compute has pinned it."""
    pins = cell.cpu_pinning or {}
    return cells.Pinning(
        tuple(pins[vcpu] for vcpu in sorted(cell.pcpuset) if vcpu in pins),
        tuple(cell.cpuset_reserved or ()),
    )


def predicted_groups(host, guest, prediction):
    """L3 domain in which each guest cell's request group belongs, as we predict it; several that we cannot tell."""
    tree = desired_tree("h", host.topology, TreeSettings(PackingTrait.SPREAD))
    places = [place for child in tree.children if (place := l3_place(child.traits)) is not None]
    l3 = [
        L3View(str(p.l3_id), p.l3_id, p.nodes, p.socket, 0, None, None, frozenset(), cpus=p.cpus)
        for p in places
    ]
    found = home.home(prediction, guest, facts.host_facts(host).cells, l3)
    return [{int(uuid) for uuid in group} for group in found.groups]


def counted_groups(host, claimed):
    """L3 domain in which the agent will count each guest cell's request group, as far as it does."""
    pins, cells_of_guest = {}, []
    for number, cell in enumerate(claimed.cells):
        shared = next(c for c in host.numa_topology.cells if c.id == cell.id).cpuset
        pins |= {vcpu: frozenset(shared) for vcpu in cell.cpuset}
        pins |= {vcpu: frozenset({cpu}) for vcpu, cpu in (cell.cpu_pinning or {}).items()}
        cells_of_guest.append(Cell(number, frozenset(cell.cpuset | cell.pcpuset), 1, frozenset()))
    groups = [L3Amount(str(number), 1, 0) for number in range(len(cells_of_guest))]
    found = l3_amounts(host.topology, cells_of_guest, pins, groups)
    return {int(amount.group): l3 for l3, amount in found.items()}


def misplaced(host, guest, prediction, claimed):
    """Return whether a group will be counted elsewhere than predicted."""
    counted = counted_groups(host, claimed)
    groups = predicted_groups(host, guest, prediction)
    return any(
        counted[number] not in group if number in counted else group - set(counted.values())
        for number, group in enumerate(groups)
    )


def differences(seed, pairs):
    """Return the pairs that nova-compute decides otherwise than we predict, and how many of all fit."""
    rng, wrong, fit = random.Random(seed), [], 0
    for _ in range(math.ceil(pairs / (HOSTS * REQUESTS))):
        for request, host, ours, claimed in compared(rng):
            theirs = claimed and cells.Prediction(
                tuple(cell.id for cell in claimed.cells), tuple(map(pinning, claimed.cells))
            )
            fit += theirs is not None
            if ours != theirs:
                wrong.append((dict(request.flavor.extra_specs), ours, theirs))
            elif ours and misplaced(host, facts.guest_cells(request.spec()), ours, claimed):
                wrong.append((dict(request.flavor.extra_specs), ours, "other L3 domains"))
    return wrong, fit


@pytest.mark.parametrize(
    "pairs",
    [2_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
    ids=["few", "many"],
)
def test_cells_and_cpus_are_those_that_nova_compute_pins(pairs):
    """Any flavor and image on any host; ``NUMA_EXT_SEED`` repeats a run."""
    seed = int(os.environ.get("NUMA_EXT_SEED", time.time_ns()))
    wrong, fit = differences(seed, pairs)
    sys.stdout.write(f"seed {seed}: {pairs} pairs, {fit} fit, {len(wrong)} differ\n")
    assert not wrong, (f"NUMA_EXT_SEED={seed}", len(wrong), wrong[0])
    assert fit > pairs / 20
