# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.support.overlapping_ways LAB HOST CTL``: reads a host back, having forced an overlap on it.

As soon as all its servers are in groups, the agent is paused (CTL: ``numa-host-agent-ctl`` with its configuration), and
the second latency-critical server's group gets the ways of the first in the first one's L3 domain. Nothing else is
changed: each group has as many ways where its server runs. When the host has been read, the agent may mend it.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

READ_BACK = Path(__file__).parents[2] / "devstack/lab/readback.py"


def shell(lab: str, host: str, *words: str) -> str:
    """Run a command on a compute host of the lab."""
    command = [lab, "shell", host, *words]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout


def forced(facts: dict[str, Any]) -> tuple[str, str] | None:
    """Group and schemata line by which the second latency-critical server overlaps the first; None: too early."""
    groups = [domain["groups"] for domain in facts["domains"]]
    if any(len(each) != 1 or each == [""] for each in groups):
        return None
    lcs = sorted(each[0] for each in groups if each[0].startswith("numa_ext-lc"))
    if len(lcs) != 2:
        return None
    (first,) = [domain for domain in facts["domains"] if domain["groups"] == lcs[:1]]
    cpu = int(first["vcpus"][0]["cpus"].split(",")[0].split("-")[0])
    (l3,) = [
        number
        for number, text in facts["l3_cpus"].items()
        if any(
            int(part.split("-")[0]) <= cpu <= int(part.split("-")[-1]) for part in text.split(",")
        )
    ]
    return lcs[1], f"L3:{l3}={facts['resctrl'][lcs[0]]['schemata']['L3'][l3]}"


def main(lab: str, host: str, ctl: str) -> None:
    """Force, read back, print, undo."""
    read_back = ("/usr/bin/python3", "-I", "-S", str(READ_BACK))
    shown = shell(lab, host, *read_back)
    found = forced(json.loads(shown))
    if found is not None:
        group, line = found
        try:
            shell(lab, host, "sh", "-c", f"{ctl} pause")
            shell(lab, host, "sh", "-c", f"echo '{line}' > '/sys/fs/resctrl/{group}/schemata'")
            shown = shell(lab, host, *read_back)
        finally:
            shell(lab, host, "sh", "-c", f"{ctl} resume")
    sys.stdout.write(shown)


if __name__ == "__main__":
    main(*sys.argv[1:])
