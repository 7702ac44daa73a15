# SPDX-License-Identifier: Apache-2.0
"""An engine as a process of its own, over a fake of nova that another process serves.

``python -m tests.support.engine_process DATABASE_URL NOVA_URL NAME TERM_S [FOLDER]``, where FOLDER has the traces of
elastic groups, and below ``hooks`` their hooks
"""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from nova_numa_ext.orchestrator import engine, service
from placement_traits.service_manager import ServiceManager
from tests.support.compute_over_http import ComputeByHttp
from tests.support.elastic import SameCapacity
from tests.support.jobs_world import World

_ROUND_S = 0.1


def started(
    url: str, nova_url: str, name: str, term_s: float, folder: str = "", **environment: str
):
    """Return a process that has been started."""
    module = [sys.executable, "-m", "tests.support.engine_process"]
    return subprocess.Popen(
        [*module, url, nova_url, name, str(term_s), folder],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )


def _main(url: str, nova_url: str, name: str, term_s: str, folder: str) -> int:
    logging.basicConfig(level=logging.INFO, format=f"{name} %(levelname)s %(message)s")
    api = ComputeByHttp(nova_url, name)
    more: dict[str, Any] = {"workers": 1, "watchers": 1, "watch_interval_s": 3600.0}
    if folder:
        more |= {"scaling_traces": Path(folder), "scaling_hooks": Path(folder) / "hooks"}
    # What fits models stands beside no nova, so it is not here.
    models = mock.patch.object(engine, "ModelsBeside", lambda _season, **_more: SameCapacity())
    with models:
        world = World(None, url=url, api=api, name=name, lasts_s=float(term_s), **more)
        return service.run(world.engine, _ROUND_S, ServiceManager.of(os.environ))


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
