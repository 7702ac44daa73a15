# SPDX-License-Identifier: Apache-2.0
"""How much of a fleet a create sees is said as Placement counts: by candidates, and any of them."""

import pytest

from placement_traits import nova_conf
from placement_traits.findings import Level


@pytest.fixture
def checked(tmp_path):
    def check(limit, domains, groups):
        file = tmp_path / "nova.conf"
        file.write_text(f"[scheduler]\nmax_placement_results = {limit}\n")
        findings = nova_conf.scheduler(nova_conf.read([file]), domains, groups)
        return next(each for each in findings if each.check == "max_placement_results")

    return check


def test_as_many_results_as_l3_domains_are_not_enough_for_two_nodes(checked):
    """400 hosts of 4 domains: 1,600 domains, but 12 candidates a host for a flavor with two groups."""
    found = checked(1600, [4] * 400, {1, 2})
    assert found.level is Level.GOOD
    assert "1 NUMA node see 100% of 400 hosts" in found.detail
    assert "2 NUMA nodes see 99% of 400 hosts" in found.detail


@pytest.mark.parametrize(
    ("domains", "groups", "limit", "enough"),
    [
        (4, 1, 511, 512),
        (4, 2, 1535, 1536),
        (8, 1, 1023, 1024),
        (8, 2, 7167, 7168),
        (24, 1, 3071, 3072),
        (24, 2, 70_655, 70_656),
    ],
)
def test_what_is_needed_depends_on_domains_and_groups_not_on_the_number_of_hosts(
    checked, domains, groups, limit, enough
):
    for hosts in (1000, 10_000):
        short = checked(limit, [domains] * hosts, {groups})
        assert short.level is Level.DEGRADED
        assert f"{enough} would do" in short.detail
        assert checked(enough, [domains] * hosts, {groups}).level is Level.GOOD


def test_the_share_of_the_fleet_that_is_seen_is_said(checked):
    """1,000 of 56,000 candidates, 56 a host: the measured share of bench-placement is 0.65."""
    found = checked(1000, [8] * 1000, {2})
    assert "have up to 56 a host" in found.detail
    assert "sees 64% of 1000 hosts" in found.detail
    assert "will use of 18" in found.detail


def test_a_small_fleet_needs_all_its_candidates_and_hosts_without_domains_need_none(checked):
    assert checked(7, [4, 4, 0], {1}).level is Level.DEGRADED
    assert checked(8, [4, 4, 0], {1}).level is Level.GOOD
    assert checked(1, [0, 0], {1, 2}).level is Level.GOOD
