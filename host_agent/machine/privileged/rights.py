# SPDX-License-Identifier: Apache-2.0
"""Which rights the privileged operations need, and whether a process has them."""

from typing import Final

# Linux capability numbers (include/uapi/linux/capability.h). CAP_PERFMON is of use, too: hardware counters.
CAP_SYS_PTRACE: Final = 19
CAP_SYS_NICE: Final = 23
NEEDED: Final = {CAP_SYS_NICE: "CAP_SYS_NICE", CAP_SYS_PTRACE: "CAP_SYS_PTRACE"}


def missing(status: str) -> tuple[str, ...]:
    """Return what a process lacks, from the text of its ``/proc/PID/status``.

    Capabilities alone do not suffice: resctrl lets only root (effective uid 0) move other users' threads into a group
    (``rdtgroup_task_write_permission`` in the kernel), and its files are root's.
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    effective = int(fields["CapEff"], 16)
    lacking = tuple(name for number, name in NEEDED.items() if not effective >> number & 1)
    return lacking if int(fields["Uid"].split()[1]) == 0 else ("user id 0", *lacking)


def has_rights(status: str) -> bool:
    """Tell from the text of ``/proc/PID/status`` whether a process has all that is needed."""
    return not missing(status)
