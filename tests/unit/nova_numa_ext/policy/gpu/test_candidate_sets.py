# SPDX-License-Identifier: Apache-2.0
"""GPU sets of allocation candidates: which GPUs are free, who is on the others, what a set is worth."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.policy.gpu.candidate_sets import (
    DEFAULT_RULES,
    GpuOffer,
    GpuRequest,
    GpuRules,
    gpu_map,
    lacking,
    occupied,
    parts_left,
)
from nova_numa_ext.policy.gpu.job import COMM_PROFILES, Profile, ProfileStore
from nova_numa_ext.policy.gpu.utility import Neighbour
from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.policy.terms import Term, sentence
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView
from placement_traits.names import GPU_COMM_TRAITS, GpuLink, GpuPolicy, InterferenceClass
from placement_traits.reason import Reason
from tests.support.fleet import be, domain, host

ADDRESSES = ("0000:21:00.0", "0000:22:00.0", "0000:61:00.0", "0000:62:00.0")
NODES = (0, 0, 2, 2)
LINKED = {0: 1, 1: 0, 2: 3, 3: 2}


def minsky(**weights: int) -> HostView:
    """Four nodes on two sockets, two linked GPUs on a node of each; ``n2=4`` is a published weight near node 2."""
    domains = [
        domain(
            number, neighbours=[GPU_COMM_TRAITS[w] for n, w in weights.items() if n == f"n{number}"]
        )
        for number in range(4)
    ]
    gpus = tuple(
        GpuView(f"ours-{n}", address, NODES[n], None, {ADDRESSES[LINKED[n]]: GpuLink.NV2})
        for n, address in enumerate(ADDRESSES)
    )
    devices = tuple(
        DeviceView(f"gpu-{n}", address, Amount(1, 0)) for n, address in enumerate(ADDRESSES)
    )
    nic = DeviceView("nic", "0000:05:00.0", Amount(1, 0))
    return replace(host(*domains), gpus=gpus, devices=(nic, *devices))


def pick(comm: int, *numbers: int) -> Pick:
    gpus = tuple(f"gpu-{number}" for number in numbers)
    return Pick("s", "root-h1", None, InterferenceClass.SHEEP, gpus=gpus, gpu_comm=comm)


def neighbours(view: HostView, free: int, *recent: Pick) -> set[Neighbour]:
    return set(occupied(gpu_map(view), view, free, recent).neighbours)


def test_the_map_knows_distances_sockets_and_who_counts_the_gpus() -> None:
    gpus = gpu_map(minsky())
    near, far = gpus.graph.distances[0][1], gpus.graph.distances[0][2]
    assert near == 1 < far
    assert gpus.graph.sockets == (0, 0, 1, 1)
    assert gpus.mask(["gpu-0", "gpu-3", "nic", "ours-1"]) == 0b1001


def test_hosts_that_look_alike_share_a_graph() -> None:
    assert gpu_map(minsky()).graph is gpu_map(minsky(n0=4)).graph


def test_busy_gpus_of_which_nothing_is_known_are_harmless_neighbours() -> None:
    assert neighbours(minsky(), 0b1010) == {
        Neighbour("comm-0", 0b0001),
        Neighbour("comm-0", 0b0100),
    }


def test_what_agents_publish_is_told_of_the_busy_gpus_of_that_socket() -> None:
    assert neighbours(minsky(n2=4), 0b1010) == {
        Neighbour("comm-0", 0b0001),
        Neighbour("comm-4", 0b0100),
    }


def test_a_pick_that_the_agent_has_published_meanwhile_counts_once() -> None:
    found = neighbours(minsky(n0=3), 0b1110, pick(3, 0))
    assert found == {Neighbour("comm-3", 0b0001)}


def test_what_is_published_beside_a_pick_is_somebody_else() -> None:
    found = neighbours(minsky(n0=3), 0b1100, pick(1, 0))
    assert found == {Neighbour("comm-1", 0b0001), Neighbour("comm-3", 0b0010)}


def test_of_two_published_jobs_the_one_that_a_pick_explains_is_not_the_others() -> None:
    """The agent tells of the pick by now, too: what is left belongs to the GPUs of which nothing more is known."""
    view = minsky()
    both = frozenset({GPU_COMM_TRAITS[1], GPU_COMM_TRAITS[3]})
    told = replace(view, l3=(replace(view.l3[0], neighbours=both), *view.l3[1:]))
    assert neighbours(told, 0b1100, pick(1, 0)) == {
        Neighbour("comm-1", 0b0001),
        Neighbour("comm-3", 0b0010),
    }


def test_a_pick_whose_gpus_are_free_is_not_there() -> None:
    """Nova took another host, or the server has gone."""
    assert neighbours(minsky(), 0b1111, pick(4, 0)) == set()


def test_what_is_published_where_every_gpu_is_free_is_old() -> None:
    assert neighbours(minsky(n0=4), 0b1111) == set()


def test_a_device_lacks_what_earlier_servers_of_a_request_have_taken_of_it() -> None:
    """gpu-1 serves three: after one part and two more nothing is left. Nobody of the request has asked for the rest."""
    view = minsky()
    shared = tuple(
        replace(d, amount=Amount(3, 0)) if d.uuid == "gpu-1" else d for d in view.devices
    )
    full = replace(view, devices=(*shared, DeviceView("gpu-9", "0000:99:00.0", Amount(1, 1))))
    assert parts_left(full, []) == {}
    one, two = pick(0, 0, 1), pick(4, 1, 1)
    assert parts_left(full, [one]) == {"gpu-0": 0, "gpu-1": 2}
    assert parts_left(full, [one, two]) == {"gpu-0": 0, "gpu-1": 0}
    left = parts_left(full, [one])
    assert lacking(left, {"gpu-1": 2, "gpu-9": 1}) == frozenset()
    assert lacking(left, {"gpu-0": 1, "gpu-1": 3}) == {"gpu-0", "gpu-1"}


def test_a_candidate_lacks_nothing_of_a_device_that_it_does_not_take() -> None:
    """The view is older than Placement's candidates: a device had more free parts than it knows of."""
    old = replace(minsky(), devices=(DeviceView("gpu-0", "0000:00.0", Amount(2, 2)),))
    left = parts_left(old, [pick(4, 0)])
    assert left == {"gpu-0": -1}
    assert lacking(left, {"gpu-0": 1}) == {"gpu-0"}
    assert lacking(left, {"gpu-1": 1}) == frozenset(), "all candidates of the host would rank alike"


