# SPDX-License-Identifier: Apache-2.0
"""Which rights the privileged operations need, and whether this process has them."""

from typing import Final

# Linux capability numbers (include/uapi/linux/capability.h): what the helper keeps, and what makes it superfluous.
CAP_DAC_OVERRIDE: Final = 1
CAP_SYS_PTRACE: Final = 19
CAP_SYS_NICE: Final = 23
CAP_PERFMON: Final = 38
NEEDED: Final = (CAP_DAC_OVERRIDE, CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_PERFMON)


def has_rights(status: str) -> bool:
    """Tell from the text of ``/proc/self/status`` whether this process may do all of it itself.

    Capabilities alone do not: resctrl lets only root (effective uid 0) move other users' threads into a group
    (``rdtgroup_task_write_permission`` in the kernel).
    """
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    effective_uid = int(fields["Uid"].split()[1])
    effective = int(fields["CapEff"], 16)
    return effective_uid == 0 and all(effective >> number & 1 for number in NEEDED)
