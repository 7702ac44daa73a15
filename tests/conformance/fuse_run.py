# SPDX-License-Identifier: Apache-2.0
"""Run the conformance cases on the FUSE tree, below ``unshare``.

Arguments are those of :mod:`tests.conformance.run`; ``--root`` is an empty directory to mount at.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.conformance import run

# Of its own: mounts, so that nothing is left behind; processes, so that the server looks through few of them.
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_PATIENCE_S = 30.0


def main() -> int:
    """Mount, run, unmount."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--profile", required=True)
    given, _ = parser.parse_known_args()
    options = ("--profile", given.profile, "--domains", "0,1", "--cpus", "4", "--limbo", "0.2")
    module = "host_agent.hostmodel.resctrl_fuse"
    with subprocess.Popen([sys.executable, "-m", module, str(given.root), *options]) as server:
        deadline = time.monotonic() + _PATIENCE_S
        while not (given.root / "info").exists():
            if server.poll() is not None or time.monotonic() > deadline:
                print("the FUSE server did not come up", file=sys.stderr)  # noqa: T201
                server.kill()
                return 2
            time.sleep(0.02)
        try:
            return run.main()
        finally:
            subprocess.run(["umount", str(given.root)], check=True)


if __name__ == "__main__":
    sys.exit(main())
