# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboards into ``etc/grafana``. A panel is one line here and thirty there.

What a panel shows is explained by the sentences of the metrics that it names, as they are declared in the code.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from host_agent.report.metrics import METRICS as AGENT_METRICS
from nova_numa_ext.metrics import METRICS as SCHEDULER_METRICS
from nova_numa_ext.orchestrator.metrics import METRICS as JOB_METRICS
from placement_traits.metrics import MetricSpec

METRICS: Final[Mapping[str, MetricSpec]] = {
    **AGENT_METRICS,
    **SCHEDULER_METRICS,
    **JOB_METRICS,
}

FOLDER: Final = Path(__file__).parents[1] / "etc/grafana"
_COLUMNS: Final = 24
_HEIGHT: Final = 8
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_METRIC: Final = re.compile(r"\bnuma_ext_\w+")
_ON_THE_WIRE: Final = ("_total", "_bucket", "_sum", "_count")


def declared(name: str) -> MetricSpec:
    """Return the metric of a name as it is on the wire, where counters and histograms have an ending.

    :raises KeyError: no component has it
    """
    for metric in METRICS.values():
        endings = {"counter": _ON_THE_WIRE[:1], "histogram": _ON_THE_WIRE[1:]}.get(
            metric.kind, ("",)
        )
        if name in {f"{metric.name}{ending}" for ending in endings}:
            return metric
    raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    :param title: its heading
    :param queries: legend by expression
    :param unit: Grafana's name of the unit
    :param width: of 24 columns
    """

    title: str
    queries: Mapping[str, str]
    unit: str = "short"
    width: int = 8
    kind: str = "timeseries"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard.

    :param variables: query by variable that a user chooses one value of
    """

    title: str
    description: str
    panels: tuple[Panel, ...]
    variables: Mapping[str, str]


def number(title: str, expression: str, unit: str = "short") -> Panel:
    """One number of now, for the top of a dashboard."""
    return Panel(title, {expression: ""}, unit, width=4, kind="stat")


HERE: Final = 'instance="$instance"'
MINE: Final = 'server="$server"'
RANGE: Final = "[$__rate_interval]"

FLEET: Final = Dashboard(
    "NUMA: fleet",
    "All hosts with an agent: are they there, do they keep what they promise, and what does it cost others?",
    (
        number("Hosts that report", "count(numa_ext_build_info)"),
        number("Agents that do not answer", 'count(up{job="numa-host-agent"} == 0) or vector(0)'),
        number("Agents not in control", "count(numa_ext_in_control == 0) or vector(0)"),
        number("Behind in Placement", "count(numa_ext_placement_synced == 0) or vector(0)"),
        number("Hosts whose libvirt is lost", "sum(numa_ext_libvirt_lost)"),
        number("Paused hosts", "sum(numa_ext_paused)"),
        Panel(
            "Objectives by state",
            {
                f"count(numa_ext_server_slo_state == {value}) or vector(0)": name
                for value, name in enumerate(("ample", "met", "unknown", "at risk", "violated"))
            },
        ),
        Panel(
            "Violation of objectives, worst hosts",
            {
                f"topk(10, sum by (instance) (rate(numa_ext_server_slo_violation_seconds_total{RANGE})))": (
                    "{{instance}}"
                )
            },
            "percentunit",
        ),
        Panel(
            "Bandwidth withheld from best-effort servers, most",
            {
                f"topk(10, sum by (instance) (rate(numa_ext_server_withheld_seconds_total{RANGE})))": "{{instance}}"
            },
        ),
        Panel("Servers by state", {"sum by (state) (numa_ext_servers)": "{{state}}"}),
        Panel(
            "Servers that wait to be taken over, objectives nothing watches",
            {
                "sum(numa_ext_servers_waiting)": "waiting",
                "sum(numa_ext_server_slo_unwatched)": "unwatched",
            },
        ),
        Panel(
            "Hosts by feature and mode",
            {"count by (feature, mode) (numa_ext_mode == 1)": "{{feature}} {{mode}}"},
        ),
        Panel(
            "RDT groups left, fewest",
            {
                "bottomk(5, numa_ext_closids_left)": "control, {{instance}}",
                "bottomk(5, numa_ext_rmids_left)": "monitoring, {{instance}}",
            },
        ),
        Panel(
            "Actions that failed, most",
            {
                f'topk(10, sum by (instance, action) (rate(numa_ext_actions_total{{result="failed"}}{RANGE})))': (
                    "{{instance}} {{action}}"
                )
            },
            "ops",
        ),
        Panel(
            "Rounds that failed, most",
            {
                f'topk(10, sum by (instance) (rate(numa_ext_rounds_total{{result="failed"}}{RANGE})))': "{{instance}}"
            },
            "ops",
        ),
        Panel(
            "Versions",
            {"count by (version, python) (numa_ext_build_info)": "{{version}}, Python {{python}}"},
        ),
    ),
    {},
)

