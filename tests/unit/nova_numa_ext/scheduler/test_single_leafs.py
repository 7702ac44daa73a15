# SPDX-License-Identifier: Apache-2.0
"""How often Placement is asked about leafs for single servers, and what becomes of hosts without one."""

import threading
from dataclasses import dataclass, replace
from types import SimpleNamespace

from nova_numa_ext.fabrics import FabricState
from nova_numa_ext.policy.network.singles import IN_USE
from nova_numa_ext.scheduler.single_leafs import SingleLeafs, column
from placement_traits import names
from placement_traits.errors import ServiceUnavailableError
from placement_traits.fleet_arrays import FleetArrays
from tests.support.fabrics import fabric, leafs_of
from tests.support.group_hosts import leaf_trait, on_leaf
from tests.support.job_hosts import machine, root


@dataclass
class Fabrics:
    """Two leafs in Placement, which may not answer."""

    asked: int = 0
    silent: bool = False

    def read(self):
        self.asked += 1
        if self.silent:
            raise ServiceUnavailableError("Placement does not answer")
        leafs = leafs_of(fabric([2, 2]))
        return [FabricState("train", leafs, {leaf_trait(f"l00{n}"): f"l00{n}" for n in (0, 1)}, {})]


def hosts(**leaf_of):
    """Hosts by leaf, '' for none."""
    return FleetArrays.of(
        [on_leaf(machine(name), leaf) if leaf else machine(name) for name, leaf in leaf_of.items()]
    )


def states(**instances):
    """What nova knows of hosts: how many servers are there."""
    return [
        SimpleNamespace(uuid=root(name), num_instances=count) for name, count in instances.items()
    ]


def test_hosts_have_the_value_of_their_leaf_and_others_none():
    fabrics = Fabrics()
    found = SingleLeafs(lambda: fabrics, 10.0).of(
        states(a=1, b=0, c=0, d=0), hosts(a="l000", b="l000", c="l001", d="")
    )
    assert found[root("a")] == found[root("b")] == 0.75
    assert found[root("c")] < IN_USE
    assert root("d") not in found
    assert str(column(found, [root("d")])[0]) == "nan"


def test_a_host_with_a_wrong_cable_has_no_value():
    wrong = on_leaf(machine("a"), "l000")
    arrays = FleetArrays.of([replace(wrong, traits=wrong.traits | {names.MISCABLED})])
    assert SingleLeafs(Fabrics, 10.0).of(states(a=1), arrays) == {}


def test_a_leaf_that_has_lost_its_trait_gives_its_hosts_no_value():
    class Lost(Fabrics):
        def read(self):
            (found,) = super().read()
            return [replace(found, leaf_of_trait={leaf_trait("l001"): "l001"})]

    found = SingleLeafs(Lost, 10.0).of(states(a=1, c=0), hosts(a="l000", c="l001"))
    assert found.keys() == {root("c")}


def test_nothing_is_asked_where_no_host_hangs_on_a_leaf():
    fabrics = Fabrics()
    assert SingleLeafs(lambda: fabrics, 0.0).of(states(a=1), hosts(a="")) == {}
    assert fabrics.asked == 0


def test_no_decision_waits_for_one_that_reads():
    reads, goes_on = threading.Event(), threading.Event()

    class Slow(Fabrics):
        def read(self):
            reads.set()
            goes_on.wait(10.0)
            return super().read()

    leafs, arrays = SingleLeafs(Slow, 10.0), hosts(a="l000")
    first = threading.Thread(target=leafs.of, args=(states(a=1), arrays))
    first.start()
    assert reads.wait(10.0)
    assert leafs.of(states(a=1), arrays) == {}
    goes_on.set()
    first.join()
    assert leafs.of(states(a=1), arrays).keys() == {root("a")}


def test_fabrics_are_read_when_they_are_due_and_old_ones_stay_while_placement_is_silent():
    fabrics, now = Fabrics(), [0.0]
    leafs = SingleLeafs(lambda: fabrics, 10.0, lambda: now[0])
    arrays = hosts(a="l000")
    first = leafs.of(states(a=1), arrays)
    leafs.of(states(a=1), arrays)
    assert fabrics.asked == 1
    now[0], fabrics.silent = 11.0, True
    assert leafs.of(states(a=1), arrays) == first
    assert fabrics.asked == 2


def test_hosts_of_a_groups_own_leafs_are_refused_as_long_as_what_was_read_is_believed():
    class Held(Fabrics):
        def read(self):
            (found,) = super().read()
            first, *others = found.leafs.leafs
            alone = replace(first, held={names.LEAF_BLOCK: 2})
            return [replace(found, leafs=replace(found.leafs, leafs=(alone, *others)))]

    fabrics, now = Held(), [0.0]
    leafs = SingleLeafs(lambda: fabrics, 10.0, lambda: now[0], believed_s=60.0)
    values = leafs.of(states(a=1, c=0), hosts(a="l000", c="l001"))
    assert leafs.closed(values) == {root("a")}
    fabrics.silent = True
    for seconds, closed in ((59.0, {root("a")}), (61.0, set())):
        now[0] = seconds
        assert leafs.of(states(a=1, c=0), hosts(a="l000", c="l001")) == values
        assert leafs.closed(values) == closed
