# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus that scrapes host agents is asked about a group whose members report their requests.

Members are latency-critical servers of the group's project that tell the agents of their hosts how long their requests
take, through the port of :doc:`latency-objectives`; the agents count them in ``numa_ext_server_request_seconds``. Reads
are all their requests: a guest does not say which of them write. A member is disturbed while best-effort servers beside
it are throttled for its sake: what it did then says nothing about what it can do alone. Its place is as good as the
part of its memory that is where the agent wants it: the member with most of it elsewhere leaves first, behind those
whose objective is violated while nothing on their host keeps it.

A rate over a period counts silence as idleness, so a member is known only where its counts are there at the end of the
period and at four of five tenths of it; else it is of no such period, and an enforced group stays as it is. Counts are
there while they are on the agent's page, and were scraped within the last fifth of a period. So the agents are scraped
at least five times a period. The page has them 25 s longer than the member speaks: so much of a period may look idle,
8 % of five minutes, and all of a period that is no longer.
"""

import json
from dataclasses import replace
from typing import Final

from nova_numa_ext.policy.elastic.monitored import MonitoredQueries

_REQUESTS: Final = "numa_ext_server_request_seconds"
_UNSATISFIABLE: Final = "numa_ext_server_slo_unsatisfiable"
_WITHHOLDS: Final = "numa_ext_server_withholds_seconds"
_MISPLACED: Final = "numa_ext_server_misplaced_mb"
_MEMORY: Final = "numa_ext_server_memory_mb"
_PART: Final = 0.8  # of a period's tenths


def agent_queries(project: str, names: str, **others: str) -> MonitoredQueries:
    """Return the queries of a group.

    :param project: uuid of the group's project
    :param names: regular expression of Prometheus that matches the names of its servers, and of no other in the project
    :param others: of :class:`.monitored.MonitoredQueries`, in place of ours
    """
    named = f"name=~{json.dumps(names, ensure_ascii=False)}"
    members = f"project={json.dumps(project)},{named}"
    by_time = f"sum by (server, le) ({_rate(f'{_REQUESTS}_bucket', members)})"
    counts = f"{_REQUESTS}_count{{{members}}}"
    # What was scraped before Prometheus was away is there for five minutes; what is not on the page any more is not.
    there = f"sum by (server) ({counts} and last_over_time({counts}[$fifth]))"
    tenths = "scalar(count_over_time(vector(1)[$window:$tenth]))"
    mostly = f"count_over_time(({there})[$window:$tenth]) >= {_PART} * {tenths}"
    made = MonitoredQueries(
        reads=f"sum by (server) ({_rate(f'{_REQUESTS}_count', members)}) and {there} and ({mostly})",
        latency_ms=f"1000 * histogram_quantile(0.99, {by_time})",
        # These have no project.
        placement=f"{_placed(named)} and on (server) {counts}",
        cannot_fix=f"max by (server) ({_UNSATISFIABLE}{{{named}}}) and on (server) {counts}",
        disturbed=f"sum by (server) ({_rate(f'{_WITHHOLDS}_total', named)}) and on (server) {counts}",
    )
    return replace(made, **others)


def _placed(matchers: str) -> str:
    misplaced = f"sum by (server) ({_MISPLACED}{{{matchers}}})"
    return f"clamp_min(1 - {misplaced} / sum by (server) ({_MEMORY}{{{matchers}}}), 0)"


def _rate(metric: str, matchers: str) -> str:
    return f"rate({metric}{{{matchers}}}[$window])"