HOST: Final = Dashboard(
    "NUMA: host",
    "One compute host: its agent, its memory, its cache ways and bandwidth.",
    (
        number("Paused", f"numa_ext_paused{{{HERE}}}"),
        number("Placement is up to date", f"numa_ext_placement_synced{{{HERE}}}"),
        number("libvirt is lost", f"numa_ext_libvirt_lost{{{HERE}}}"),
        number("In control", f"numa_ext_in_control{{{HERE}}}"),
        number("Last round", f"numa_ext_loop_seconds{{{HERE}}}", "s"),
        number("Servers that wait", f"numa_ext_servers_waiting{{{HERE}}}"),
        Panel(
            "Rounds",
            {f"rate(numa_ext_rounds_total{{{HERE}}}{RANGE})": "{{result}}"},
            "ops",
        ),
        Panel(
            "Duration of rounds",
            {
                f"histogram_quantile({quantile}, sum by (le) (rate("
                f"numa_ext_round_seconds_bucket{{{HERE}}}{RANGE})))": name
                for quantile, name in ((0.5, "median"), (0.99, "99th percentile"))
            },
            "s",
        ),
        Panel(
            "Actions",
            {f"rate(numa_ext_actions_total{{{HERE}}}{RANGE})": "{{action}} {{result}}"},
            "ops",
        ),
        Panel(
            "Failures",
            {
                f"rate(numa_ext_refiner_failures_total{{{HERE}}}{RANGE})": "{{refiner}}",
                f"rate(numa_ext_listener_failures_total{{{HERE}}}{RANGE})": "{{listener}}",
                f"rate(numa_ext_unwritten_total{{{HERE}}}{RANGE})": "{{file}}",
            },
            "ops",
        ),
        Panel(
            "Releases of throttles by the dead-man switch",
            {f"increase(numa_ext_dead_man_switch_fired_total{{{HERE}}}[1h])": "within an hour"},
        ),
        Panel("Servers", {f"numa_ext_servers{{{HERE}}}": "{{state}}"}),
        Panel("Modes", {f"numa_ext_mode{{{HERE}}} == 1": "{{feature}} {{mode}}"}),
        Panel("Free memory", {f"numa_ext_node_free_mb{{{HERE}}}": "node {{node}}"}, "decmbytes"),
        Panel(
            "Memory of servers",
            {f"sum by (node) (numa_ext_server_memory_mb{{{HERE}}})": "node {{node}}"},
            "decmbytes",
        ),
        Panel(
            "Memory that is still to be moved",
            {f"numa_ext_server_misplaced_mb{{{HERE}}} > 0": "{{name}}"},
            "decmbytes",
        ),
        Panel("Own L3 ways", {f"numa_ext_server_ways{{{HERE}}}": "{{name}}, L3 {{l3}}"}),
        Panel(
            "L3 filled by latency-critical servers",
            {f"numa_ext_server_llc_occupancy_bytes{{{HERE}}}": "{{name}}, L3 {{l3}}"},
            "bytes",
        ),
        Panel(
            "Traffic of latency-critical servers",
            {f"numa_ext_server_memory_mbps{{{HERE}}}": "{{name}}, L3 {{l3}}, {{kind}}"},
            "MBs",
        ),
        Panel(
            "Bandwidth level of best-effort servers, as the kernel has it",
            {f"numa_ext_server_mb_level{{{HERE}}}": "{{name}}, L3 {{l3}}"},
        ),
        Panel(
            "Bandwidth level of best-effort servers, as decided",
            {f"numa_ext_server_mba_percent{{{HERE}}}": "{{name}}, L3 {{l3}}"},
            "percent",
        ),
        Panel(
            "Traffic of best-effort servers",
            {f"numa_ext_server_traffic_mbps{{{HERE}}}": "{{name}}, {{kind}}"},
            "MBs",
        ),
        Panel(
            "Part of the time throttled, of the bandwidth withheld",
            {
                f"rate(numa_ext_server_throttled_seconds_total{{{HERE}}}{RANGE})": "{{name}} throttled",
                f"rate(numa_ext_server_withheld_seconds_total{{{HERE}}}{RANGE})": "{{name}} withheld",
                f"rate(numa_ext_server_withholds_seconds_total{{{HERE}}}{RANGE})": "for {{name}}",
            },
            "percentunit",
        ),
        Panel(
            "RDT groups left",
            {
                f"numa_ext_closids_left{{{HERE}}}": "control",
                f"numa_ext_rmids_left{{{HERE}}}": "monitoring",
            },
        ),
        Panel("Phase of the SLO controller", {f"numa_ext_balm_phase{{{HERE}}} == 1": "{{phase}}"}),
        Panel(
            "Phase of the SLO controller for uplinks",
            {f"numa_ext_uplink_throttle_phase{{{HERE}}} == 1": "{{uplink}}: {{phase}}"},
        ),
        Panel(
            "Sent over uplinks, and the limit of best-effort servers",
            {
                f"numa_ext_uplink_sent_mbps{{{HERE}}}": "{{uplink}}, {{by}}",
                f"numa_ext_uplink_limit_mbps{{{HERE}}}": "{{uplink}}, limit",
                f"numa_ext_uplink_leaf_limit_mbps{{{HERE}}}": "{{uplink}}, limit for other hosts of the leaf",
            },
            "Mbits",
        ),
        Panel(
            "Share of their lane that best-effort servers keep",
            {f"numa_ext_uplink_best_effort_share_percent{{{HERE}}}": "{{uplink}}"},
            "percent",
        ),
        Panel("Asks for room on its leaf", {f"numa_ext_uplink_asks{{{HERE}}}": "{{uplink}}"}),
        Panel(
            "Learnt benefit of an own domain",
            {f"numa_ext_mapping_benefit{{{HERE}}}": "{{domain}} {{class}}"},
        ),
    ),
    {"instance": "label_values(numa_ext_build_info, instance)"},
)

