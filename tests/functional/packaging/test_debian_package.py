# SPDX-License-Identifier: Apache-2.0
"""The Debian package of the host agent, in a Debian made for it: installed, used, purged, and nothing is left.

Needs what ``debian/control`` builds with, lintian, debootstrap, root, and the archive of :mod:`tests.support.debian`.
"""

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from numa_lab import pocl_packages

from host_agent.transports.pocl import FIXED
from host_agent.transports.transport import AttachedGpu
from tests.support.built_pocl import cached_pocl
from tests.support.debian import Debian, run
from tests.support.needed import need, need_history
from tests.support.pocl_server import pocl_server, transport

pytestmark = [pytest.mark.long, pytest.mark.root, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "numa-host-agent",
    "python3-nova-numa-ext",
    "numa-ext-rgpu-guest",
    "numa-ext-rgpu-slice",
    "numa-ext-rgpu",
    "numa-rgpu-bench",
)
OF_GUESTS = ("numa-ext-rgpu", "numa-ext-rgpu-guest", "numa-rgpu-bench")
POCL = ("numa-ext-pocl-remote", "numa-ext-pocld")
CONF = "/etc/numa-host-agent/numa-host-agent.conf"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All binary packages, built of this commit without git and without network."""
    need_history()
    need("dpkg-buildpackage")
    checked = subprocess.run(
        ["dpkg-checkbuilddeps", ROOT / "debian/control"],
        check=False,
        capture_output=True,
        text=True,
    )
    if checked.returncode:
        pytest.skip(checked.stderr.strip())
    folder = tmp_path_factory.mktemp("deb")
    source = folder / "nova-numa-ext"
    source.mkdir()
    files = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], check=True, input=files)
    debians = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}  # its Python, no other
    debians.pop("PYTHONPATH", None)
    command = ("unshare", "--net", "dpkg-buildpackage", "--no-sign", "--build=binary")
    run(*command, cwd=source, env=debians)
    return folder


@pytest.fixture(scope="module")
def debian(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Debian]:
    """A Debian 12 with all that our packages depend on, and not them."""
    need("debootstrap")
    found = Debian(tmp_path_factory.mktemp("debian") / "root")
    to = found.root / "tmp/packages"
    shutil.copytree(packages, to, ignore=shutil.ignore_patterns("nova-*"))
    found.install("systemd", *dependencies(to))
    yield found
    shutil.rmtree(found.root, ignore_errors=True)


def debs(debian: Debian) -> list[str]:
    """Our packages, as they are named in it."""
    return sorted(f"/tmp/packages/{f.name}" for f in (debian.root / "tmp/packages").glob("*.deb"))


def dependencies(packages: Path) -> list[str]:
    """Packages of Debian that ours need."""
    found = set()
    for deb in packages.glob("*.deb"):
        for field in ("Depends", "Pre-Depends"):
            text = run("dpkg-deb", "--field", deb, field)
            found |= {re.split(r"[|(:]", part)[0].strip() for part in text.split(",")}
    return sorted(found - {"", *PACKAGES})


def test_lintian_finds_nothing(packages: Path) -> None:
    """But for the address of the maintainers: the project has none to which anybody could write."""
    need("lintian")
    changes = next(packages.glob("*.changes"))
    options = ("--allow-root", "--fail-on=error,warning", "--tag-display-limit=0")
    address = "bogus-mail-host,bogus-mail-host-in-debian-changelog"
    run("lintian", *options, f"--suppress-tags={address}", changes)


def test_the_packages_ask_nothing_and_hold_no_key_of_ours(packages: Path) -> None:
    for deb in packages.glob("*.deb"):
        control = run("dpkg-deb", "--info", deb)
        assert "templates" not in control and "debconf" not in control


def test_a_build_leaves_nothing_that_git_would_take(packages: Path) -> None:
    """Who builds in a checkout, as the guide says, finds it clean."""
    source = packages / "nova-numa-ext"
    found = {str(f.relative_to(source)) for f in source.rglob("*") if not f.is_dir()}
    ignored = subprocess.run(
        ["git", "-C", str(ROOT), "check-ignore", "--no-index", "--stdin"],
        check=False,
        capture_output=True,
        text=True,
        input="\n".join(found),
    ).stdout.splitlines()
    ours = run("git", "-C", ROOT, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert found - set(ignored) == set(ours)


def test_installed_used_and_purged_it_leaves_nothing(debian: Debian) -> None:
    before = debian.files()
    debian.run("dpkg", "--install", *debs(debian))

    conf = debian.root / CONF.removeprefix("/")
    assert "\nmode = observe\n" in conf.read_text()
    assert stat.S_IMODE(conf.stat().st_mode) == 0o640
    (user,) = [
        line.split(":")
        for line in (debian.root / "etc/passwd").read_text().splitlines()
        if line.startswith("numa-host-agent:")
    ]
    assert user[-1].endswith("/nologin")
    assert (conf.stat().st_uid, conf.stat().st_gid) == (0, int(user[3]))
    wants = (debian.root / "etc/systemd/system").rglob("numa-host-agent*")
    assert list(wants) == [], "it is not even enabled"

    usage = debian.run("sh", "-c", "numa-ext-rgpu 2>&1 || true")
    assert "guest|doorman|gateway" in usage
    assert (debian.root / "lib/systemd/system/numa-ext-rgpu-guest.service").exists()

    debian.run("numa-host-agent-ctl", "topology")
    debian.run("numa-host-agent-ctl", "pause")
    debian.run("numa-host-agent-ctl", "resume")
    observing = debian.root / "tmp/agent.conf"
    observing.write_text(f"{conf.read_text()}\n[libvirt_host]\nuri = test:///default\n")
    debian.run("numa-host-agent", "--config-file=/tmp/agent.conf", "--dry-run", "--once")
    debian.run("numa-host-agent-ctl", "support-bundle", "--output", "/tmp/bundle.tar.gz")
    doctor = debian.run("sh", "-c", "numa-host-agent-ctl doctor || true")
    assert "Traceback" not in doctor

    debian.run("dpkg", "--purge", *PACKAGES)
    after = debian.files()
    assert {name: after[name] for name in after.keys() - before.keys()} == {}
    assert {name for name in before if after.get(name) != before[name]} == set()


@pytest.fixture(scope="module")
def guest(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """The same Debian with what PoCL's packages need."""
    folder = tmp_path_factory.mktemp("pocl")
    written = pocl_packages.write(cached_pocl(), folder / "packages", folder / "log")
    to = debian.root / "tmp/pocl"
    to.mkdir()
    for each in written:
        shutil.copy(each, to)
    debian.install(*dependencies(to))
    return debian


