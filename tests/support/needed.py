# SPDX-License-Identifier: Apache-2.0
"""What a test cannot do without: it is skipped with a sentence where that is missing."""

import shutil
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).parents[2]


def need(program: str) -> None:
    """Skip where a program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def need_history() -> None:
    """Skip in a tree without git's folder, such as that of a source archive."""
    if not (_CHECKOUT / ".git").exists():
        pytest.skip(f"{_CHECKOUT} is no checkout of git: nothing to clone")
