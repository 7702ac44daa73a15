# SPDX-License-Identifier: Apache-2.0
"""Every panel of the dashboards has series of the lab's own components, in a real Prometheus."""

from pathlib import Path

import pytest

from tests.integration.cloud import LabCloud, LabHost
from tests.integration.jobs import LabJobs, part
from tests.support.prometheus_server import (
    BOARDS,
    LACKS,
    VARIABLES,
    prometheus_server,
    shown_page,
    unexplained,
)

LC = {
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "numa_ext:tier": "LC",
    "numa_ext:slo_p99_us": "1000",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "4",
}
YOUNG = {
    "searches wait for 50 readings of counters that emulated hosts have not": {
        "numa_ext_server_dwp"
    }
}
INTERVAL_S = 10  # a scrape of an emulated host takes seconds


@pytest.mark.long
def test_every_panel_shows_the_lab(
    cloud: LabCloud, h1: LabHost, jobs: LabJobs, tmp_path: Path
) -> None:
    """While two servers run, one was refused and a job runs; of each panel of a server one of the two has something."""
    ports = cloud.settings.ports
    lc = cloud.boot(cloud.flavor(LC, vcpus=2), "--host", "h1")
    be = cloud.flavor({"numa_ext:tier": "BE"})
    throttled = cloud.boot(be, "--host", "h1")
    h1.all_enforced([lc.id, throttled.id])
    jobs.submit(part("one", be))
    with (
        shown_page(
            lambda path: h1.run(f"curl -s http://127.0.0.1:{ports.agent_metrics}{path}").encode()
        ) as agent,
        prometheus_server(
            tmp_path,
            {
                "numa-host-agent": [agent],
                "numa-ext-scheduler": [f"127.0.0.1:{ports.scheduler_metrics}"],
                "numa-ext-engine": [f"127.0.0.1:{ports.engine_metrics(n)}" for n in (0, 1)],
            },
            INTERVAL_S,
            patience_s=300,
        ) as prometheus,
    ):
        refused = cloud.settled(cloud.create(cloud.flavor(LC, vcpus=64), "--host", "h1"))
        assert refused.status == "ERROR"
        assert lc.id in prometheus.values(*VARIABLES["$server"])
        assert agent in prometheus.values(*VARIABLES["$instance"])
        # What a server is withheld only a best-effort one has, its own ways only a latency-critical one.
        empty = set.intersection(
            *(
                {
                    (f"{board}: {title}", expression)
                    for board in BOARDS
                    for title, expression in prometheus.empty_panels(
                        board, "3m", instance=agent, server=server.id
                    )
                }
                for server in (lc, throttled)
            )
        )
    left = sorted(unexplained(empty, {**LACKS, **YOUNG}))
    assert not left, "\n".join(f"{panel}: {expression}" for panel, expression in left)
