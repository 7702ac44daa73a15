# SPDX-License-Identifier: Apache-2.0
"""An engine as a process of its own that carries leases on, over a Placement behind a port.

``python -m tests.support.lease_engine_process DATABASE_URL PLACEMENT_URL NAME TERM_S [FILE [HURRY_S]]``; where servers
are FILE says, as JSON, without it all are on host c1. With HURRY_S a host is silent, and all is compared, after so
long, and rounds and looks of leases are in the log of :mod:`.rounds_log`, beside FILE.
"""

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from keystoneauth1 import adapter, session, token_endpoint

from nova_numa_ext.job_hint import HintKeys
from nova_numa_ext.orchestrator import lease_steps, service
from nova_numa_ext.orchestrator.conf import EngineOptions
from nova_numa_ext.orchestrator.engine import EngineServices, JobEngine, JobPlanning, QueueDecision
from nova_numa_ext.orchestrator.hints import PlanHints
from nova_numa_ext.orchestrator.store.database import Database
from placement_traits import pool_reader
from placement_traits.claim_store import ClaimStore
from placement_traits.client import PlacementClient
from placement_traits.service_manager import ServiceManager
from tests.support.compute_api import ComputeApi, FakeHosts, FakeTrusts
from tests.support.rounds_log import counted

_ROUND_S = 0.2


class _Hosts(FakeHosts):
    """Where servers are; which fabrics hosts are in is not known, and no flavor asks for a GPU."""

    def __init__(self, file: str) -> None:
        super().__init__(ComputeApi())
        self._file = file

    def host(self, server, _host_id=""):
        return json.loads(Path(self._file).read_text()).get(server) if self._file else "c1"

    def fabrics(self, _host):
        return None


def started(url: str, placement_url: str, name: str, term_s: float, *more: str):
    """Return a process that has been started."""
    module = [sys.executable, "-m", "tests.support.lease_engine_process"]
    return subprocess.Popen(
        [*module, url, placement_url, name, str(term_s), *more],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _main(url: str, placement_url: str, name: str, term_s: str, *more: str) -> int:
    placed, hurry_s = (*more, "", "")[:2]
    logging.basicConfig(level=logging.INFO, format=f"{name} %(levelname)s %(message)s")
    auth = token_endpoint.Token(placement_url, "admin")
    client = PlacementClient(adapter.Adapter(session.Session(auth), service_type="placement"))
    options = EngineOptions(workers=1, watchers=2, watch_interval_s=3600.0)
    if hurry_s:
        lease_steps.LOST_S = float(hurry_s)  # type: ignore[misc]
        options = replace(options, reconcile_interval_s=float(hurry_s))
    engine = JobEngine(
        name,
        Database(url),
        EngineServices(
            FakeTrusts(ComputeApi()),
            ClaimStore(client),
            _Hosts(placed),
            lambda: pool_reader.read(client),
        ),
        JobPlanning(lambda *_found: QueueDecision({}, {}), PlanHints(HintKeys())),
        options,
        lasts_s=float(term_s),
    )
    if hurry_s:
        leases, folder = engine._leases, Path(placed).parent
        for each in ("round", "look"):
            setattr(leases, each, counted(folder, each, name, getattr(leases, each)))
    return service.run(engine, _ROUND_S, ServiceManager.of(os.environ))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
