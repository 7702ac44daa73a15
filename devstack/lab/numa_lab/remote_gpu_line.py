# SPDX-License-Identifier: Apache-2.0
"""The line of the show about remote GPUs: a lease is used on this machine (``remote_gpu.py``) where PoCL is built."""

import json
import os
import subprocess

from . import link_build, pocl_build
from .settings import Settings

_ENDS_S = 300.0


def line(settings: Settings) -> str:
    """What became of a lease that was made, used and ended for this."""
    pocl, link = pocl_build.cached(settings), link_build.cached(settings)
    missing = [name for name, found in (("pocl", pocl), ("link", link)) if found is None]
    if pocl is None or link is None:
        builds = " and ".join(f"{settings.command} {each}" for each in missing)
        return f"Remote GPU: not used, for it is not built: {builds} (minutes, once), then {settings.command} show."
    log = settings.log / "remote-gpu.log"
    program = settings.source / "remote_gpu.py"
    files = (link / link_build.PROGRAM, pocl.server, pocl.layer, pocl.vendors, pocl.bench)
    try:
        ran = subprocess.run(
            [settings.python, program, *files],
            env=os.environ | {"PYTHONPATH": str(settings.checkout)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ENDS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"Remote GPU: no result after {_ENDS_S:.0f} s."
    log.write_text(ran.stderr)
    if ran.returncode != 0:
        why = (ran.stderr.strip().splitlines() or [f"status {ran.returncode}"])[-1]
        return f"Remote GPU: did not work: {why} (log: {log})"
    found = json.loads(ran.stdout)
    return (
        f"Remote GPU: a program of OpenCL has computed {found['rounds']} rounds by a lease of this machine, all "
        "numbers right: by\n      guest, doorman, TLS 1.3, gateway and a pocld in namespaces of its own. The device is "
        f"the processor, a Unix\n      socket stands for vsock. Attached {found['attached_s']} s after its start."
    )