SERVER: Final = Dashboard(
    "NUMA: server",
    "One server, on whatever host it is: its objective, its cache and bandwidth, its memory, its counters.",
    (
        Panel(
            "99th percentile of its latency",
            {f"numa_ext_server_slo_p99_us{{{MINE}}}": "{{instance}}"},
            "µs",
        ),
        Panel(
            "Latency over objective",
            {f"numa_ext_server_slo_ratio{{{MINE}}}": "by {{source}}"},
            "percentunit",
        ),
        Panel(
            "State of its objective (0 ample … 4 violated), 1: nothing watches it, nothing here keeps it",
            {
                f"numa_ext_server_slo_state{{{MINE}}}": "state",
                f"numa_ext_server_slo_unwatched{{{MINE}}}": "unwatched",
                f"numa_ext_server_slo_unsatisfiable{{{MINE}}}": "unsatisfiable",
            },
        ),
        Panel(
            "Part of the time in violation",
            {f"rate(numa_ext_server_slo_violation_seconds_total{{{MINE}}}{RANGE})": "{{instance}}"},
            "percentunit",
        ),
        Panel(
            "Best-effort traffic that it took in the last hour beyond what it declares",
            {f"numa_ext_server_account_spent_seconds{{{MINE}}}": "{{instance}}"},
            "s",
        ),
        Panel(
            "Mean bandwidth level of the last hour",
            {f"numa_ext_server_hour_level_percent{{{MINE}}}": "{{instance}}"},
            "percent",
        ),
        Panel(
            "What came through its port",
            {f"deriv(numa_ext_slo_feed{{{MINE}}}{RANGE})": "{{kind}}"},
            "ops",
        ),
        Panel(
            "Requests that it reports",
            {f"rate(numa_ext_server_request_seconds_count{{{MINE}}}{RANGE})": "{{instance}}"},
            "reqps",
        ),
        Panel(
            "Own L3 ways; 1: no other group may use them",
            {
                f"numa_ext_server_ways{{{MINE}}}": "ways, L3 {{l3}}",
                f"numa_ext_server_exclusive{{{MINE}}}": "exclusive",
            },
        ),
        Panel(
            "L3 that it fills",
            {f"numa_ext_server_llc_occupancy_bytes{{{MINE}}}": "L3 {{l3}}"},
            "bytes",
        ),
        Panel(
            "Its memory traffic",
            {
                f"numa_ext_server_memory_mbps{{{MINE}}}": "L3 {{l3}}, {{kind}}",
                f"numa_ext_server_traffic_mbps{{{MINE}}}": "{{kind}}",
            },
            "MBs",
        ),
        Panel(
            "Its network traffic",
            {f"rate(numa_ext_server_network_bytes_total{{{MINE}}}{RANGE})": "{{direction}}"},
            "Bps",
        ),
        Panel(
            "How much it uses the network, estimated",
            {f"numa_ext_server_network_class{{{MINE}}} == 1": "{{class}}"},
        ),
        Panel(
            "Traffic by level of the network",
            {
                f"numa_ext_server_network_level_mbps{{{MINE}}}": "{{level}}, estimated: {{estimated}}"
            },
            "Mbits",
        ),
        Panel(
            "Its bandwidth level, decided and in the kernel",
            {
                f"numa_ext_server_mba_percent{{{MINE}}}": "decided, L3 {{l3}}",
                f"numa_ext_server_mb_level{{{MINE}}}": "in the kernel, L3 {{l3}}",
            },
        ),
        Panel(
            "Part of the time throttled, of its bandwidth withheld",
            {
                f"rate(numa_ext_server_throttled_seconds_total{{{MINE}}}{RANGE})": "throttled",
                f"rate(numa_ext_server_withheld_seconds_total{{{MINE}}}{RANGE})": "withheld",
            },
            "percentunit",
        ),
        Panel(
            "Its memory",
            {f"numa_ext_server_memory_mb{{{MINE}}}": "node {{node}}"},
            "decmbytes",
        ),
        Panel(
            "Memory that is still to be moved",
            {f"numa_ext_server_misplaced_mb{{{MINE}}}": "{{instance}}"},
            "decmbytes",
        ),
        Panel("Instructions per cycle", {f"numa_ext_server_ipc{{{MINE}}}": "{{instance}}"}),
        Panel("Misses per instruction", {f"numa_ext_server_mpi{{{MINE}}}": "{{instance}}"}),
        Panel(
            "Stalled cycles per second and vCPU",
            {f"numa_ext_server_stall_rate{{{MINE}}}": "{{instance}}"},
        ),
        Panel(
            "Deviation from its expected performance",
            {f"numa_ext_server_deviation{{{MINE}}}": "{{instance}}"},
            "percentunit",
        ),
        Panel(
            "Data-to-worker proximity",
            {f"numa_ext_server_dwp{{{MINE}}}": "{{instance}}"},
            "percentunit",
        ),
    ),
    {"server": "label_values(numa_ext_server_memory_mb, server)"},
)

