# SPDX-License-Identifier: Apache-2.0
"""Debian packages: installs only what is missing, and lets nothing start by itself.

Servers that a package would start (MariaDB, RabbitMQ, libvirtd) would listen where the lab does not want them;
``/usr/sbin/policy-rc.d`` is Debian's way to say no, and is ours only while apt runs.
"""

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from .errors import LabError
from .process import run_logged
from .settings import Settings
from .terminal import Progress

BUILD_PACKAGES = ("gcc", "libvirt-dev", "pkg-config", "python3-dev", "python3-venv")
CONTROL_PLANE_PACKAGES = ("iproute2", "mariadb-server", "rabbitmq-server", "util-linux")
LOCAL_COMPUTE_PACKAGES = (
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-system",
    "qemu-system-x86",
    "qemu-utils",
)
# Functional tests serve a model of resctrl by FUSE; the agent's second RDT backend is libpqos; alert rules are run by
# promtool, which comes with the server; jobs are kept in MariaDB; parts of emulated hosts run without a host.
TEST_PACKAGES = (
    "busybox-static",
    "erofs-utils",
    "fuse3",
    "intel-cmt-cat",
    "libfuse3-3",
    "mariadb-server",
    "prometheus",
)

_POLICY = Path("/usr/sbin/policy-rc.d")
_LISTS = Path("/var/lib/apt/lists")


def missing(names: Iterable[str]) -> list[str]:
    """Those of the packages that are not installed."""
    required = sorted(set(names))
    answer = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *required],
        capture_output=True,
        text=True,
        check=False,  # it ends with 1 whenever one of them is unknown
    )
    installed = {
        line.split()[0] for line in answer.stdout.splitlines() if line.endswith(" installed")
    }
    return [name for name in required if name not in installed]


def ensure(settings: Settings, progress: Progress, names: Iterable[str]) -> None:
    """Install the packages that are missing.

    :raises LabError: apt could not install them.
    """
    absent = missing(names)
    if not absent:
        return
    log = settings.log / "apt.log"
    what = f"installing {len(absent)} Debian packages"
    with _one_at_a_time(), progress.step(what, log), _nothing_starts():
        if not any(_LISTS.glob("*_Packages*")):
            _apt(log, "update")
        try:
            _install(log, absent)
        except LabError:
            # The usual cause is a list that is older than the archive.
            _apt(log, "update")
            _install(log, absent)


def _install(log: Path, names: list[str]) -> None:
    _apt(log, "install", "--yes", "--no-install-recommends", *names)


def _apt(log: Path, *arguments: str) -> None:
    run_logged(
        f"apt-get {arguments[0]}",
        ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=600", *arguments],
        log,
        environment=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """One apt of the lab on the machine: the policy of one would end under the other."""
    descriptor = os.open(_LISTS, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _nothing_starts() -> Iterator[None]:
    """While this lasts, maintainer scripts may not start services; an existing policy is kept."""
    try:
        descriptor = os.open(_POLICY, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o755)
    except FileExistsError:
        yield
        return
    try:
        with open(descriptor, "w") as stream:
            stream.write("#!/bin/sh\nexit 101\n")
        yield
    finally:
        _POLICY.unlink()
