# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus that scrapes host agents is asked about a group whose members report their requests.

Members are latency-critical servers of the group's project that tell the agents of their hosts how long their requests
take, through the port of :doc:`latency-objectives`; the agents count them in ``numa_ext_server_request_seconds``. Reads
are all their requests: a guest does not say which of them write. A member is disturbed while best-effort servers beside
it are throttled for its sake: what it did then says nothing about what it can do alone. One that says nothing for a
minute is not known, and an enforced group stays as it is.
"""

import json
from dataclasses import replace
from typing import Final

from nova_numa_ext.policy.elastic.monitored import MonitoredQueries

_REQUESTS: Final = "numa_ext_server_request_seconds"
_WITHHOLDS: Final = "numa_ext_server_withholds_seconds"


def agent_queries(project: str, names: str, **others: str) -> MonitoredQueries:
    """Return the queries of a group.

    :param project: uuid of the group's project
    :param names: regular expression of Prometheus that matches the names of its servers, and of no other in the project
    :param others: of :class:`.monitored.MonitoredQueries`, in place of ours
    """
    named = f"name=~{json.dumps(names, ensure_ascii=False)}"
    members = f"project={json.dumps(project)},{named}"
    by_time = f"sum by (server, le) ({_rate(f'{_REQUESTS}_bucket', members)})"
    made = MonitoredQueries(
        reads=f"sum by (server) ({_rate(f'{_REQUESTS}_count', members)})",
        latency_ms=f"1000 * histogram_quantile(0.99, {by_time})",
        disturbed=f"sum by (server) ({_rate(f'{_WITHHOLDS}_total', named)})",
    )
    return replace(made, **others)


def _rate(metric: str, matchers: str) -> str:
    return f"rate({metric}{{{matchers}}}[$window])"
