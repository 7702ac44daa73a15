# SPDX-License-Identifier: Apache-2.0
"""PoCL for tests: what is in the cache; only long tests build it."""

from pathlib import Path

import pytest
from numa_lab import pocl_build
from numa_lab.terminal import Progress

from tests.support.built_link import settings

_DEVICES = Path("/etc/OpenCL/vendors")


def cached_pocl() -> pocl_build.Pocl:
    """Return what was built; skip where that, or a device, is not there."""
    found = pocl_build.cached(settings())
    if found is None:
        pytest.skip("PoCL is not built: devstack/lab/lab pocl")
    if not list(_DEVICES.glob("*.icd")):
        pytest.skip(f"no OpenCL device is here: apt install {pocl_build.DEVICE_PACKAGES[0]}")
    return found


def built_pocl() -> pocl_build.Pocl:
    """Return what was built, built first if it is not there: for long tests."""
    return pocl_build.build(settings(), Progress())
