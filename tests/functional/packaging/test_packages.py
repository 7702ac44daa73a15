# SPDX-License-Identifier: Apache-2.0
"""What pip installs: built of a tag, of a source archive alone, each extra in an environment of its own.

Upper constraints come from OpenStack's site, or from files that NUMA_EXT_UPPER_CONSTRAINTS_2026_1 and …_2026_2 name.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.needed import need_history

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[3]
CONSTRAINTS = "https://releases.openstack.org/constraints/upper"
NOVA = {"2026.1": "nova==33.*", "2026.2": "nova==34.*"}

# What an environment may grow by, MB.
SCHEDULER_MB = 20
AGENT_MB = 150

# What shows that an extra brings all that its part needs: commands of its environment.
STARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "agent": (
        ("numa-host-agent", "--config-file=agent.conf", "--dry-run", "--once"),
        ("numa-host-agent-ctl", "--config-file=agent.conf", "topology"),
        ("numa-host-agent-supervisor", "--help"),
        ("numa-host-agent-leases", "--help"),
        ("numa-host-agent-lanes", "--help"),
    ),
    "scheduler": (
        ("python", "-c", "from nova_numa_ext.scheduler import NumaExtFilter, NumaExtWeigher"),
        ("numa-ext-explain", "--help"),
        ("numa-ext-heal", "--help"),
        ("numa-ext-status",),
    ),
    "client": (
        ("openstack", "numa", "host", "list", "--help"),
        ("openstack", "numa", "simulate", "trace", "--jobs", "5"),
    ),
    "rally": (("rally", "plugin", "show", "NumaExt.boot_and_check_placement"),),
    "jobs": (
        ("numa-ext-manage", "--config-file=jobs.conf", "db", "sync"),
        ("numa-ext-engine", "--help"),
        ("gunicorn", "--check-config", "nova_numa_ext.orchestrator.wsgi:application"),
    ),
    "elastic": (
        (
            "python",
            "-c",
            "from nova_numa_ext.learning.models import published, check_installed; check_installed()",
        ),
    ),
    "flow": (
        (
            "python",
            "-c",
            "import numpy; from nova_numa_ext.policy.remote_gpu.network import FlowNetwork; "
            "from nova_numa_ext.flow.solvers import installed_solver, with_highs, with_ortools; "
            "one = numpy.array([1]); arc = FlowNetwork(one, 0 * one, one, one, numpy.array([-1, 1])); "
            "assert installed_solver() is with_ortools; assert with_ortools(arc) == with_highs(arc)",
        ),
    ),
    "sim": (("python", "-m", "nova_numa_ext.simulator", "--jobs", "5"),),
    "pqos": (("python", "-c", "import pqos; from host_agent.machine.rdt.pqos import PqosFiles"),),
}


def run(*words: object, **options: object) -> str:
    """Run a command that must succeed; return its standard output."""
    ran = subprocess.run([*map(str, words)], check=False, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert ran.returncode == 0, f"{words}: {ran.stdout[-2000:]}{ran.stderr[-4000:]}"
    return str(ran.stdout)


def environment(folder: Path, *install: object) -> Path:
    """Make a virtual environment; return its folder of programs."""
    run(sys.executable, "-m", "venv", folder)
    if install:
        run(folder / "bin/pip", "install", "--quiet", *install)
    return folder / "bin"


@pytest.fixture(scope="module", autouse=True)
def nothing_of_the_callers() -> Iterator[None]:
    """No PYTHONPATH: pip would take what it finds there for installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What builds: nothing is downloaded later."""
    return environment(
        tmp_path_factory.mktemp("tools") / "venv", "build", "pbr>=6.1", "setuptools>=70", "wheel"
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This commit, tagged 0.1.0."""
    need_history()
    folder = tmp_path_factory.mktemp("clone") / "nova-numa-ext"
    run("git", "clone", "--quiet", ROOT, folder)
    run("git", "-C", folder, "tag", "--force", "0.1.0")
    return folder


def build(tools: Path, source: Path, to: Path, **options: object) -> Path:
    run(tools / "python", "-m", "build", "--no-isolation", "--outdir", to, source, **options)
    return to