DECISIONS: Final = Dashboard(
    "NUMA: decisions",
    "nova-scheduler with our filter and weigher: what it decides, why it refuses, how long it takes, and on what view.",
    (
        number("Age of the view", "max(numa_ext_scheduler_view_age_seconds)", "s"),
        number("Hosts in the view", "min(numa_ext_scheduler_view_hosts)"),
        number("Hosts on another leaf", "max(numa_ext_scheduler_miscabled_hosts)"),
        number(
            "Views that are not fresh",
            'count(numa_ext_scheduler_view_state{state="fresh"} == 0) or vector(0)',
        ),
        number(
            "Decisions without a host, last hour",
            'sum(increase(numa_ext_scheduler_decisions_total{result="none"}[1h])) or vector(0)',
        ),
        number(
            "Faults, last hour",
            "sum(increase(numa_ext_scheduler_faults_total[1h])) or vector(0)",
        ),
        number(
            "Entries not journalled, last hour",
            "sum(increase(numa_ext_scheduler_journal_failures_total[1h])) or vector(0)",
        ),
        Panel(
            "Decisions",
            {f"sum by (result) (rate(numa_ext_scheduler_decisions_total{RANGE}))": "{{result}}"},
            "ops",
        ),
        Panel(
            "Hosts refused",
            {f"sum by (term) (rate(numa_ext_scheduler_refused_hosts_total{RANGE}))": "{{term}}"},
            "ops",
        ),
        Panel(
            "Hosts that mode enforce would have refused",
            {
                f"sum by (term) (rate(numa_ext_scheduler_would_refuse_hosts_total{RANGE}))": "{{term}}"
            },
            "ops",
        ),
        Panel(
            "What mode observe left as it was",
            {f"sum by (what) (rate(numa_ext_scheduler_would_reorder_total{RANGE}))": "{{what}}"},
            "ops",
        ),
        Panel(
            "Ends of short lists",
            {f"sum by (end) (rate(numa_ext_scheduler_shortlists_total{RANGE}))": "{{end}}"},
            "ops",
        ),
        Panel(
            "Groups of servers",
            {
                f"sum by (result) (rate(numa_ext_scheduler_group_plans_total{RANGE}))": "{{result}}",
                f"sum(rate(numa_ext_scheduler_group_conflicts_total{RANGE}))": "claim lost",
            },
            "ops",
        ),
        Panel(
            "Faults",
            {f"sum by (where) (rate(numa_ext_scheduler_faults_total{RANGE}))": "{{where}}"},
            "ops",
        ),
        Panel(
            "Time of a decision",
            {
                f"histogram_quantile({quantile}, sum by (le, step) (rate("
                f"numa_ext_scheduler_decision_seconds_bucket{RANGE})))": f"{{{{step}}}}, {name}"
                for quantile, name in ((0.5, "median"), (0.99, "99th percentile"))
            },
            "s",
        ),
        Panel(
            "State of the view",
            {"sum by (state) (numa_ext_scheduler_view_state)": "{{state}}"},
        ),
        Panel(
            "Readings of Placement",
            {
                f"sum by (result) (rate(numa_ext_scheduler_view_readings_total{RANGE}))": "{{result}}"
            },
            "ops",
        ),
    ),
    {},
)

