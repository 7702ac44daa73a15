# SPDX-License-Identifier: Apache-2.0
"""Memory traffic from counters: rates, ages, and that nothing is ever computed across two lives of a counter."""

import pytest

from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable
from emulation.kernel.threads import Traffic as Bytes
from host_agent.machine.rdt.reader import CounterReading
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.partition import PartitionPlace
from host_agent.model.rdt import Unknown
from host_agent.model.traffic import Traffic
from host_agent.observe.bandwidth import Bandwidth, BandwidthReader, Meter

MEGA = 1_000_000
BE, VM = "numa_ext-be-0", "numa_ext-vm-a"


class Host:
    """Threads 10 and 11 move so many bytes per second; thread 20 is nobody's. Time is a number."""

    def __init__(self, mbps: dict[int, float], shape: Shape | None = None) -> None:
        self.now = 100.0
        self.mbps = mbps
        self.moved = dict.fromkeys(mbps, 0.0)
        self.model = ResctrlModel(
            shape or Shape(domains=(0, 1)), threads=ThreadTable(mbps), demand=self._demand
        )
        self.resctrl = Resctrl(self.model)
        self.reader = BandwidthReader(self.resctrl, clock=lambda: self.now)

    def _demand(self, tid: int, domain: int) -> Bytes:
        total = self.moved[tid] if domain == 0 else 0.0
        return Bytes(total, total * 0.75)

    def put(self, group: str, monitor: str, *tids: int) -> None:
        self.resctrl.create_group(group)
        if monitor:
            self.resctrl.create_monitor(group, monitor)
        self.resctrl.move_tasks(group, monitor, lambda: tids)

    def wait(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for tid, mbps in self.mbps.items():
            self.moved[tid] += mbps * MEGA * seconds


def place(uuid: str, group: str, monitor: str = "") -> PartitionPlace:
    return PartitionPlace(uuid, group, monitor, False, (), 0, "")


def total(found: Bandwidth | None) -> float | None:
    return None if found is None else round(found.traffic.total_mbps, 3)


def test_a_rate_needs_two_readings_and_tells_local_and_total_by_domain() -> None:
    host = Host({10: 400.0})
    host.put(BE, VM, 10)

    assert host.reader.servers([place("a", BE, VM)]) == {}
    host.wait(2.0)
    found = host.reader.servers([place("a", BE, VM)])["a"]

    assert found.domains == {0: Traffic(300.0, 400.0), 1: Traffic(0.0, 0.0)}
    assert (found.traffic, found.age_s) == (Traffic(300.0, 400.0), 0.0)


def test_a_call_that_comes_too_soon_gets_the_last_rate_with_its_age() -> None:
    host = Host({10: 400.0})
    host.put(BE, VM, 10)
    host.reader.servers([place("a", BE, VM)])
    host.wait()
    host.reader.servers([place("a", BE, VM)])
    host.mbps[10] = 40.0
    host.wait(0.05)

    soon = host.reader.servers([place("a", BE, VM)])["a"]
    assert (total(soon), round(soon.age_s, 3)) == (400.0, 0.05)
    host.wait(0.95)
    assert total(host.reader.servers([place("a", BE, VM)])["a"]) == 40.0


def test_a_group_made_anew_is_never_compared_with_the_old_one() -> None:
    """Its counter even stands higher than that of the old group did: only the generation can tell."""
    host = Host({10: 400.0, 20: 9000.0})
    host.put(BE, VM, 10)
    host.reader.servers([place("a", BE, VM)])
    host.wait()
    assert total(host.reader.servers([place("a", BE, VM)])["a"]) == 400.0
    host.resctrl.remove_group(BE)
    host.put(BE, VM, 20)
    host.wait(4.0)

    assert host.reader.servers([place("a", BE, VM)]) == {}
    host.wait()
    assert total(host.reader.servers([place("a", BE, VM)])["a"]) == 9000.0


def test_a_counter_that_cannot_be_read_leaves_the_last_rate_until_it_is_stale() -> None:
    host = Host({10: 400.0})
    host.put(BE, VM, 10)
    host.reader.servers([place("a", BE, VM)])
    host.wait()
    host.reader.servers([place("a", BE, VM)])
    for fault in ("Unavailable", "Error"):
        host.model.set_fault(BE, VM, fault)
        host.wait()
        host.mbps[10] = 0.0
        found = host.reader.servers([place("a", BE, VM)])["a"]
        assert total(found) == 400.0
    assert found.age_s == 2.0
    host.wait(2.0)
    assert host.reader.servers([place("a", BE, VM)]) == {}, "too old to be reported"

    host.model.set_fault(BE, VM, "")
    assert host.reader.servers([place("a", BE, VM)]) == {}, "the first reading after a gap"
    host.mbps[10] = 70.0
    host.wait()
    assert total(host.reader.servers([place("a", BE, VM)])["a"]) == 70.0


def readings(*, generation: int, **events: int | Unknown) -> tuple[CounterReading, ...]:
    return (CounterReading(0, dict(events), generation),)


def test_a_counter_that_went_back_begins_anew() -> None:
    """An overflow, or hardware that gave the counter to somebody else in between."""
    meter = Meter()
    for now, counted in ((0.0, 900 * MEGA), (1.0, 30 * MEGA)):
        meter.take(readings(generation=1, mbm_local_bytes=0, mbm_total_bytes=counted), now)
    assert meter.rate(1.0) is None
    meter.take(readings(generation=1, mbm_local_bytes=0, mbm_total_bytes=80 * MEGA), 2.0)
    assert total(meter.rate(2.0)) == 50.0


def test_a_host_that_cannot_count_local_traffic_tells_nothing() -> None:
    meter = Meter()
    for now in (0.0, 1.0):
        meter.take(readings(generation=1, llc_occupancy=5, mbm_total_bytes=5), now)
    assert meter.rate(1.0) is None


def test_servers_that_share_a_group_without_monitoring_groups_cannot_be_told_apart() -> None:
    host = Host({10: 400.0, 11: 100.0})
    host.put(BE, "", 10, 11)
    both = [place("a", BE), place("b", BE)]
    for _look in range(2):
        host.wait()
        assert host.reader.servers(both) == {}
    host.reader.servers(both[:1])
    host.wait()
    assert total(host.reader.servers(both[:1])["a"]) == 500.0, "alone in its class"


def test_a_server_that_has_left_its_group_is_unknown_and_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host({10: 400.0})
    assert host.reader.servers([place("a", "numa_ext-lc-gone")]) == {}
    assert caplog.text == ""


def test_the_host_is_root_and_all_groups_of_everybody() -> None:
    host = Host({10: 400.0, 11: 100.0, 20: 30.0})
    host.put(BE, VM, 10)
    host.model.mkdir("foreign")
    host.model.write("foreign/tasks", "11\n")
    assert host.reader.host() is None
    host.wait()
    found = host.reader.host()

    assert found is not None
    assert total(found) == 530.0
    assert set(found.domains) == {0, 1}


def test_the_host_is_unknown_while_one_group_is() -> None:
    host = Host({10: 400.0})
    host.reader.host()
    host.wait()
    assert host.reader.host() is not None
    host.put(BE, VM, 10)
    host.wait()
    assert host.reader.host() is None
    host.wait()
    assert total(host.reader.host()) == 400.0


def test_an_unmounted_tree_is_said_once_and_its_return_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    host = Host({10: 400.0})
    there = host.model.directories
    host.reader.host()

    def gone(path: str) -> list[str]:
        raise FileNotFoundError(2, "No such file or directory", path)

    host.model.directories = gone  # type: ignore[method-assign]
    for _look in range(3):
        host.wait()
        assert host.reader.host() is None
    host.model.directories = there  # type: ignore[method-assign]
    host.wait()
    host.reader.host()

    assert [record.message.split(":")[0] for record in caplog.records] == [
        "memory traffic is unknown",
        "memory traffic can be read again",
    ]