@pytest.fixture(scope="module")
def built(tools: Path, clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source archive and wheel of the tag."""
    return build(tools, clone, tmp_path_factory.mktemp("built"))


def wheel(folder: Path) -> Path:
    (found,) = folder.glob("*.whl")
    return found


def contents(file: Path) -> Mapping[str, bytes]:
    """What a wheel installs, without the list of hashes."""
    with zipfile.ZipFile(file) as archive:
        return {n: archive.read(n) for n in archive.namelist() if not n.endswith("/RECORD")}


def files_of(folder: Path) -> set[str]:
    """What the source archive in a folder holds."""
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def test_the_version_is_the_tag(built: Path) -> None:
    assert sorted(file.name for file in built.iterdir()) == [
        "nova_numa_ext-0.1.0-py3-none-any.whl",
        "nova_numa_ext-0.1.0.tar.gz",
    ]


def test_a_commit_after_the_tag_is_before_the_next_release(
    tools: Path, clone: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    run("git", "clone", "--quiet", clone, later)
    author = ("-c", "user.name=a", "-c", "user.email=a@localhost")
    run("git", "-C", later, *author, "commit", "--quiet", "--allow-empty", "-m", "Fix a thing")
    words = run(tools / "python", "setup.py", "--version", cwd=later).split()
    assert words[-1].startswith("0.1.1.dev1")


@pytest.mark.root
def test_the_source_archive_builds_without_git_and_without_network(
    tools: Path, built: Path, tmp_path: Path
) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path)
    source = tmp_path / "nova_numa_ext-0.1.0"
    assert shutil.which("git", path=str(tools)) is None
    # SKIP_GIT_SDIST: pbr lists the files of the archive in place of those of git.
    alone = {**os.environ, "PATH": str(tools), "SKIP_GIT_SDIST": "1"}
    command = (shutil.which("unshare"), "--net", tools / "python", "-m", "build")
    run(*command, "--no-isolation", "--wheel", "--outdir", tmp_path / "wheel", source, env=alone)
    assert contents(wheel(tmp_path / "wheel")) == contents(wheel(built))
    run(*command, "--no-isolation", "--sdist", "--outdir", tmp_path / "again", source, env=alone)
    assert files_of(tmp_path / "again") == files_of(built)


def test_the_wheel_brings_what_a_host_needs_and_no_tests(built: Path) -> None:
    names = contents(wheel(built)).keys()
    data = "nova_numa_ext-0.1.0.data/data/share/nova-numa-ext/"
    etc = {
        str(file.relative_to(ROOT / "etc")) for file in (ROOT / "etc").rglob("*") if file.is_file()
    }
    assert {name.removeprefix(data) for name in names if name.startswith(data)} >= etc
    assert {name.partition("/")[0] for name in names} == {
        "host_agent",
        "nova_numa_ext",
        "nova_numa_ext-0.1.0.data",
        "nova_numa_ext-0.1.0.dist-info",
        "placement_traits",
    }
    assert {"placement_traits/schemas/host_topology.json"} <= names


def test_the_source_archive_brings_licences_and_packaging(built: Path) -> None:
    assert {
        "LICENSE",
        "SECURITY.md",
        "debian/control",
        "devstack/lab/qemu/COPYING",
        "doc/source/operator/installation.rst",
    } <= files_of(built)


def constraints(release: str, folder: Path) -> list[object]:
    """Options by which pip keeps to a release of OpenStack."""
    nova = folder / "nova.txt"
    nova.write_text(f"{NOVA[release]}\n")
    given = os.environ.get(f"NUMA_EXT_UPPER_CONSTRAINTS_{release.replace('.', '_')}")
    if given is None:
        try:
            with urllib.request.urlopen(f"{CONSTRAINTS}/{release}", timeout=30) as answer:
                (folder / "upper.txt").write_bytes(answer.read())
        except OSError as error:
            pytest.skip(f"the constraints of {release} cannot be had: {error}")
        given = str(folder / "upper.txt")
    return ["--constraint", given, "--constraint", nova]


def _need_nova(release: str, limits: list[object], folder: Path) -> None:
    """Skip where constraints, such as those of a day before the release, refuse nova without us."""
    pip = environment(folder / "nova") / "pip"
    words = [*map(str, (pip, "install", "--quiet", "--dry-run", NOVA[release], *limits))]
    ran = subprocess.run(words, check=False, capture_output=True, text=True)
    if ran.returncode:
        pytest.skip(f"the constraints of {release} refuse {NOVA[release]} itself: {ran.stderr}")


@pytest.mark.parametrize("release", ["newest", *NOVA])
@pytest.mark.parametrize("extra", STARTS)
def test_an_extra_alone_brings_all_that_its_part_needs(
    extra: str, release: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    limits = [] if release == "newest" else constraints(release, tmp_path)
    if extra == "scheduler" and limits:
        _need_nova(release, limits, tmp_path)
    built = request.getfixturevalue("built")  # nothing is built for what is skipped
    programs = environment(tmp_path / "venv", f"{wheel(built)}[{extra}]", *limits)
    run(programs / "pip", "check")
    (tmp_path / "agent.conf").write_text(
        f"[agent]\nstate_dir = {tmp_path}/state\nmetrics_port = 0\n"
        f"[libvirt_host]\nuri = test:///default\npid_dir = {tmp_path}\n"
        f"[helper]\nsocket = {tmp_path}/helper.sock\nstate_dir = {tmp_path}/helper\n"
        "[placement]\nenabled = false\n"
    )
    (tmp_path / "jobs.conf").write_text(
        f"[database]\nconnection = sqlite:///{tmp_path}/jobs.db\n[placement]\nauth_type = password\n"
        "auth_url = http://k/v3\nusername = u\npassword = p\n[keystone_authtoken]\nauth_section = placement\n"
    )
    surroundings = os.environ | {"NUMA_EXT_JOBS_CONFIG": f"{tmp_path}/jobs.conf"}
    for program, *words in STARTS[extra]:
        run(programs / program, *words, cwd=tmp_path, env=surroundings)


def normal(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_bill_of_materials_names_all_that_an_extra_brings(clone: Path, tmp_path: Path) -> None:
    """``make sbom``: each package in its version, by whom it is needed, and nothing of the caller's own path."""
    lab, elsewhere = tmp_path / "lab", tmp_path / "elsewhere/stranger-1.dist-info"
    elsewhere.mkdir(parents=True)
    (elsewhere / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    more = {"NUMA_EXT_LAB": str(lab), "PBR_VERSION": "0.1.0", "PYTHONPATH": str(elsewhere.parent)}
    run("make", "-C", clone, "sbom", "EXTRA=agent", env=os.environ | more)
    bill = json.loads((clone / "sbom-agent.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    named = {(normal(each["name"]), each["version"]) for each in bill["components"]}
    listed = run(lab / "sbom/installed/bin/pip", "list", "--format=json")
    assert named == {(normal(each["name"]), each["version"]) for each in json.loads(listed)}
    assert ("nova-numa-ext", "0.1.0") in named
    ours = next(each["bom-ref"] for each in bill["components"] if "numa" in each["name"])
    needed = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}[ours]
    assert any(ref.startswith("libvirt-python==") for ref in needed), "what the extra brings"


def megabytes(programs: Path) -> float:
    """What an environment holds beside links and programs, with the bytecode that pip writes, MB of 10^6 bytes."""
    root = programs.parent
    files = (file for folder in ("lib", "share") for file in (root / folder).rglob("*"))
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


def test_a_scheduler_host_gets_little_beside_nova(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = environment(tmp_path / "venv", "nova>=33,<35")
    novas = megabytes(programs)
    run(programs / "pip", "install", "--quiet", f"{wheel(built)}[scheduler]")
    added = megabytes(programs) - novas
    with capsys.disabled():
        sys.stdout.write(f"nova: {novas:.0f} MB; [scheduler] adds {added:.1f} MB\n")
    assert 0 < added <= SCHEDULER_MB, f"{added:.1f} MB"


def test_an_agent_alone_stays_small(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = environment(tmp_path / "venv")
    empty = megabytes(programs)
    run(programs / "pip", "install", "--quiet", f"{wheel(built)}[agent]")
    added = megabytes(programs) - empty
    with capsys.disabled():
        sys.stdout.write(f"pip: {empty:.0f} MB; [agent] adds {added:.1f} MB\n")
    assert 0 < added <= AGENT_MB, f"{added:.1f} MB"


def test_the_models_of_elastic_groups_keep_their_fixtures(built: Path, tmp_path: Path) -> None:
    """F-004-51, -56 and -57: no other environment of the tests has the libraries."""
    extras = f"{wheel(built)}[elastic]"
    programs = environment(tmp_path / "venv", extras, "pytest", "pytest-timeout", "hypothesis")
    folder = "tests/unit/nova_numa_ext/learning"
    run(programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder, cwd=ROOT)
