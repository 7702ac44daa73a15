# SPDX-License-Identifier: Apache-2.0
"""A host's part of leases as a process of its own: ``python -m tests.support.lease_host_process HOST FOLDER URL FILE``.

URL is that of the job service, FILE says which servers run on which hosts, as JSON. Its turns are in the log of
:mod:`.rounds_log`, beside FILE.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import requests

from host_agent.remote_gpu import turns
from host_agent.remote_gpu.answer import RunningServers
from host_agent.remote_gpu.gpu_host import GpuHost
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from host_agent.remote_gpu.turns import LeaseTurns
from placement_traits.errors import ServiceUnavailableError
from placement_traits.pool_reporter import gpu_uuids
from tests.support.lease_service import credential
from tests.support.pools import pool
from tests.support.rounds_log import counted

PAUSE_S = 0.1
REPORT_S = 1.0


def started(host, folder, url, file):
    """Return a process that has been started."""
    module = [sys.executable, "-m", "tests.support.lease_host_process"]
    return subprocess.Popen(
        [*module, host, str(folder), url, str(file)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _main(host: str, folder: str, url: str, file: str) -> None:
    turns._REPORT_S = REPORT_S  # type: ignore[misc]
    own = Path(folder) / host
    command = LeaseCommand("fake", Path(folder), "127.0.0.1", gpu_uuids(pool(host)))
    session = requests.Session()

    def request(method, path, json=None, headers=None):
        sent = credential(host) | (headers or {})
        try:
            return session.request(method, url + path, json=json, headers=sent, timeout=10)
        except requests.RequestException as error:
            raise ServiceUnavailableError(str(error)) from error

    def servers():
        return RunningServers(frozenset(json.loads(Path(file).read_text()).get(host, ())))

    turn = LeaseTurns(
        host,
        request,
        GpuHost(LeaseProcesses(own / "run", command), own / "epochs.json"),
        servers,
        own / "answer.json",
    ).turn
    turn = counted(Path(file).parent, "turn", host, turn)
    while True:
        turn()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    _main(*sys.argv[1:])
