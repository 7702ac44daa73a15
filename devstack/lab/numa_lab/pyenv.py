# SPDX-License-Identifier: Apache-2.0
"""The virtual environment: the cloud's services and this checkout, editable, with its test tools.

It is filled again only when what decides its contents has changed; pip then does the difference. Wheels that pip
builds or downloads are kept in the cache folder, so that a second environment is quick.
"""

import hashlib
import os
import subprocess
from pathlib import Path

from .errors import LabError
from .process import run_logged
from .settings import Settings
from .terminal import Progress

EXTRAS = "agent,bench,client,docs,jobs,sim,test"
_INTERPRETER = Path("/usr/bin/python3")
_STAMP = ".lab-contents"


def ensure(settings: Settings, progress: Progress) -> None:
    """Make or update the environment; a foreign one (``NUMA_EXT_VENV``) is only looked at.

    :raises LabError: the interpreter is too old, pip failed, or a foreign environment is not there.
    """
    if not settings.owns_venv:
        if not settings.python.exists():
            raise LabError(f"NUMA_EXT_VENV names {settings.venv}, where there is no bin/python")
        return
    expected = fingerprint(settings)
    stamp = settings.venv / _STAMP
    usable = _usable(settings.python)
    if usable and stamp.exists() and stamp.read_text() == expected:
        return
    log = settings.log / "pip.log"
    if not usable:
        with progress.step("creating the virtual environment", log):
            _require_version()
            run_logged("venv", [_INTERPRETER, "-m", "venv", "--clear", settings.venv], log)
            _pip(settings, log, "install", "--upgrade", "pip", "setuptools", "wheel")
    with progress.step("installing the cloud and this checkout with pip", log):
        stamp.unlink(missing_ok=True)
        try:
            _pip(settings, log, "install", *_contents(settings), *_known_versions(settings))
        except LabError:
            # One of them may have been withdrawn since: the bounds of the requirements hold, too.
            progress.note("not all known versions can be had: taking the newest ones")
            _pip(settings, log, "install", *_contents(settings))
    stamp.write_text(expected)


def fingerprint(settings: Settings) -> str:
    """A hash of all that decides what the environment holds, its place included."""
    digest = hashlib.sha256(f"{settings.venv} {settings.checkout} {EXTRAS}\n".encode())
    for path in (
        settings.source / "requirements.txt",
        settings.source / "constraints.txt",
        settings.checkout / "requirements.txt",
        settings.checkout / "setup.cfg",
        settings.checkout / "pyproject.toml",
        settings.checkout / "emulation/pyproject.toml",
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _contents(settings: Settings) -> list[str]:
    requirements = f"{settings.source}/requirements.txt"
    checkout = ("--editable", f"{settings.checkout}[{EXTRAS}]")
    return [
        "--requirement",
        requirements,
        *checkout,
        "--editable",
        f"{settings.checkout}/emulation",
    ]


def _known_versions(settings: Settings) -> list[str]:
    return ["--constraint", f"{settings.source}/constraints.txt"]


def _pip(settings: Settings, log: Path, *arguments: str) -> None:
    environment = os.environ | {"PIP_CACHE_DIR": f"{settings.cache}/pip"}
    argv = [str(settings.python), "-m", "pip", "--disable-pip-version-check", *arguments]
    run_logged("pip", argv, log, environment=environment)


def _usable(python: Path) -> bool:
    """Whether the environment's interpreter runs: the folder may have been moved or half made."""
    if not python.exists():
        return False
    check = subprocess.run([python, "-c", "import pip"], capture_output=True, check=False)
    return check.returncode == 0


def _require_version() -> None:
    asked = [str(_INTERPRETER), "-c", "import sys; print(*sys.version_info[:2])"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    major, minor = map(int, answer.split())
    if (major, minor) < (3, 11):
        raise LabError(f"Python 3.11 or newer is required, {_INTERPRETER} is {major}.{minor}")
