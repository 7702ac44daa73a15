# SPDX-License-Identifier: Apache-2.0
"""How good hosts probably are, over plain arrays."""

import dataclasses

import numpy as np
import pytest

from nova_numa_ext.policy.gpu.candidate_sets import DEFAULT_RULES, GpuRequest, best_of_host
from nova_numa_ext.policy.numa import coarse
from nova_numa_ext.policy.numa.cells import CpuPolicy, GuestCell
from nova_numa_ext.policy.numa.coarse import CoarseRequest, Known, PoolRequest
from nova_numa_ext.policy.numa.score import SCORED
from nova_numa_ext.policy.terms import Term
from placement_traits.fleet import Amount, DeviceView, GpuView
from placement_traits.fleet_arrays import UNKNOWN, FleetArrays
from placement_traits.names import GpuLink, NeighbourTrait
from tests.support.fleet import be, domain, host, lc


def guessed(request, *views):
    """Coarse scores of hosts whose NUMA cells are not known yet."""
    arrays = FleetArrays.of(views)
    known = Known(np.zeros((len(views), 0), coarse.CELL), np.zeros((len(views), 0), coarse.POOL))
    weights = np.ones((len(views), len(SCORED)))
    return coarse.coarse(CoarseRequest(request, ()), arrays, np.arange(len(views)), known, weights)


def possible(cpus, pools, *, count=1, guest_cells=1, policy="legacy"):
    """Whether a host with so many free dedicated CPUs on its nodes and (kind, node, devices) seems to have room."""
    cells = np.zeros((1, len(cpus)), coarse.CELL)
    for node, free in enumerate(cpus):
        cells[0, node] = (node, 0, 0, 0, free, 4096, 4096, 0, True)
    known = Known(cells, np.array([pools], coarse.POOL).reshape(1, -1))
    guest = (GuestCell(2, 2, 512, CpuPolicy.DEDICATED),) * guest_cells
    asked = CoarseRequest(
        lc(), guest, devices=(PoolRequest(count, np.array([True, False]), policy),)
    )
    weights = np.ones((1, len(SCORED)))
    arrays = FleetArrays.of([host(domain(0))])
    [found] = coarse.coarse(asked, arrays, np.arange(1), known, weights).possible
    return found


@pytest.mark.parametrize(
    ("pools", "fits"),
    [
        ([], False),
        ([(1, 0, 4)], False),  # devices of another kind
        ([(0, 0, 0)], False),  # taken
        ([(0, 1, 4)], False),  # near a node without room
        ([(0, 0, 1)], True),
        ([(0, UNKNOWN, 1)], True),
    ],
)
def test_a_host_without_devices_near_free_cpus_comes_last(pools, fits):
    assert possible([2, 0], pools) == fits


@pytest.mark.parametrize(
    ("policy", "node", "fits"),
    [
        ("legacy", UNKNOWN, True),
        ("required", UNKNOWN, False),
        ("required", 0, True),
        ("preferred", 1, True),
        ("socket", 1, True),
        ("legacy", 1, False),
    ],
)
def test_devices_count_where_novas_affinity_policy_lets_them(policy, node, fits):
    assert possible([2, 0], [(0, node, 1)], policy=policy) == fits


@pytest.mark.parametrize(("count", "fits"), [(4, True), (5, False)])
def test_devices_near_all_cells_of_a_guest_count_together(count, fits):
    pools = [(0, 0, 1), (0, 1, 2), (0, 2, 2), (0, 3, 4)]
    assert possible([2, 2, 2, 0], pools, count=count, guest_cells=2) == fits


def test_a_floating_guest_has_its_devices_anywhere():
    assert possible([0, 0], [(0, 1, 2)], count=2, guest_cells=0)
    assert not possible([0, 0], [(0, 1, 2)], count=3, guest_cells=0)


STRICT = {
    "numa_ext:interference_class": "devil",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1",
}


@pytest.mark.parametrize(
    "has_devil", [{"neighbours": [NeighbourTrait.DEVIL]}, {"neighbourhood": (1_000, 3)}]
)
def test_a_strict_devil_is_guessed_where_devils_are(has_devil):
    quiet, noisy = host(domain(0), name="quiet"), host(domain(0, **has_devil), name="noisy")
    found = guessed(lc(**STRICT), quiet, noisy)
    assert found.scores[0] < found.scores[1]


def test_a_class_is_a_preference_here_as_well():
    """The filter refuses no host for its neighbours, so none comes last as if it would."""
    quiet = host(domain(0), name="quiet")
    noisy = host(domain(0, neighbours=[NeighbourTrait.DEVIL]), name="noisy")
    found = guessed(lc(**{"numa_ext:interference_class": "rabbit"}), quiet, noisy)
    assert found.possible.all()
    assert found.scores[0] > found.scores[1]


def test_a_taken_neighbourhood_is_not_guessed_as_claimed():
    rabbit = lc(
        **{
            "numa_ext:interference_class": "rabbit",
            "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
        }
    )
    free, full = (
        host(domain(0), name="free"),
        host(domain(0, neighbourhood=(1_000, 1)), name="full"),
    )
    found = guessed(rabbit, free, full)
    assert found.scores[0] > found.scores[1]


NODES = 4  # of two sockets
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]


