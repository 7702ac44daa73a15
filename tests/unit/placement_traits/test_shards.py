# SPDX-License-Identifier: Apache-2.0
"""How the fleet is divided into queries that each stay below Placement's limit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_traits import names, shards
from placement_traits.shards import SHARDS, Shard

NUMBERS = st.integers(0, SHARDS - 1)


def test_the_shard_of_a_name_never_changes():
    """Agents and schedulers of different releases must mean the same."""
    assert shards.shard_of("compute1") == Shard(1, 0)
    assert shards.shard_of("compute1").traits == (
        "CUSTOM_NUMA_EXT_SHARD_1",
        "CUSTOM_NUMA_EXT_SUBSHARD_0",
    )
    assert all(map(names.is_ours, shards.all_traits()))


@given(st.lists(st.builds(Shard, NUMBERS, NUMBERS), min_size=1), st.integers(1, 20))
def test_each_host_is_asked_for_once_and_no_query_exceeds_the_limit_that_can_be_kept(hosts, limit):
    parts = shards.parts(hosts, limit)
    assert all(sum(host in part for part in parts) == 1 for host in hosts)
    for part in parts:
        found = [host for host in hosts if host in part]
        assert found
        assert len(found) <= limit or len(set(found)) == 1


@pytest.mark.parametrize("limit", [300, 500, 600, 625, 999, 1000, 9_999])
def test_a_large_fleet_takes_few_queries(limit):
    hosts = [shards.shard_of(f"compute{number}.example.org") for number in range(10_000)]
    parts = shards.parts(hosts, limit)
    assert len(parts) <= 2 * math.ceil(len(hosts) / limit) - 1
    assert max(len(part.query) for part in parts) < 1000
