# SPDX-License-Identifier: Apache-2.0
"""Options of group ``[slo]``: where latencies come from, and the controller that keeps their objectives (BALM)."""

from dataclasses import dataclass, field
from typing import Any, Final

from oslo_config import cfg

from host_agent.conf.balm import Settings as BalmSettings
from host_agent.conf.balm import Thresholds
from host_agent.conf.latency import FeedSettings, PrometheusSettings
from placement_traits.errors import InvalidValueError

GROUP: Final = cfg.OptGroup("slo", title="Latency objectives and the bandwidth controller (BALM)")

OPTIONS: Final[list[cfg.Opt]] = [
    cfg.BoolOpt(
        "enabled",
        default=True,
        help="Take memory bandwidth from best-effort servers when a latency-critical one comes near its "
        "numa_ext:slo_p99_us, and give it back when there is room. Servers whose latency is not known are protected by "
        "[rdt]be_mba_percent as before.",
    ),
    cfg.BoolOpt(
        "channel",
        default=True,
        help="Plug the virtio-serial port org.numa_ext.slo.0 into latency-critical servers with an objective. Their "
        "image needs the property hw_qemu_guest_agent=yes, which brings the controller that the port is plugged into.",
    ),
    cfg.FloatOpt(
        "window_s",
        default=3.0,
        min=0.5,
        max=60.0,
        help="Length of the sliding window of requests, seconds. Longer ones see rare slow requests and react later.",
    ),
    cfg.FloatOpt(
        "poll_s",
        default=0.02,
        min=0.005,
        max=1.0,
        help="Shortest time between two decisions, seconds. Reports wake the controller at once.",
    ),
    cfg.IntOpt(
        "least_samples",
        default=200,
        min=100,
        help="Requests that make a 99th percentile; with fewer the latency is unknown.",
    ),
    cfg.FloatOpt(
        "yellow_percent",
        default=5.0,
        min=0.0,
        max=50.0,
        help="An objective that is met by less than this counts as about to be violated.",
    ),
    cfg.FloatOpt(
        "green_percent",
        default=20.0,
        min=1.0,
        max=90.0,
        help="Objectives that are all met by at least this let bandwidth be given back.",
    ),
    cfg.IntOpt(
        "max_retries",
        default=3,
        min=0,
        help="Searches in a row that may fail before a server is proposed for live migration.",
    ),
    cfg.FloatOpt(
        "stuck_s",
        default=15.0,
        min=1.0,
        help="Seconds after which a page move of a search is given up that makes no progress. Longer where the machine "
        "or [memory]rate_mbps is slow.",
    ),
    cfg.FloatOpt(
        "budget_s_per_hour",
        default=300.0,
        min=1.0,
        help="Seconds per hour in which best-effort servers may be throttled in vain or in silence because of one "
        "latency-critical server; after that it is ignored for ten minutes. It bounds what a lying guest can do.",
    ),
    cfg.StrOpt(
        "prometheus_url",
        help="Base URL of a Prometheus server, for servers with numa_ext:slo_source=prometheus, or auto while their "
        "port is silent or missing.",
    ),
    cfg.MultiStrOpt(
        "prometheus_query",
        default=[],
        help="FLAVOR=PROMQL, or any=PROMQL for all others; may be given several times. The query returns one number, "
        "the 99th percentile in seconds. $uuid and $name stand for the server. Tenants choose names: keep $name within "
        "double quotes (it is escaped for them) and behind = rather than =~.",
    ),
    cfg.FloatOpt(
        "prometheus_window_s",
        default=15.0,
        min=1.0,
        help="Time range that the queries look back, seconds: an action is judged by answers that are so much younger.",
    ),
    cfg.FloatOpt(
        "prometheus_interval_s",
        default=5.0,
        min=0.5,
        help="Seconds between two queries per server.",
    ),
    cfg.FloatOpt(
        "prometheus_timeout_s", default=3.0, min=0.1, help="Longest time that a query may take."
    ),
    cfg.FloatOpt(
        "ipc_tolerance_percent",
        default=25.0,
        min=0.0,
        max=90.0,
        help="A latency-critical server that tells no latency counts as violated when its instructions per cycle are "
        "so far below the best of the last hour; 0 guesses nothing. Needs performance counters, see [counters]source.",
    ),
    cfg.StrOpt(
        "notify_url",
        secret=True,
        help="Transport URL of the message bus (as [oslo_messaging_notifications]transport_url of nova). When it is "
        "set, each proposal to move a server away is sent as notification numa_ext.slo.cannot_fix; needs "
        "oslo.messaging.",
    ),
    cfg.BoolOpt(
        "live_migrate",
        default=False,
        help="Ask nova to live-migrate the heaviest best-effort server whose throttling has shown an effect, "
        "but not enough, on a server that reports a violation beyond chance. Needs credentials with the admin role in "
        "[placement]. At most one server in ten minutes, and one in six hours for the sake of the same "
        "latency-critical server.",
    ),
]


@dataclass(frozen=True, slots=True)
class SloSettings:
    """``[slo]``.

    :param enabled: the controller acts
    :param channel: ports are plugged
    :param feed: window and limits of a feed
    :param balm: of the controller
    :param prometheus: None where no server is named
    :param ipc_tolerance: deviation of instructions per cycle that counts as violated, 0.0 for none
    :param notify_url: message bus, "" for none
    :param live_migrate: nova is asked
    """

    enabled: bool = True
    channel: bool = True
    feed: FeedSettings = field(default_factory=FeedSettings)
    balm: BalmSettings = field(default_factory=BalmSettings)
    prometheus: PrometheusSettings | None = None
    ipc_tolerance: float = 0.25
    notify_url: str = ""
    live_migrate: bool = False


def read(slo: Any) -> SloSettings:
    """Return the settings from the group of a loaded configuration.

    :raises InvalidValueError: names the option, its value and what is allowed
    """
    return SloSettings(
        enabled=slo.enabled,
        channel=slo.channel,
        feed=FeedSettings(slo.window_s, slo.poll_s, slo.least_samples),
        balm=BalmSettings(
            thresholds=Thresholds(slo.yellow_percent / 100, slo.green_percent / 100),
            max_retries=slo.max_retries,
            stuck_s=slo.stuck_s,
            budget_s_per_hour=slo.budget_s_per_hour,
        ),
        prometheus=PrometheusSettings(
            slo.prometheus_url.rstrip("/"),
            _queries(slo.prometheus_query),
            slo.prometheus_window_s,
            slo.prometheus_interval_s,
            slo.prometheus_timeout_s,
        )
        if slo.prometheus_url
        else None,
        ipc_tolerance=slo.ipc_tolerance_percent / 100,
        notify_url=slo.notify_url or "",
        live_migrate=slo.live_migrate,
    )


def _queries(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        flavor, equals, query = text.partition("=")
        if not equals or not flavor.strip() or not query.strip():
            raise InvalidValueError("[slo]prometheus_query", text, "FLAVOR=PROMQL or any=PROMQL")
        found[flavor.strip()] = query.strip()
    return found