JOBS: Final = Dashboard(
    "NUMA: jobs",
    "The job service: who waits and for how long, what runs, what nova and Placement refuse, and is there an engine?",
    (
        number("Jobs that wait", 'sum(max by (kind) (numa_ext_jobs{state="queued"}))'),
        number("Jobs that run", 'sum(max by (kind) (numa_ext_jobs{state="running"}))'),
        number(
            "Longest wait for servers",
            'max(numa_ext_jobs_longest_wait_seconds{kind="servers"})',
            "s",
        ),
        number("Engines that lead", "sum(numa_ext_jobs_engine_leads)"),
        number("An old database recovers", "max(numa_ext_jobs_recovers)"),
        number(
            "Failed, last hour",
            'sum(increase(numa_ext_jobs_moves_total{state="failed"}[1h])) or vector(0)',
        ),
        Panel("Jobs by state", {"max by (kind, state) (numa_ext_jobs)": "{{kind}} {{state}}"}),
        Panel(
            "Longest wait", {"max by (kind) (numa_ext_jobs_longest_wait_seconds)": "{{kind}}"}, "s"
        ),
        Panel(
            "Jobs that come to a state",
            {f"sum by (state) (rate(numa_ext_jobs_moves_total{RANGE}))": "{{state}}"},
            "ops",
        ),
        Panel(
            "Why jobs go back to the queue",
            {
                f'sum by (term) (rate(numa_ext_jobs_moves_total{{state="queued"}}{RANGE}))': "{{term}}"
            },
            "ops",
        ),
        Panel(
            "Why jobs fail",
            {
                f'sum by (term) (rate(numa_ext_jobs_moves_total{{state="failed"}}{RANGE}))': "{{term}}"
            },
            "ops",
        ),
        Panel("Who leads", {"numa_ext_jobs_engine_leads": "{{instance}}"}),
        Panel(
            "Rounds",
            {
                f"sum by (instance, result) (rate(numa_ext_jobs_rounds_total{RANGE}))": (
                    "{{instance}} {{result}}"
                )
            },
            "ops",
        ),
        Panel(
            "Time of a round",
            {
                f"histogram_quantile({quantile}, sum by (le) (rate("
                f"numa_ext_jobs_round_seconds_bucket{RANGE})))": name
                for quantile, name in ((0.5, "median"), (0.99, "99th percentile"))
            },
            "s",
        ),
        Panel(
            "Elastic groups by state",
            {"max by (state) (numa_ext_jobs_scaling_groups)": "{{state}}"},
        ),
        Panel(
            "Members of elastic groups by step",
            {"max by (step) (numa_ext_jobs_scaling_members)": "{{step}}"},
        ),
        Panel(
            "Leases of remote GPUs by state",
            {"max by (state) (numa_ext_jobs_leases)": "{{state}}"},
        ),
        Panel("GPU memory that leases hold, MiB", {"max(numa_ext_jobs_lease_memory_mib)": "held"}),
        Panel(
            "Leases that went to another GPU in an hour",
            {"max(numa_ext_jobs_leases_moved_lately)": "moved"},
        ),
        Panel(
            "GPUs that leases keep busy, by host",
            {"max by (host) (numa_ext_jobs_pool_busy_gpus)": "{{host}}"},
        ),
        Panel(
            "GPU memory that leases hold, by host, MiB",
            {"max by (host) (numa_ext_jobs_pool_memory_mib)": "{{host}}"},
        ),
        Panel(
            "GPU memory that leases have in use, by host, MiB",
            {"max by (host) (numa_ext_jobs_pool_used_memory_mib)": "{{host}}"},
        ),
        Panel(
            "Over the links of leases, by host, MB/s",
            {"max by (host) (numa_ext_jobs_pool_link_mbps)": "{{host}}"},
        ),
    ),
    {},
)

