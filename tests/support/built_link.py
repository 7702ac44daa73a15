# SPDX-License-Identifier: Apache-2.0
"""The link of remote GPUs for tests: what is in the cache; only long tests build it."""

import os
from pathlib import Path

import pytest
from numa_lab import link_build
from numa_lab.settings import Settings
from numa_lab.terminal import Progress

_CHECKOUT = Path(__file__).parents[2]


def settings() -> Settings:
    """Of the lab of this checkout."""
    return Settings.from_environment(_CHECKOUT, os.environ)


def cached_link() -> Path:
    """Return the folder of program and tests; skip where they are not built."""
    found = link_build.cached(settings())
    if found is None:
        pytest.skip("the link is not built: make link")
    return found


def built_link() -> Path:
    """Return the folder of program and tests, which are built if they are not there: for long tests."""
    return link_build.build(settings(), Progress())
