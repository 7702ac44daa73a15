# SPDX-License-Identifier: Apache-2.0
"""The commands of the installation page, in a Debian 12 that has nothing but what the page asks for."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.debian import Debian
from tests.support.needed import need, need_history
from tests.support.pages import block

pytestmark = [pytest.mark.long, pytest.mark.root, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "doc/source/operator/installation.rst").read_text()
# What the page says that pip compiles with, and systemd.
NEEDS = ("python3-venv", "gcc", "pkg-config", "libvirt-dev", "python3-dev", "systemd", "procps")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    """A compute host's Debian with a checkout in /root/nova-numa-ext."""
    need_history()
    need("debootstrap")
    debian = Debian(tmp_path_factory.mktemp("page") / "root")
    debian.install(*NEEDS)
    clone = debian.root / "root/nova-numa-ext"
    command = ["git", "clone", "--quiet", str(ROOT), str(clone)]
    subprocess.run(command, check=True)
    # Where this machine finds PyPI, and whom it trusts.
    for file in ("/etc/pip.conf", os.environ.get("PIP_CERT", "")):
        if file and Path(file).is_file():
            to = debian.root / file.removeprefix("/")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to)
    yield debian
    shutil.rmtree(debian.root, ignore_errors=True)


def shell(host: Debian, commands: str) -> str:
    settings = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    exports = "".join(f"export {key}='{value}'\n" for key, value in settings.items())
    version = "export PBR_VERSION=0.1.0\n"  # there is no git
    return host.run("sh", "-e", "-c", f"cd /root/nova-numa-ext\n{exports}{version}{commands}")


def test_the_commands_for_a_compute_host_install_an_agent_that_looks(host: Debian) -> None:
    commands = block(PAGE, "python3 -m venv /opt/numa-host-agent")
    shell(host, commands.replace("systemctl daemon-reload", ":"))  # no systemd runs
    conf = host.root / "etc/numa-host-agent/numa-host-agent.conf"
    (line,) = [
        line.split(":")
        for line in (host.root / "etc/passwd").read_text().splitlines()
        if line.startswith("numa-host-agent:")
    ]
    status = conf.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o640, 0, int(line[3]))
    with conf.open("a") as file:
        file.write("\n[libvirt_host]\nuri = test:///default\n[placement]\nenabled = false\n")
    looked = block(PAGE, "numa-host-agent --config-file")
    shell(host, looked.replace("numa-host-agent-ctl doctor", "numa-host-agent-ctl doctor || true"))
    assert (host.root / "opt/numa-host-agent/share/nova-numa-ext/systemd").is_dir()


def test_the_kernel_is_set_up_as_the_page_says(host: Debian) -> None:
    commands = block(PAGE, "cp etc/systemd/sys-fs-resctrl.mount")
    shell(host, re.sub(r"(?m)^(systemctl|sysctl) .*$", ":", commands))
    shell(host, "systemctl enable sys-fs-resctrl.mount")
    wants = host.root / "etc/systemd/system/sysinit.target.wants/sys-fs-resctrl.mount"
    assert wants.is_symlink()
    assert (host.root / "etc/sysctl.d/60-numa-host-agent.conf").is_file()
