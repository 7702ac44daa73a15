# SPDX-License-Identifier: Apache-2.0
"""An engine as a process of its own, over a fake of nova that another process serves.

``python -m tests.support.engine_process DATABASE_URL NOVA_URL NAME TERM_S``
"""

import logging
import os
import subprocess
import sys

from nova_numa_ext.orchestrator import service
from placement_traits.service_manager import ServiceManager
from tests.support.compute_over_http import ComputeByHttp
from tests.support.jobs_world import World

_ROUND_S = 0.1


def started(url: str, nova_url: str, name: str, term_s: float, **environment: str):
    """Return a process that has been started."""
    module = [sys.executable, "-m", "tests.support.engine_process"]
    return subprocess.Popen(
        [*module, url, nova_url, name, str(term_s)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )


def _main(url: str, nova_url: str, name: str, term_s: str) -> int:
    logging.basicConfig(level=logging.INFO, format=f"{name} %(levelname)s %(message)s")
    api = ComputeByHttp(nova_url, name)
    more = {"workers": 1, "watchers": 1, "watch_interval_s": 3600.0}
    world = World(None, url=url, api=api, name=name, lasts_s=float(term_s), **more)
    return service.run(world.engine, _ROUND_S, ServiceManager.of(os.environ))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
