# SPDX-License-Identifier: Apache-2.0
"""Groups on single links: what leaves a leaf is what the bundle carries, and routes meet where they are known to."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.simulator.network.fluid import Pattern, capacities, demands, max_min
from nova_numa_ext.simulator.network.links import (
    CAPACITY,
    Flows,
    LinkTree,
    Routing,
    flows,
    loads,
)
from placement_traits.errors import InvalidValueError
from tests.support.fabrics import fabric

FULL = LinkTree((4, 4, 3), (1, 4, 4))
SLIM = LinkTree((4, 4), (1, 2))


def shift(hosts: int, by: int) -> Flows:
    every = np.arange(hosts)
    return Flows(every, (every + by) % hosts, 1.0)


def test_shifts_meet_nowhere_under_d_mod_k_where_there_are_as_many_links_up_as_down() -> None:
    for by in range(1, FULL.hosts):
        assert max(loads(FULL, shift(FULL.hosts, by), Routing.D_MOD_K).values()) == 1.0, by


def test_on_half_the_links_shifts_between_leafs_are_half_as_fast() -> None:
    used = loads(SLIM, shift(16, 4), Routing.D_MOD_K)
    assert max_min([used], dict.fromkeys(used, CAPACITY)).tolist() == [0.5]


def test_random_routes_meet() -> None:
    found = loads(FULL, shift(FULL.hosts, 4), Routing.RANDOM, seed=1)
    assert max(found.values()) > 1.0
    assert found == loads(FULL, shift(FULL.hosts, 4), Routing.RANDOM, seed=1)


@given(st.integers(0, 2**16), st.sampled_from(list(Pattern)), st.sampled_from(list(Routing)))
def test_links_of_a_leaf_carry_together_what_its_bundle_does(
    seed: int, pattern: Pattern, routing: Routing
) -> None:
    chance = random.Random(seed)
    hosts = sorted(chance.sample(range(16), chance.randint(1, 16)))
    places: dict[str, int] = {}
    for host in hosts:
        places[f"l{host // 4:03}"] = places.get(f"l{host // 4:03}", 0) + 1
    bundles = demands(fabric([4] * 4, leafs_per_pod=4), places, pattern)
    single = loads(SLIM, flows(hosts, pattern), routing, seed)
    for leaf in range(4):
        up = sum(single.get(f"up2.{leaf * 2 + port}", 0.0) for port in range(2))
        assert up == pytest.approx(bundles.get(f"l{leaf:03}", 0.0))
    for level in (1, 2):
        up, down = (
            sum(load for link, load in single.items() if link.startswith(f"{way}{level}."))
            for way in ("up", "down")
        )
        assert up == pytest.approx(down)


@pytest.mark.parametrize("routing", list(Routing))
def test_no_routes_are_better_than_ideal_spraying(routing: Routing) -> None:
    hosts = [0, 1, 2, 4, 5, 8]
    places = {"l000": 3, "l001": 2, "l002": 1}
    bundles = demands(fabric([4] * 4, leafs_per_pod=4), places, Pattern.ALL_TO_ALL)
    (ideal,) = max_min([bundles], capacities(fabric([4] * 4, leafs_per_pod=4), 2.0))
    single = loads(SLIM, flows(hosts, Pattern.ALL_TO_ALL), routing)
    (rate,) = max_min([single], dict.fromkeys(single, CAPACITY))
    assert rate <= ideal + 1e-12


def test_a_host_alone_sends_nothing_and_hosts_are_the_trees() -> None:
    assert loads(SLIM, flows([3], Pattern.ALL_TO_ALL), Routing.D_MOD_K) == {}
    with pytest.raises(InvalidValueError, match="0 to 15"):
        loads(SLIM, flows([3, 16], Pattern.RING), Routing.D_MOD_K)
    with pytest.raises(InvalidValueError, match="as many as of parents"):
        LinkTree((4, 4), (1,))
