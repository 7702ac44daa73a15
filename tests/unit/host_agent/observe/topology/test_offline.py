# SPDX-License-Identifier: Apache-2.0
"""What nova powers down has not left the machine: offline CPUs keep their core, socket and L3 domain."""

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from emulation.hosts import four_nodes
from host_agent.control.topology_store import KnownTopology
from host_agent.observe.topology.offline import all_online, with_offline
from placement_traits.names import PackingTrait
from placement_traits.offers import TreeSettings
from placement_traits.topology import Core, HostTopology, L3Domain
from placement_traits.tree import desired_tree
from tests.support.hosts import shown, topologies

SETTINGS = TreeSettings(PackingTrait.SPREAD)


@given(topologies(), st.data())
def test_whatever_sleeps_the_same_tree_is_published(
    host: HostTopology, data: st.DataObject
) -> None:
    offline = data.draw(st.sets(st.sampled_from(host.cpus), max_size=len(host.cpus) - 1))
    used = {core.socket for core in host.cores}  # a socket without any CPU is none that sysfs shows
    ids = tuple(domain.id for domain in host.l3_domains)
    host = replace(
        host,
        sockets=tuple(s for s in host.sockets if s.id in used),
        rdt=host.rdt and replace(host.rdt, l3_ids=ids),
    )
    seen = replace(shown(host, offline), sockets=host.sockets)  # chassis are given after this
    whole = with_offline(seen, all_online(host))
    assert set(whole.cpus) == set(host.cpus) - offline
    assert all_online(whole) == all_online(host)
    assert desired_tree("h", whole, SETTINGS) == desired_tree("h", host, SETTINGS)
    assert all_online(with_offline(shown(host, ()), all_online(whole))) == all_online(host)


def test_an_l3_domain_that_novas_power_management_sends_to_sleep_stays_published() -> None:
    """nova would never wake it if no server could be placed there."""
    host = four_nodes()
    seen = shown(host, (4, 5, 6, 7))
    assert [domain.id for domain in seen.l3_domains] == [0, 1]
    whole = with_offline(seen, all_online(host))
    assert whole.sleeps(3)
    assert whole.cpus == (0, 1, 2, 3)
    assert whole.l3_of_cpu(6) == 3
    provider = desired_tree("h1", whole, SETTINGS).child("h1:l3_3")
    assert provider is not None
    assert provider.inventories["CUSTOM_LLC_WAY"].total == 13


def test_a_thread_that_is_offline_belongs_to_its_core() -> None:
    smt = replace(
        four_nodes(),
        cores=tuple(Core(n, n, n // 2, n, (n, n + 4)) for n in range(4)),
    )
    whole = with_offline(shown(smt, (5,)), all_online(smt))
    assert [(core.cpus, core.offline) for core in whole.cores] == [
        ((0, 4), ()),
        ((1,), (5,)),
        ((2, 6), ()),
        ((3, 7), ()),
    ]


def test_a_machine_that_was_set_up_in_another_way_is_taken_as_it_is() -> None:
    """Sub-NUMA clusters were turned on: other nodes, other caches; what is known of CPUs is worth nothing."""
    before = replace(
        four_nodes(),
        cores=tuple(Core(c, c // 2, c // 4, 3 - c // 2, (c,)) for c in range(8)),
        l3_domains=tuple(L3Domain(n, 1 - n // 2, (3 - n,)) for n in range(4)),
    )
    seen = shown(four_nodes(), (6, 7))
    assert with_offline(seen, all_online(before)) == seen


def test_what_is_known_outlives_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "topology.json"
    host = four_nodes()
    running = KnownTopology(file, keep=True)
    running.complete(host)
    assert running.complete(shown(host, (6, 7))).sleeps(3)
    written = file.stat().st_mtime_ns
    again = KnownTopology(file, keep=True)
    assert again.complete(shown(host, (6, 7))).sleeps(3)
    assert file.stat().st_mtime_ns == written, "nothing new is known"


def test_a_command_and_a_dry_run_only_read_what_is_known(tmp_path: Path) -> None:
    file = tmp_path / "state" / "topology.json"
    KnownTopology(file).complete(four_nodes())
    assert not file.parent.exists()


def test_a_cpu_that_was_never_online_is_known_to_its_node_only(tmp_path: Path) -> None:
    known = KnownTopology(tmp_path / "topology.json", keep=True)
    whole = known.complete(shown(four_nodes(), (6, 7)))
    assert whole.node(3).offline_cpus == (6, 7)
    assert whole.l3_of_cpu(6) is None
    assert [domain.id for domain in whole.l3_domains] == [0, 1, 2]
    assert known.complete(four_nodes()).l3_of_cpu(6) == 3, "from then on it is"
    assert known.complete(shown(four_nodes(), (6, 7))).l3_of_cpu(6) == 3
