# SPDX-License-Identifier: Apache-2.0
"""Lanes beside Open vSwitch, without Neutron: what it leaves of them, and what they leave of it.

The userland datapath runs in namespaces of this machine; the kernel's in a small Linux with the lab's kernel, below
QEMU's TCG, where the userland's story is told again. All that is checked was read from a kernel.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from host_agent.model.lanes import LaneNetwork
from tests.support import ovs_guest, ovs_story
from tests.support.ovs_guest import DATAPATHS

pytestmark = [pytest.mark.root, pytest.mark.long]

Seen = dict[str, Any]
WHOLE = ovs_story.PACKETS
BOTH_TABLES = ["inet numa_ext", "netdev numa_ext"]
OURS, NOT_OURS = ["htb", "4e:"], ["htb", "1:"]
PAST = [f"traffic of {tap} does not pass the host's kernel" for tap in ovs_story.TAPS]


@pytest.fixture(scope="module")
def possible() -> None:
    if why := ovs_guest.lacking():
        pytest.skip(why)


@pytest.fixture(scope="module")
def guest(
    possible: None, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, LaneNetwork], Seen]:
    return ovs_guest.told_in_guest(tmp_path_factory.mktemp("ovs"))


@pytest.fixture(scope="module")
def here(possible: None) -> Seen:
    return ovs_guest.told_here("netdev", LaneNetwork.FLAT)


def sent(seen: Seen) -> Iterator[tuple[str, Seen]]:
    """What was sent, and when."""
    return ((when, of) for when, of in seen.items() if when.startswith("sent"))


def is_left_alone_by_open_vswitch(seen: Seen) -> None:
    """Its restart, its policing and the start of another unit change nothing, and nothing is written anew."""
    for when in ("policed", "after restart", "after kill", "rebooting", "rebooted"):
        assert (seen[when]["root"], seen[when]["lanes"]) == (OURS, {"up0": "htb"}), when
        assert seen[when]["tables"] == BOTH_TABLES, when
    assert seen["restarted"]["root"] == OURS, "nobody has had a turn since"
    packets = [seen[when]["classes"]["ff"] for when in ("policed", "restarted", "after kill")]
    assert packets == sorted(packets), "classes are the same ones, also for another unit"
    assert [seen[when]["policing"] for when in ("policed", "after restart")] == [True, True]
    left = seen["reset"]
    assert (left["root"], left["classes"], left["tables"]) == (["noqueue", "0:"], {}, [])


def gives_way_to_other_qos(seen: Seen) -> None:
    """A port's QoS is its operator's: without linux-noop there are no lanes, and another one's queues stay."""
    (said,) = seen["first"]["said"]
    assert "up0 is a port of Open vSwitch with QoS none" in said
    assert "ovs-vsctl set port up0 qos=@q -- --id=@q create qos type=linux-noop" in said
    assert (seen["first"]["lanes"], seen["first"]["marked"], seen["first"]["tables"]) == (
        {},
        [],
        [],
    )
    assert seen["noop"]["lanes"] == {"up0": "htb"}
    assert seen["foreign"]["root"] == seen["after foreign"]["root"] == NOT_OURS
    assert seen["after foreign"]["lanes"] == {}
    assert "with QoS linux-htb" in " ".join(seen["after foreign"]["said"])
    assert seen["after foreign"]["tables"] == [], "without lanes there are no marks"
    assert seen["taken back"]["lanes"] == {"up0": "htb"}


def has_marks_past_the_kernel(seen: Seen) -> None:
    """Nothing that only looks like a mark: packets leave before nftables sees them, and the unit says so."""
    assert (seen["noop"]["marked"], seen["noop"]["said"]) == ([], PAST)
    assert seen["rebooted"]["said"] == PAST
    for when, of in sent(seen):
        classes, dscp = of["classes"], of["dscp"]
        assert (classes["1"], classes["3"]) == (0, 0), when
        assert classes["2"] >= 2 * WHOLE, when
        assert (dscp["guest1"], dscp["lc"], dscp["be"]) == (WHOLE, 0, 0), when


def test_lanes_stand_beside_the_userland_datapath_and_its_ports_have_no_marks(here: Seen) -> None:
    is_left_alone_by_open_vswitch(here)
    gives_way_to_other_qos(here)
    has_marks_past_the_kernel(here)


def test_the_userland_datapath_is_the_same_on_the_kernel_of_the_lab(
    guest: dict[tuple[str, LaneNetwork], Seen],
) -> None:
    seen = guest["netdev", LaneNetwork.FLAT]
    is_left_alone_by_open_vswitch(seen)
    gives_way_to_other_qos(seen)
    has_marks_past_the_kernel(seen)


@pytest.mark.parametrize("network", DATAPATHS["system"])
def test_marks_reach_the_uplink_through_the_kernels_datapath(
    guest: dict[tuple[str, LaneNetwork], Seen], network: LaneNetwork
) -> None:
    """F-003-35, F-003-37: on a flat network, and through Geneve with the DSCP in the outer header."""
    seen = guest["system", network]
    is_left_alone_by_open_vswitch(seen)
    assert seen["rebooting"]["marked"] == ["tap2"]
    whens = [when for when, _ in sent(seen)]
    assert whens == ["sent", "sent policed", "sent after restart", "sent after reboot"]
    lc, be = ("lc", "be") if network is LaneNetwork.FLAT else ("outer lc", "outer be")
    for when, of in sent(seen):
        classes, dscp = of["classes"], of["dscp"]
        assert min(classes["1"], classes["3"]) >= WHOLE > classes["2"], when
        assert min(dscp[lc], dscp[be]) >= WHOLE, when
    for when in ("policed", "after restart", "after kill", "rebooted"):
        assert (seen[when]["marked"], seen[when]["said"]) == ([*ovs_story.TAPS], []), when
    if network is LaneNetwork.FLAT:
        gives_way_to_other_qos(seen)
    else:
        assert (dscp["lc"], dscp["be"]) == (0, 0), "inner headers are the guests' own"
