# SPDX-License-Identifier: Apache-2.0
"""What fits models of elastic groups is installed once and whole, or not at all, by a pip of a few lines of shell."""

from pathlib import Path

import pytest
from numa_lab import models
from numa_lab.errors import LabError
from numa_lab.settings import Settings
from numa_lab.terminal import Progress

PIP = """#!/bin/sh
echo "$*" >> {calls}
while [ $# -gt 0 ]; do [ "$1" = --target ] && mkdir -p "$2" && touch "$2/sklearn"; shift; done
exit {status}
"""


def pip(settings: Settings, status: int) -> Path:
    """A Python whose pip makes a library and ends with a status; returns the file of its calls."""
    calls = settings.lab / "calls"
    settings.python.parent.mkdir(parents=True, exist_ok=True)
    settings.python.write_text(PIP.format(calls=calls, status=status))
    settings.python.chmod(0o755)
    return calls


def test_what_the_extra_requires_is_installed_once(settings: Settings) -> None:
    calls = pip(settings, 0)
    folder = models.ensure(settings, Progress())
    assert (folder, [each.name for each in folder.iterdir()]) == (
        settings.lab / "elastic",
        ["sklearn"],
    )
    assert models.ensure(settings, Progress()) == folder
    (call,) = calls.read_text().splitlines()
    assert call.startswith("-m pip --disable-pip-version-check install --target ")
    assert call.split()[-2].startswith("scikit-learn>=")
    assert call.split()[-1].startswith("statsmodels>=")


def test_half_an_installation_is_none(settings: Settings) -> None:
    pip(settings, 1)
    with pytest.raises(LabError):
        models.ensure(settings, Progress())
    assert not (settings.lab / "elastic").exists()
    pip(settings, 0)
    assert models.ensure(settings, Progress()).exists()
