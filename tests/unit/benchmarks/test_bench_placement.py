# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of Placement counts: hosts, and candidates that nova-compute would use."""

import pytest

from benchmarks.bench_placement import ASKED, FLAVORS, Fleet, Reply, settings
from benchmarks.placement_on_mariadb import KINDS, root_uuid


def candidate(root, **groups):
    return {"mappings": {"": [root], **{group: [each] for group, each in groups.items()}}}


def answer(*candidates):
    roots = {each["mappings"][""][0] for each in candidates}
    return {
        "allocation_requests": list(candidates),
        "provider_summaries": {root: {"root_provider_uuid": root} for root in roots},
    }


class Canned:
    """A Placement that always answers the same."""

    def __init__(self, found):
        self.found = found

    def candidates(self, _query, _limit):
        return Reply(3.0, 1.5, self.found, 2_000_000)


def ask(found, name, hosts, flavor):
    fleet = Fleet(Canned(found), name, hosts)
    return fleet.ask("default", settings(KINDS[name])["default"], flavor)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_host_publishes_what_its_name_says(name):
    kind = KINDS[name]
    number, what = name.split()[:2]
    prefix = {"L3": ":l3_", "GPUs": ":gpu"}[what]
    found = [child for child in kind.tree.children if child.name.startswith(prefix)]
    assert len(found) == int(number)


def test_a_host_is_seen_once_and_right_when_one_candidate_is_what_nova_compute_uses():
    kind, name = KINDS["4 L3 domains"], "4 L3 domains"
    every = [
        candidate(root_uuid(host), _NODE=kind.domain_uuid(host, domain))
        for host in (0, 1)
        for domain in range(4)
    ]
    whole = ask(answer(*every), name, 4, "lc_one_node")
    assert (whole.candidates, whole.seen, whole.right, whole.mb) == (8, 0.5, 1.0, 2.0)
    halves = [ask(answer(each), name, 4, "lc_one_node").right for each in every[:4]]
    assert sorted(halves) == [0.0, 0.0, 0.0, 1.0]


def test_two_groups_are_right_in_their_order_and_on_two_nodes():
    kind, name = KINDS["8 L3 domains"], "8 L3 domains"
    right = [
        (a, b)
        for a in range(8)
        for b in range(8)
        if a != b
        and ask(
            answer(candidate(root_uuid(0), _N0=kind.domain_uuid(0, a), _N1=kind.domain_uuid(0, b))),
            name,
            1,
            "lc_two_nodes",
        ).right
    ]
    assert len(right) == 1
    assert kind.node(right[0][0]) != kind.node(right[0][1])


def test_no_answer_is_a_result():
    lost = ask(None, "8 GPUs", 10, "four_gpus")
    assert (lost.lost, lost.candidates, lost.seen, lost.cpu_s) == (True, 0, 0.0, 1.5)


def test_each_flavor_is_asked_of_some_kind_of_host():
    assert {flavor for flavors in ASKED.values() for flavor in flavors} == set(FLAVORS)
