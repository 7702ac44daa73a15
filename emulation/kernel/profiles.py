# SPDX-License-Identifier: Apache-2.0
"""How kernels differ in resctrl, as data: the model behaves by it and the conformance suite knows it.

Since which version, by the kernel's documentation and history; that 6.1 lacks it and 6.12 has it was seen on running
kernels 6.1.192 and 6.12.117, but for the last one, which was only read:

- 6.5 monitoring groups can be renamed into another group (not modelled)
- 6.7 ``tasks`` takes comma-separated ids and names the bad one
- 6.7 ``info/L3/sparse_masks`` shows whether masks may have holes
- 6.7 mount option ``debug``: ``ctrl_hw_id``, ``mon_hw_id`` (not modelled)
- 6.9 a group takes its CLOSID before its RMID
- 6.3 ``mbm_total_bytes_config``, ``mbm_local_bytes_config`` (AMD, not modelled)
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """One kernel version's behaviour.

    :ivar task_lists: ``tasks`` takes ``1,2,3``; a refused entry is named in the status
    :ivar mkdir_clears_status: creating a group clears ``last_cmd_status`` (else it appends)
    :ivar cpus_clears_status: writing ``cpus`` clears it (else it appends)
    :ivar sparse_masks_file: ``info/L3/sparse_masks`` exists
    :ivar closid_before_rmid: creating a group takes the CLOSID first, so that running out of both reports "CLOSIDs"
    """

    version: str
    task_lists: bool
    mkdir_clears_status: bool
    cpus_clears_status: bool
    sparse_masks_file: bool
    closid_before_rmid: bool


LINUX_6_1: Final = KernelProfile(
    version="6.1",
    task_lists=False,
    mkdir_clears_status=False,
    cpus_clears_status=False,
    sparse_masks_file=False,
    closid_before_rmid=False,
)
LINUX_6_12: Final = KernelProfile(
    version="6.12",
    task_lists=True,
    mkdir_clears_status=False,
    cpus_clears_status=False,
    sparse_masks_file=True,
    closid_before_rmid=True,
)
PROFILES: Final = {profile.version: profile for profile in (LINUX_6_1, LINUX_6_12)}