def offer(
    view: HostView,
    sets: list[tuple[int, ...]],
    free: int = 0b1111,
    rules: GpuRules = DEFAULT_RULES,
    **specs: str,
) -> GpuOffer:
    request = be(**{f"numa_ext:{key}": value for key, value in specs.items()})
    gpus = gpu_map(view)
    providers = [tuple(f"gpu-{number}" for number in one) for one in sets]
    gpu_request = GpuRequest.of(request, "flavor", rules)
    return GpuOffer(gpu_request, rules, gpus, occupied(gpus, view, free), providers)


def test_a_set_tells_addresses_nodes_and_costs() -> None:
    offered = offer(minsky(), [(0, 1), (1, 2)], gpu_comm="4", min_utility="0.5")
    pair = offered.of(("gpu-0", "gpu-1", "root"))
    assert pair is not None
    assert (pair.addresses, pair.nodes) == (ADDRESSES[:2], (0,))
    assert pair.providers == ("gpu-0", "gpu-1")
    assert pair.enough
    split = offered.of(("gpu-1", "gpu-2"))
    assert split is not None
    assert split.nodes == (0, 2)
    assert split.preference > pair.preference
    assert (pair.away((0,)), pair.away((1,)), split.away((0,)), split.away(None)) == (0, 1, 1, 0)
    assert offered.of(("root",)) is None


def test_a_refusal_names_a_better_set_that_placement_did_not_offer() -> None:
    """Placement's answer can be cut short, or a trait of the flavor can leave candidates out."""
    offered = offer(minsky(n2=4), [(0, 3)], 0b1011, gpu_comm="4", min_utility="0.5")
    best = offered.of(("gpu-0", "gpu-3"))
    assert best is not None
    reasons = offered.refusal(best)
    assert reasons[0].term == Term.GPU_BELOW_MINIMUM
    assert Reason(Term.GPU_NOT_OFFERED, f"{ADDRESSES[0]}, {ADDRESSES[1]}") in reasons


@pytest.mark.parametrize(("min_utility", "waits"), [("0.6", True), ("0.99", False)])
def test_waiting_is_advised_only_where_it_helps(min_utility: str, waits: bool) -> None:
    """A minimum that not even the empty host reaches is never met."""
    offered = offer(
        minsky(n1=4, n2=4),
        [(0, 3)],
        0b1001,
        gpu_comm="4",
        gpu_policy="topo_p",
        min_utility=min_utility,
    )
    best = offered.of(("gpu-0", "gpu-3"))
    assert best is not None
    said = [sentence(reason) for reason in offered.refusal(best)]
    assert any("nothing waits in nova" in one for one in said) is waits
    assert any("even when it is empty" in one for one in said) is not waits


def test_a_flavor_may_have_a_profile_of_its_own() -> None:
    store = ProfileStore({**COMM_PROFILES.profiles, "flavor": Profile("flavor")})
    plain = offer(minsky(n0=4), [(1,)], 0b1110, gpu_comm="4").of(("gpu-1",))
    robust = offer(minsky(n0=4), [(1,)], 0b1110, GpuRules(store=store), gpu_comm="4").of(("gpu-1",))
    assert plain is not None
    assert robust is not None
    assert robust.terms.interference < plain.terms.interference


@pytest.mark.parametrize("policy", list(GpuPolicy))
@given(
    free=st.integers(1, 15), comm=st.integers(0, 4), low=st.integers(0, 4), high=st.integers(0, 4)
)
def test_f_000_11_a_stronger_neighbour_never_makes_a_set_better(
    policy: GpuPolicy, free: int, comm: int, low: int, high: int
) -> None:
    """F-000-11: utility falls when interference rises, for every set of free GPUs."""
    low, high = sorted((low, high))
    sets = [
        one
        for size in (1, 2)
        for one in itertools.combinations([n for n in range(4) if free >> n & 1], size)
    ]
    specs = {"gpu_comm": str(comm), "gpu_policy": policy.value}
    utilities = [
        [
            found.utility
            for one in sets
            if (found := offered.of(tuple(f"gpu-{n}" for n in one))) is not None
        ]
        for weight in (low, high)
        for offered in [offer(minsky(**({"n0": weight} if weight else {})), sets, free, **specs)]
    ]
    assert len(utilities[0]) == len(sets)
    assert all(quiet >= loud for quiet, loud in zip(*utilities, strict=True))
