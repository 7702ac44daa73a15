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

from nova_numa_ext.policy.numa import cells
from nova_numa_ext.policy.numa.candidates import Candidate
from nova_numa_ext.scheduler import decision
from nova_numa_ext.scheduler import nova_objects as facts
from nova_numa_ext.scheduler.judge import Judge, Surroundings
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.snapshot import FleetSnapshot, ViewState
from tests.support import novas_choice


@pytest.fixture(autouse=True, scope="module")
def nova_objects():
    objects.register_all()
    logging.getLogger("nova").setLevel(logging.ERROR)


class Spec:
    """The part of a RequestSpec that says what the guest's cells are."""

    def __init__(self, topology):
        self.numa_topology = topology

    def __contains__(self, name):
        return name == "numa_topology"


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
    ours = cells.predict(known.cells, facts.guest_cells(Spec(guest)), known.limits)
    nova = hardware.numa_fit_instance_to_host(host, guest.obj_clone(), None, limits=limits)
    assert ours.nodes == tuple(cell.id for cell in nova.cells) == (0, 1)


HOSTS = REQUESTS = 16  # drawn together and compared each with each


def compared(rng):
    """Draw hosts and requests; yield for each pair the request and what we and nova-compute make of it."""
    hosts = [novas_choice.host(rng) for _ in range(HOSTS)]
    for _ in range(REQUESTS):
        request = novas_choice.request(rng)
        spec = request.spec()
        parsed = decision.parse_spec(spec)
        assert parsed.request, parsed.problems
        for host in hosts:
            host.allocation_candidates = [host.candidate(rng, request)]
            view = FleetSnapshot(FleetArrays.of(()), 0.0, ViewState.FRESH)
            judge = Judge(parsed.request, parsed.guest, spec, Surroundings(view, pack=host.pack))
            ours = judge.predictions(host, None, facts.host_facts(host))(Candidate(0, (), ()))
            yield request, ours, host.claim(request, host.allocation_candidates[0])


def pinning(cell):
    """CPUs of a cell as nova-compute has pinned it."""
    pins = cell.cpu_pinning or {}
    return cells.Pinning(
        tuple(pins[vcpu] for vcpu in sorted(cell.pcpuset)), tuple(cell.cpuset_reserved or ())
    )


def differences(seed, pairs):
    """Return the pairs that nova-compute decides otherwise than we predict, and how many of all fit."""
    rng, wrong, fit = random.Random(seed), [], 0
    for _ in range(math.ceil(pairs / (HOSTS * REQUESTS))):
        for request, ours, claimed in compared(rng):
            theirs = claimed and cells.Prediction(
                tuple(cell.id for cell in claimed.cells), tuple(map(pinning, claimed.cells))
            )
            fit += theirs is not None
            if ours != theirs:
                wrong.append((dict(request.flavor.extra_specs), ours, theirs))
    return wrong, fit


@pytest.mark.parametrize(
    "pairs", [2_000, pytest.param(100_000, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_cells_and_cpus_are_those_that_nova_compute_pins(pairs):
    """Any flavor and image on any host; ``NUMA_EXT_SEED`` repeats a run."""
    seed = int(os.environ.get("NUMA_EXT_SEED", time.time_ns()))
    wrong, fit = differences(seed, pairs)
    sys.stdout.write(f"seed {seed}: {pairs} pairs, {fit} fit, {len(wrong)} differ\n")
    assert not wrong, (f"NUMA_EXT_SEED={seed}", len(wrong), wrong[0])
    assert fit > pairs / 20
