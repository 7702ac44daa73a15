# SPDX-License-Identifier: Apache-2.0
"""How much memory the lab takes: proportional set size, so that shared pages count once."""

from collections.abc import Iterable
from pathlib import Path

from .process import session_members


def proportional_mb(leaders: Iterable[int], others: Iterable[int] = ()) -> int:
    """Proportional memory of the leaders' whole sessions and of other processes, in MiB."""
    pids = {pid for leader in leaders for pid in session_members(leader)} | set(others)
    return sum(_proportional_kb(pid) for pid in pids) // 1024


def _proportional_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