DASHBOARDS: Final = {
    "fleet": FLEET,
    "host": HOST,
    "server": SERVER,
    "decisions": DECISIONS,
    "jobs": JOBS,
}


def as_json(name: str) -> str:
    """Return a dashboard as Grafana imports it."""
    dashboard = DASHBOARDS[name]
    variables = [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        *(
            {
                "name": variable,
                "type": "query",
                "datasource": _DATASOURCE,
                "query": query,
                "definition": query,
                "refresh": 2,
                "sort": 1,
            }
            for variable, query in dashboard.variables.items()
        ),
    ]
    made = {
        "uid": f"numa-ext-{name}",
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["nova-numa-ext"],
        "schemaVersion": 36,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "links": [
            {
                "title": "NUMA",
                "type": "dashboards",
                "tags": ["nova-numa-ext"],
                "asDropdown": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": variables},
        "panels": list(_panels(dashboard)),
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    x = y = 0
    for identifier, panel in zip(count(1), dashboard.panels, strict=False):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + _HEIGHT
        yield {
            "id": identifier,
            "title": panel.title,
            "description": _explained(panel),
            "type": panel.kind,
            "datasource": _DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": _HEIGHT},
            "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": _DATASOURCE,
                    "expr": expression,
                    "legendFormat": legend,
                    "instant": panel.kind == "stat",
                }
                for index, (expression, legend) in enumerate(panel.queries.items())
            ],
        }
        x += panel.width


def _explained(panel: Panel) -> str:
    """Return the sentences of all metrics that a panel names."""
    found = (name for expression in panel.queries for name in _METRIC.findall(expression))
    return "\n\n".join(dict.fromkeys(f"{name}: {declared(name).help}" for name in found))


if __name__ == "__main__":
    for each in DASHBOARDS:
        (FOLDER / f"{each}.json").write_text(as_json(each))
