# SPDX-License-Identifier: Apache-2.0
"""Run the conformance cases on the FUSE tree, below ``unshare``.

Arguments are those of :mod:`tests.conformance.run`; ``--root`` is an empty directory to mount at, ``--hardware`` more
arguments for the server (:mod:`emulation.kernel.fuse`).
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.conformance import run

# Of its own: mounts, so that nothing is left behind; processes, so that the server looks through few of them.
NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_PATIENCE_S = 30.0


def _show_libpqos_a_machine(root: Path) -> None:
    """Make place for a mount at libpqos's fixed path, and let the CPU look as if it could do RDT."""
    # sysfs takes no new folders; nothing else below /sys/fs is needed here.
    folder = root.parent
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    root.mkdir()
    flags = " rdt_a cat_l3 mba cqm cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local"
    shown = {
        "cpuinfo": re.sub(
            r"^flags.*$", lambda f: f[0] + flags, Path("/proc/cpuinfo").read_text(), flags=re.M
        ),
        "filesystems": Path("/proc/filesystems").read_text() + "nodev\tresctrl\n",
    }
    for name, text in shown.items():
        (folder / name).write_text(text)
        subprocess.run(["mount", "--bind", folder / name, f"/proc/{name}"], check=True)


def main() -> int:
    """Mount, run, unmount."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--profile", required=True)
    parser.add_argument("--backend", default="resctrl")
    parser.add_argument("--hardware", default="")
    given, rest = parser.parse_known_args()
    tree = ["--root", str(given.root), "--profile", given.profile, "--backend", given.backend]
    domains = "0,1"
    if given.backend == "pqos":
        domains = "0"  # libpqos compares them with the machine's own caches
        _show_libpqos_a_machine(given.root)
    options = ["--profile", given.profile, "--domains", domains, "--cpus", "4", "--limbo", "0.2"]
    options += given.hardware.split()
    module = "emulation.kernel.fuse"
    with subprocess.Popen([sys.executable, "-m", module, str(given.root), *options]) as server:
        deadline = time.monotonic() + _PATIENCE_S
        while not (given.root / "info").exists():
            if server.poll() is not None or time.monotonic() > deadline:
                print("the FUSE server did not come up", file=sys.stderr)  # noqa: T201
                server.kill()
                return 2
            time.sleep(0.02)
        try:
            return run.main([*tree, *rest])
        finally:
            subprocess.run(["umount", str(given.root)], check=True)


if __name__ == "__main__":
    sys.exit(main())
