# SPDX-License-Identifier: Apache-2.0
"""Options of lanes on this host's uplinks: section ``[lanes]``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from host_agent.model.lanes import LaneQueue
from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class LaneOptions(Section):
    """``[lanes]``."""

    section: ClassVar = "lanes"
    title: ClassVar = "Lanes of this host's uplinks: numa-host-agent-lanes, which is optional"

    uplinks: tuple[str, ...] = option(
        (),
        "Network devices on which latency-critical servers go before others, by queues of the kernel: those by which "
        "packets leave the host. Empty: lanes are off, and what an earlier start has made is taken off. A device whose "
        "queues are of others, or that is faster than 10 Gbit/s, or a bond, gets none; why not is logged.",
        change="best-effort servers of this host fill its uplink, and latency-critical ones wait behind them",
        leave="servers use SR-IOV, DPDK or RDMA, which no queue of the kernel sees, or the network is yours to order",
    )
    speeds_mbps: Mapping[str, int] = option(
        {},
        "Speed of an uplink, DEVICE:Mbit/s, where its driver does not say it or the line behind it is slower. Shares "
        "are of this: one that is too high lets packets queue in the switch, where lanes do nothing.",
        minimum=1,
        change="the device is virtual, or a provider limits the line",
        leave="the driver knows it",
    )
    queue: LaneQueue = option(
        LaneQueue.HTB,
        "What lanes are made of.",
        choices={
            LaneQueue.HTB: "classes with shares and ceilings",
            LaneQueue.ETS: "a strict band and shares by quanta, without a limit of the whole link; not measured",
        },
        change="you try it on a host without users (ets)",
        leave="htb is what has been measured",
    )
    throttle: bool = option(
        False,
        "While the objective of a latency-critical server is violated and best-effort servers of this host send much "
        "over an uplink with lanes of htb, limit what these may send together, by the SLO controller of "
        "numa-host-agent ([slo], which also needs [rdt]enabled). It is found step by step, charged to the account of "
        "[slo]budget_s_per_hour beyond the share strict_cap, never below [slo]be_floor_percent of the uplink in the "
        "mean of an hour (of which an agent that is started again forgets what was before), and falls within ten "
        "seconds when the agent is gone. Both programs read this option.",
        change="latency-critical servers wait behind best-effort ones of this host in a switch, where lanes end",
        leave="switches know lanes by DSCP, or latencies are not reported",
    )
    tune: bool = option(
        False,
        "Weights of lanes by trial: while the objective of a latency-critical server is violated and such servers send "
        "about as much over an uplink with lanes of htb as strict_cap, give their lane a part of best-effort servers' "
        "share, by the SLO controller of numa-host-agent ([slo], which also needs [rdt]enabled). What helps nothing, "
        "or is not needed any more, is taken back. Best-effort servers keep a tenth of their share at least, and more "
        "in the mean of an hour by [slo]be_floor_percent; what they lose is charged to the account of "
        "[slo]budget_s_per_hour, and all of it falls within ten seconds when the agent is gone. Without effect beside "
        "throttle, for what that takes is lent to the other lanes. Both programs read this option.",
        change="latency-critical servers now and then send more than strict_cap, and the host itself is busy, too",
        leave="strict_cap is as much as they may ever have, or latencies are not reported",
    )
    leaf: bool = option(
        False,
        "With throttle and [placement]enabled: where an objective stays violated though nothing on this host is to "
        "blame, ask in Placement for room on the uplinks of this host's leaf, and hold best-effort servers of this "
        "host to what the job service's engine says of the leaf ([numa_ext_jobs]leaf_uplinks) for the sake of others. "
        "What is held for others is never below [slo]be_floor_percent of the uplink in the mean of an hour, and falls "
        "within five minutes when Placement or the engine is gone. While this host asks, or its best-effort servers "
        "send a tenth of the uplink, Placement gets two requests each half minute from it.",
        change="hosts share uplinks of a leaf in switches that know no lanes, and the fabric is in Placement with its "
        "uplink_mbps",
        leave="there is no fabric, or switches know lanes by DSCP",
    )
    strict_cap: float = option(
        0.3,
        "Share of the link up to which latency-critical servers go first. They get no more while others send, so that "
        "one that runs away starves no other. It is also what throttle takes of best-effort servers for nothing.",
        minimum=0.01,
        maximum=0.99,
        change="latency-critical servers send more than that together",
        leave="they send little, which is when going first costs others nothing",
    )
    best_effort_share: float = option(
        0.5,
        "Share of what latency-critical servers leave that best-effort ones have at least; the rest is for the host "
        "itself and for servers without a tier. What one leaves the others may use.",
        minimum=0.01,
        maximum=0.99,
        change="storage or migrations of the host are more, or less, important than best-effort servers",
        leave="both are alike",
    )
    force: bool = option(
        False,
        "Lanes on an uplink faster than 10 Gbit/s and on a bond, too. One queue for all processors costs throughput "
        "there; members of a bond queue on their own.",
        change="you have measured that it does not matter on your hosts",
        leave="you have not",
    )
    interval_s: float = option(
        5.0,
        "Seconds between turns: how late a new server gets its mark.",
        minimum=0.5,
        maximum=300.0,
        change="servers come and go by the second (lower)",
        leave="the first seconds of a server do not matter",
    )
    ports_every_s: float = option(
        60.0,
        "Seconds after which Neutron is asked again for the ports of this host; a new tap has it asked at once. A QoS "
        "policy that is attached meanwhile is seen that late.",
        minimum=5.0,
        maximum=3600.0,
        change="Neutron is slow (raise)",
        leave="a request a minute is nothing to it",
    )
    neutron_host: str = option(
        "",
        "Name of this host in Neutron's ports (binding:host_id); empty: that of libvirt, or of [host]name.",
        change="nova.conf of this host has a [DEFAULT]host of its own",
        leave="it has none",
    )
    tc: Path = option(
        Path("/usr/sbin/tc"),
        "The program that writes queues, of iproute2.",
        change="it is elsewhere",
        leave="it is the distribution's",
    )
    nft: Path = option(
        Path("/usr/sbin/nft"),
        "The program that writes marks, of nftables.",
        change="it is elsewhere",
        leave="it is the distribution's",
    )
    ovs_vsctl: Path = option(
        Path("/usr/bin/ovs-vsctl"),
        "The program that says which QoS a port of Open vSwitch has; nothing is written by it. Where it may not ask, a "
        "port of Open vSwitch has no lanes.",
        change="it is elsewhere",
        leave="it is the distribution's, or uplinks are no ports of Open vSwitch",
    )

    @property
    def takes_orders(self) -> bool:
        """The agent may say how best-effort servers are held."""
        return self.throttle or self.tune
