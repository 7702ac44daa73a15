# SPDX-License-Identifier: Apache-2.0
"""Options of latency objectives: section ``[slo]``, where latencies come from and the controller that keeps them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from host_agent.conf.latency import FeedOptions, PrometheusOptions
from placement_traits.errors import InvalidValueError
from placement_traits.options import Section, option, part


@dataclass(frozen=True, slots=True)
class BalmOptions(Section):
    """The controller (BALM), in ``[slo]``; values of the source are marked [G]. What is no option is set by benchmarks.

    :param throttle_step: [G] per cent by which a throttle is released at a time
    :param page_step: [G] part of all pages per migration step
    :param settle_s: time an action needs to show in latencies, seconds
    :param judge_s: requests are collected at least so long after settling before an action is found good, seconds; a
        violation beyond chance is believed at once
    :param heal_s: an action that takes demand away is found insufficient only after so long: queues drain slowly, and
        BALM's servers took up to 0.6 s
    :param throttle_while_moving: a step up that violated is taken back while pages move, and tried again when they have
        arrived; BALM leaves the violating level effective for the whole move
    :param foresee: a step up is not taken when the last one, taken again, would violate: latency rises ever faster
    :param bar_s: pages of a server whose move did harm at another node are not moved away again for so long
    :param arrived: pages are where they should be when no node is off by more than this share
    :param noticeable: servers with less of the best-effort traffic at the violated nodes are left alone in the first
        pass, unless none is seen to have more
    :param ample_hold_s: objectives must be met with ample slack for so long before bandwidth is given back
    :param ample_hold_max_s: longest hold after attempts that had to be undone; each doubles it
    :param reclaim_step: part of all pages that returns at a time
    :param at_risk_pause_s: no new search for objectives at risk alone so soon after one that could do no better
    :param effect: an action that changes the worst latency by less than this part is without effect
    :param ignore_s: a server that nothing helped is ignored, or not tried again, for so long
    :param traffic_s: traffic that is read so long after the last action is surely not from before it
    :param demand_s: what a server used without a throttle does not tell any more what it would use so long after
    """

    at_risk_slack_percent: float = option(
        5.0,
        "Slack, the part of the objective that is left above the latency, per cent: an objective with less is at risk, "
        "and acted on before it is violated.",
        minimum=0.0,
        maximum=50.0,
        change="objectives are violated before anything is done (raise)",
        leave="best-effort servers already get too little",
        formerly="yellow_percent",
    )
    ample_slack_percent: float = option(
        20.0,
        "Slack that leaves ample room, per cent of the objective: while all objectives have it bandwidth is given "
        "back.",
        minimum=1.0,
        maximum=90.0,
        change="levels go up and down all the time (raise)",
        leave="best-effort servers get bandwidth back too late",
        formerly="green_percent",
    )
    max_retries: int = option(
        3,
        "Searches in a row that may fail before a server is proposed for live migration.",
        minimum=0,
        change="a migration is worse for you than a violated objective (raise)",
        leave="spare hosts are there",
    )
    stuck_s: float = option(
        15.0,
        "Seconds after which a page move of a search is given up that makes no progress. Longer where the machine "
        "or [memory]rate_mbps is slow.",
        minimum=1.0,
        change="the journal shows pages_stuck while pages still move (raise)",
        leave="a search must not wait for pages that cannot move",
    )
    budget_s_per_hour: float = option(
        300.0,
        "What one latency-critical server may take of best-effort servers beyond what its flavor declares "
        "(CUSTOM_MEMORY_BANDWIDTH_MBPS), seconds of all their memory traffic per hour: half of it for ten seconds are "
        "five. After that it gets what it declares, no more, until half of this has grown back. It bounds what a lying "
        "guest can do.",
        minimum=1.0,
        change="flavors declare no bandwidth, or guests are your own and are to be trusted (raise)",
        leave="guests are customers': it bounds what a lying one can do to others",
    )
    be_floor_percent: float = option(
        20.0,
        "Least mean level of a best-effort server over any hour, per cent, whatever latency-critical servers declare "
        "and need: one that would fall below is not throttled for a while. It beats [rdt]be_mba_percent, too, wherever "
        "the latency of some server on the host is known.",
        minimum=1.0,
        maximum=90.0,
        change="best-effort servers are promised more (raise)",
        leave="latency-critical flavors declare what they need",
    )
    throttle_step: int = 10
    page_step: float = 0.10
    settle_s: float = 0.2
    judge_s: float = 0.3
    heal_s: float = 1.0
    throttle_while_moving: bool = True
    foresee: bool = True
    bar_s: float = 60.0
    arrived: float = 0.02
    noticeable: float = 0.05
    ample_hold_s: float = 5.0
    ample_hold_max_s: float = 320.0
    reclaim_step: float = 0.05
    at_risk_pause_s: float = 30.0
    effect: float = 0.05
    ignore_s: float = 600.0
    traffic_s: float = 3.0
    demand_s: float = 600.0

    @property
    def at_risk_slack(self) -> float:
        """[G] Share of the objective: one that is met with less slack is at risk."""
        return self.at_risk_slack_percent / 100

    @property
    def ample_slack(self) -> float:
        """[G] Share of the objective: one that is met with as much slack leaves ample room."""
        return self.ample_slack_percent / 100

    def check(self) -> None:
        """See :meth:`~placement_traits.options.Section.check`."""
        if not self.at_risk_slack_percent < self.ample_slack_percent:
            value = (self.at_risk_slack_percent, self.ample_slack_percent)
            raise InvalidValueError(
                "[slo]at_risk_slack_percent, ample_slack_percent",
                value,
                "at_risk_slack_percent < ample_slack_percent",
            )


@dataclass(frozen=True, slots=True)
class SloOptions(Section):
    """``[slo]``."""

    section: ClassVar = "slo"
    title: ClassVar = "Latency objectives and the SLO controller (BALM)"

    mode: Literal["observe", "enforce"] = option(
        "enforce",
        "What is done to keep objectives; see [agent]mode.",
        choices={
            "observe": "latencies are read where a port or Prometheus is there, violations are counted, and what would "
            "be done first about each is journalled; no port is plugged, nothing is throttled, and no server is "
            "proposed for migration",
            "enforce": "best-effort servers are throttled",
        },
        change="objectives are to be watched for some weeks before anything is throttled for them",
        leave="[agent]mode is enough",
    )
    enabled: bool = option(
        True,
        "Take memory bandwidth from best-effort servers when a latency-critical one comes near its "
        "numa_ext:slo_p99_us, and give it back when there is room. Servers whose latency is not known are "
        "protected by [rdt]be_mba_percent as before.",
        change="no latencies are read: the fixed level of [rdt]be_mba_percent then holds",
        leave="flavors carry numa_ext:slo_p99_us",
    )
    channel: bool = option(
        True,
        "Plug the virtio-serial port org.numa_ext.slo.0 into latency-critical servers with an objective. Their "
        "image needs the property hw_qemu_guest_agent=yes, which brings the controller that the port is plugged "
        "into.",
        change="guests must get no additional port: use Prometheus",
        leave="images have hw_qemu_guest_agent=yes",
    )
    feed: FeedOptions = part(FeedOptions)
    balm: BalmOptions = part(BalmOptions)
    prometheus: PrometheusOptions = part(PrometheusOptions, prefix="prometheus_")
    ipc_tolerance_percent: float = option(
        0.0,
        "A latency-critical server that reports no latency counts as violated when its instructions per cycle are "
        "so far below the best of the last hour; 0 guesses nothing. IPC says nothing of how much is done: one that "
        "goes idle counts as violated, too. Needs performance counters, see [counters]source.",
        minimum=0.0,
        maximum=90.0,
        change="latency-critical servers compute the same all day and cannot report (25)",
        leave="servers go idle, or change what they compute",
    )
    notify_url: str | None = option(
        None,
        "Transport URL of the message bus (as [oslo_messaging_notifications]transport_url of nova). When it is "
        "set, each proposal to move a server away is sent as notification numa_ext.slo.cannot_fix; needs "
        "oslo.messaging.",
        secret=True,
        change="a program of yours listens for proposals to move a server away",
        leave="operators read the journal or live_migrate is on",
    )
    live_migrate: bool = option(
        False,
        "Ask nova to live-migrate the heaviest best-effort server whose throttling has shown an effect, but not "
        "enough, on a server that reports a violation beyond chance. The role numa_ext_host does not allow it: the "
        "user of [placement] needs another role beside it, to which nova's policy grants "
        "os_compute_api:os-migrate-server:migrate_live, and who takes over the host has it, too. At most one server "
        "in ten minutes, and one in six hours for the sake of the same latency-critical server.",
        change="spare hosts are there, no approval is needed, and no program behind notify_url can do it instead",
        leave="migrations are yours to decide: the proposal is in the journal and the metrics",
    )

    @property
    def ipc_tolerance(self) -> float:
        """Share by which instructions per cycle may fall below their best; 0.0 guesses nothing."""
        return self.ipc_tolerance_percent / 100