def with_gpus(name, gpus, free, *, links=(), near=(), switched=False):
    """A host with so many GPUs near each node, of which some are free.

    :param links: pairs with NVLink
    :param near: neighbours in the L3 domains of the first socket
    """
    nodes = [node for node, count in enumerate(gpus) for _ in range(count)]
    address = [f"0000:{gpu:02x}:00.0" for gpu in range(len(nodes))]
    links_of = {gpu: {} for gpu in range(len(nodes))}
    for a, b in links:
        links_of[a][address[b]] = links_of[b][address[a]] = GpuLink.NV2
    left = list(free)
    devices = []
    for gpu, node in enumerate(nodes):
        left[node] -= 1
        devices.append(DeviceView(f"{name}-d{gpu}", address[gpu], Amount(1, int(left[node] < 0))))
    domains = [domain(node, neighbours=near if node < 2 else ()) for node in range(NODES)]
    return dataclasses.replace(
        host(*domains, name=name),
        gpus=tuple(
            GpuView(f"{name}-g{gpu}", address[gpu], node, gpu if switched else None, links_of[gpu])
            for gpu, node in enumerate(nodes)
        ),
        devices=tuple(devices),
    )


def gpu_utilities(request, count, *hosts, picked=None, policy="legacy", by_alias=True):
    """What is guessed of the GPUs of hosts, NaN for unknown.

    :param hosts: view and free GPUs of each node
    :param picked: node with room for a guest with cells; None for a floating guest
    """
    cells = np.zeros((len(hosts), NODES), coarse.CELL)
    for node in range(NODES):
        room = 4 if node == picked else 0
        cells[:, node] = (node, node // 2, 0, 0, room, 4096, 4096, 0, True)
    pools = [[(0, node, left) for node, left in enumerate(free)] for _, free in hosts]
    known = Known(cells, np.array(pools, coarse.POOL))
    guest = (GuestCell(2, 2, 512, CpuPolicy.DEDICATED),) if picked is not None else ()
    devices = PoolRequest(count, np.array([True]), policy, by_alias)
    wanted = GpuRequest.of(request, "flavor", DEFAULT_RULES)
    asked = CoarseRequest(request, guest, devices=(devices,), gpus=(wanted, DEFAULT_RULES))
    arrays = FleetArrays.of(view for view, _ in hosts)
    weights = np.zeros((len(hosts), len(SCORED)))
    weights[:, SCORED.index(Term.GPU)] = 1.0
    return coarse.coarse(asked, arrays, np.arange(len(hosts)), known, weights).scores


FILLS = {
    "new": ((2, 2, 2, 2), (2, 2, 2, 2)),
    "one socket taken": ((2, 2, 2, 2), (0, 0, 2, 2)),
    "each socket half": ((2, 2, 2, 2), (1, 1, 1, 1)),
    "one left of each": ((2, 2, 2, 2), (0, 1, 0, 1)),
    "small": ((1, 1, 1, 1), (1, 1, 1, 1)),
    "one socket only": ((4, 0, 0, 0), (4, 0, 0, 0)),
    "nearly all taken": ((2, 2, 2, 2), (1, 0, 2, 1)),
}


@pytest.mark.parametrize("near", [(), (NeighbourTrait.GPU_COMM_4,)])
@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("policy", ["topo", "pack"])
@pytest.mark.parametrize(("comm", "count"), [(0, 1), (4, 1), (1, 2), (4, 2), (4, 4), (3, 3)])
def test_gpus_are_guessed_as_they_are_judged_where_links_do_not_matter(
    near, switched, policy, comm, count
):
    """The more of a set's sockets is taken already, the better; far apart and beside others is worse."""
    request = be(**{"numa_ext:gpu_comm": str(comm), "numa_ext:gpu_policy": policy})
    wanted = GpuRequest.of(request, "flavor", DEFAULT_RULES)
    hosts, exact = [], []
    for name, (gpus, free) in FILLS.items():
        view = with_gpus(name, gpus, free, near=near, switched=switched)
        best, _ = best_of_host(wanted, DEFAULT_RULES, view, [1] * count)
        if best is not None:
            hosts.append((view, free))
            exact.append(best.utility)
    assert gpu_utilities(request, count, *hosts) == pytest.approx(exact, abs=0.02)


def test_hosts_with_nvlinks_are_guessed_better():
    request = be(**{"numa_ext:gpu_comm": "4"})
    fill = (2, 2, 2, 2)
    plain, linked = (
        with_gpus("plain", fill, fill, switched=True),
        with_gpus("linked", fill, fill, links=PAIRS, switched=True),
    )
    far, near = gpu_utilities(request, 2, (plain, fill), (linked, fill))
    assert near > far + 0.05


@pytest.mark.parametrize(
    ("policy", "better"), [("legacy", False), ("required", False), ("preferred", True)]
)
def test_only_gpus_that_novas_policy_lets_the_guest_have_are_guessed(policy, better):
    """The guest's node is the last; the socket whose last GPU would be the best one to take is the other."""
    request = be(**{"numa_ext:gpu_comm": "1"})
    fill = (0, 1, 2, 2)
    view = with_gpus("h", (2, 2, 2, 2), fill)
    [found] = gpu_utilities(request, 1, (view, fill), picked=3, policy=policy)
    assert found == pytest.approx(1 - (0.25 if better else 1.0) / 3)


def test_what_a_port_asks_for_is_no_gpu():
    request = be(**{"numa_ext:gpu_comm": "4"})
    hosts = [
        (with_gpus(str(free), (4, 4, 0, 0), free), free) for free in [(4, 4, 0, 0), (1, 0, 0, 0)]
    ]
    same = gpu_utilities(request, 1, *hosts, by_alias=False)
    assert same[0] == same[1]
    other = gpu_utilities(request, 1, *hosts)
    assert other[0] < other[1]
