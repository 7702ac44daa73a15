# SPDX-License-Identifier: Apache-2.0
"""Fabrics of the sizes that issue 17 names, with nova's API, conductor, scheduler and one nova-compute a host."""

import pytest

from tests.in_nova.cloud import FakeCloud
from tests.support.fabrics import fabric

QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}


class Sized(FakeCloud):
    """Leafs that a group may have as a whole: each is one block::

    train
    ├─ p00 ── l000 …        leafs_per_pod leafs, hosts_per_leaf hosts each
    └─ …   ── … l(leafs-1)
    """

    leafs, hosts_per_leaf, leafs_per_pod = 0, 0, 0

    def setUp(self):
        super().setUp()
        self.cabled(fabric([self.hosts_per_leaf] * self.leafs, leafs_per_pod=self.leafs_per_pod))

    def started(self, count):
        """Make a quiet group by one request; returns the hosts of its servers by rank."""
        group = self.api.post_server_groups({"name": "train", "policy": "anti-affinity"})["id"]
        ready = self.boot(QUIET, hints={"group": group}, min_count=count, max_count=count)
        ranks = sorted(ready, key=lambda each: int(each["name"].rpartition("-")[2]))
        return [self.host_of(each) for each in ranks]

    def check(self):
        """Design 8.4, check 6: two groups of two leafs, and one that fits in a leaf."""
        whole = self.hosts_per_leaf
        pair = [self.started(2 * whole) for _ in range(2)]
        small = self.started(whole)
        assert all(len({*group}) == len(group) for group in (*pair, small))
        assert len({*pair[0], *pair[1], *small}) == 5 * whole
        leafs = [[host.partition("-")[0] for host in group] for group in (*pair, small)]
        for large in leafs[:2]:
            one, *_, other = large
            assert large == [one] * whole + [other] * whole
            assert int(one[1:]) // self.leafs_per_pod == int(other[1:]) // self.leafs_per_pod
        assert {*leafs[2]} == {f"l{self.leafs - 1:03}"}
        assert len({*leafs[0], *leafs[1], *leafs[2]}) == 5
        assert len(self.fabrics.all()) == 3


class SixLeafs(Sized):
    """Three pods of two leafs, each with four hosts: 24 nova-computes."""

    leafs, hosts_per_leaf, leafs_per_pod = 6, 4, 2

    def test_groups_are_on_leafs_of_one_pod_in_the_order_of_ranks_and_never_share(self):
        self.check()


class TwentyFourLeafs(Sized):
    """Four pods of six leafs, each with eight hosts: 192 nova-computes."""

    leafs, hosts_per_leaf, leafs_per_pod = 24, 8, 6

    @pytest.mark.long
    @pytest.mark.timeout(1200)
    def test_groups_are_on_leafs_of_one_pod_in_the_order_of_ranks_and_never_share(self):
        self.check()
