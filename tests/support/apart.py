# SPDX-License-Identifier: Apache-2.0
"""Leases that are kept apart, where this machine lets them be."""

from pathlib import Path

import pytest

from host_agent.remote_gpu import isolation
from host_agent.remote_gpu.groups import LeaseGroups, own_group
from placement_traits.errors import CapabilityMissingError


def lease_groups(folder: Path) -> LeaseGroups:
    """Control groups of leases; skips the test, with the product's own reason, where there cannot be any."""
    try:
        isolation.check()
        return LeaseGroups(folder, own_group())
    except CapabilityMissingError as error:
        pytest.skip(str(error))


def groups_of(folder: Path) -> list[Path]:
    """The control groups that the leases of a folder have."""
    leases = {each.stem for each in folder.glob("*.lock")} | {
        each.stem for each in folder.glob("*.group")
    }
    return sorted(
        each for lease in leases for each in own_group().glob(f"lease-{lease}-{'?' * 16}")
    )


def processes_in(folder: Path) -> list[int]:
    """The processes in the control groups of the leases of a folder."""
    found: list[int] = []
    for each in groups_of(folder):
        found += map(int, (each / "cgroup.procs").read_text().split())
    return found
