# SPDX-License-Identifier: Apache-2.0
"""Whether servers may be using what a group holds that nova does not know."""

from collections.abc import Mapping

import pytest

from nova_numa_ext.heal.forgotten_groups import ANYWHERE, ForgottenGroups, usage
from placement_traits.claims import Amounts, Claim

CLAIM = Claim("group", "CUSTOM_TYPE", "project", "user", {"leaf": {"CUSTOM_UPLINK": 1}}, 1)


class Leafs:
    """The claim is on a leaf with two hosts."""

    def hosts(self, amounts: Amounts) -> frozenset[str]:
        assert amounts == CLAIM.amounts
        return frozenset({"h1", "h2"})


class Nova:
    """Where it has servers, and its hosts."""

    def __init__(self, servers: Mapping[str, frozenset[str]], hosts: str) -> None:
        self.servers = servers
        self.hosts = frozenset(hosts.split())
        self.asked = 0

    def hosts_of_projects(self) -> Mapping[str, frozenset[str]]:
        self.asked += 1
        return self.servers

    def compute_nodes(self) -> frozenset[str]:
        return self.hosts


@pytest.mark.parametrize(
    ("servers", "hosts", "expected"),
    [
        ({}, "h1 h2 h3", False),
        ({"project": frozenset({"h3"}), "other": frozenset({"h1"})}, "h1 h2 h3", False),
        ({"project": frozenset({"h2"})}, "h1 h2 h3", True),
        ({"project": frozenset({ANYWHERE})}, "h1 h2 h3", True),
        ({}, "h1 h3", True),
    ],
    ids=["no servers", "elsewhere", "on its leafs", "without a host", "hosts of another region"],
)
def test_what_may_be_used(
    servers: Mapping[str, frozenset[str]], hosts: str, expected: bool
) -> None:
    nova = Nova(servers, hosts)
    may_be_used = usage(Leafs(), nova)
    assert [may_be_used(CLAIM), may_be_used(CLAIM)] == [expected, expected]
    assert nova.asked == 1


def test_unused_counts_after_a_grace_time_in_each_round() -> None:
    now = [0.0]
    forgotten = ForgottenGroups(300.0, lambda: now[0])
    nova = Nova({}, "h1 h2")
    for at, expected in ((0.0, True), (299.0, True), (300.0, False)):
        now[0] = at
        assert forgotten.round(Leafs(), nova)(CLAIM) is expected
