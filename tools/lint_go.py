# SPDX-License-Identifier: Apache-2.0
"""gofmt and go vet over the link of remote GPUs; where Debian's Go is not installed, that is said and nothing done."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "devstack/lab"))

from numa_lab import link_build  # noqa: E402
from numa_lab.settings import Settings  # noqa: E402


def main() -> int:
    """Return 1 where a file is not as gofmt writes it, or vet finds something."""
    if not link_build.GO.exists():
        sys.stdout.write(f"{link_build.GO} is not installed: the link is not looked at\n")
        return 0
    settings = Settings.from_environment(ROOT, os.environ)
    folder = link_build.source(settings)
    gofmt = link_build.GO.with_name("gofmt")
    listed = subprocess.run(
        [gofmt, "-l", "."], cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    for file in listed.stdout.split():
        sys.stdout.write(f"{file}: gofmt would write it otherwise\n")
    vet = subprocess.run(
        [link_build.GO, "vet", "./..."],
        cwd=folder,
        env=link_build.environment(settings),
        check=False,
    )
    return 1 if listed.stdout or vet.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
