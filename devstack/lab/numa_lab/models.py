# SPDX-License-Identifier: Apache-2.0
"""What fits the models of elastic groups: the extra ``elastic``, in a folder beside the virtual environment.

Nova's environment has none of it. The engines' workers, ``openstack numa group scaling replay`` in tests, and the
benchmark find it by PYTHONPATH.
"""

import configparser
import os
import shutil
from pathlib import Path

from .process import run_logged
from .settings import Settings
from .terminal import Progress

EXTRA = "elastic"


def ensure(settings: Settings, progress: Progress) -> Path:
    """Install it where it is not there; returns the folder.

    :raises LabError: pip failed; nothing of it is left then
    """
    folder = settings.lab / EXTRA
    if folder.exists():
        return folder
    draft, log = folder.with_name(f"{EXTRA}.new"), settings.log / "pip.log"
    shutil.rmtree(draft, ignore_errors=True)
    with progress.step("installing what fits models of elastic groups with pip", log):
        environment = os.environ | {"PIP_CACHE_DIR": f"{settings.cache}/pip"}
        required = requirements(settings.checkout / "setup.cfg")
        words = (str(settings.python), "-m", "pip", "--disable-pip-version-check", "install")
        run_logged("pip", [*words, "--target", draft, *required], log, environment=environment)
        draft.rename(folder)
    return folder


def requirements(file: Path) -> list[str]:
    """Return what the extra of a ``setup.cfg`` requires, without its comments."""
    extras = configparser.ConfigParser(interpolation=None)
    extras.read_string(file.read_text())
    lines = extras["extras"][EXTRA].splitlines()
    return [text for line in lines if (text := line.partition("#")[0].strip())]