def test_a_guest_with_the_packages_computes_on_a_remote_device_and_keeps_nothing_of_them(
    guest: Debian, tmp_path: Path
) -> None:
    """The packages of guests and PoCL's: a program finds the device by what the transport says and nothing else."""
    before = guest.files()
    ours = [each for each in debs(guest) if Path(each).name.split("_")[0] in OF_GUESTS]
    client, server = (
        f"/tmp/pocl/{each.name}" for each in sorted((guest.root / "tmp/pocl").glob("*.deb"))
    )
    guest.run("dpkg", "--install", *ours, client)
    assert Path(client).name.startswith(f"{POCL[0]}_") and Path(server).name.startswith(POCL[1])
    with pocl_server(cached_pocl(), tmp_path) as running:
        gpu = AttachedGpu(running.port)
        said = transport(cached_pocl()).guest_environment([gpu])
        words = [f"{name}={value}" for name, value in said.items()]
        bench = ("setpriv", "--reuid=nobody", "--clear-groups", "env", *words, "numa-rgpu-bench")
        shown = guest.run(*bench, "-t", "0.5")
        assert json.loads(shown.splitlines()[-1])["rounds"] > 0
    guest.run("dpkg", "--install", server)
    assert FIXED in guest.run("pocld", "--version")
    guest.run("dpkg", "--purge", *OF_GUESTS, *POCL)
    after = guest.files()
    assert {name: after[name] for name in after.keys() - before.keys()} == {}
    assert {name for name in before if after.get(name) != before[name]} == set()


def test_a_configuration_that_was_written_survives_an_upgrade(debian: Debian) -> None:
    debian.run("dpkg", "--install", *debs(debian))
    conf = debian.root / CONF.removeprefix("/")
    conf.write_text("[agent]\nmode = observe\n[placement]\npassword = kept\n")
    debian.run("dpkg", "--install", *debs(debian))
    assert "password = kept" in conf.read_text()
    assert stat.S_IMODE(conf.stat().st_mode) == 0o640
    debian.run("dpkg", "--remove", "numa-host-agent")
    assert conf.exists(), "only a purge takes it away"
    debian.run("dpkg", "--purge", *PACKAGES)
    assert not conf.parent.exists()
