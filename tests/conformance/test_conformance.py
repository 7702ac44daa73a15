# SPDX-License-Identifier: Apache-2.0
"""The conformance cases under pytest: on the in-process model and on the FUSE tree.

On a real kernel the same cases run inside an emulated host: ``python -m tests.conformance.run`` there.
"""

import ctypes.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emulation.kernel.profiles import PROFILES
from emulation.kernel.shape import AMD, Shape
from host_agent.machine.rdt.files import RESCTRL_ROOT
from tests.conformance import library_cases, pqos_cases
from tests.conformance.bench import Case, NotApplicableError
from tests.conformance.fuse_run import NAMESPACES
from tests.conformance.run import CASES, run_case
from tests.conformance.world import ModelWorld, PqosModelWorld

REPOSITORY = Path(__file__).parents[2]
SHAPES = {
    "one-domain": Shape(),
    "four-domains": Shape(domains=(0, 1, 2, 3)),
    "no-shareable": Shape(shareable=0, cbm_len=11, closids=15, rmids=48),
    "cdp": Shape(cdp=True, closids=16),
    "no-mba": Shape(mba=False),
    "l2": Shape(domains=(0, 1), l2_len=8, l2_domains=(0, 2, 4, 6)),
    "l2-cdp": Shape(domains=(0, 1), l2_len=8, l2_domains=(0, 2, 4, 6), cdpl2=True, closids=16),
    "amd": replace(AMD, domains=(0, 1), closids=8),
    "mba-mbps": Shape(domains=(0, 1), mba_mbps=True),
    "no-monitoring": Shape(monitoring=()),
}


def _name(case: Case) -> str:
    return case.__name__


@pytest.mark.parametrize("case", CASES, ids=_name)
@pytest.mark.parametrize("profile", PROFILES)
def test_model_behaves_like_the_kernel(case: Case, profile: str) -> None:
    _run(case, ModelWorld(PROFILES[profile], SHAPES["four-domains"]))


@pytest.mark.parametrize("case", CASES, ids=_name)
@pytest.mark.parametrize("shape", SHAPES)
def test_model_of_every_shape(case: Case, shape: str) -> None:
    _run(case, ModelWorld(PROFILES["6.12"], SHAPES[shape]))


@pytest.mark.parametrize("case", (*library_cases.CASES, *pqos_cases.CASES), ids=_name)
@pytest.mark.parametrize(
    "shape", ["one-domain", "four-domains", "cdp", "l2", "l2-cdp", "no-mba", "no-monitoring"]
)
def test_the_pqos_backend_on_the_model(case: Case, shape: str, tmp_path: Path) -> None:
    _run(case, PqosModelWorld(PROFILES["6.12"], SHAPES[shape], tmp_path))


HARDWARE = {
    "amd": "--amd",
    "cdp": "--cdp --cdpl2 --l2-len=8 --closids=16",
    "mba-mbps": "--mba-mbps",
}
"""More trees that FUSE serves, with the newest profile."""


@pytest.fixture(scope="module", params=[*PROFILES, *HARDWARE])
def fuse_results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Run all cases once on a FUSE tree: case -> result."""
    root = tmp_path_factory.mktemp("resctrl") / "root"
    root.mkdir()
    profile = request.param if request.param in PROFILES else "6.12"
    hardware = f"--hardware={HARDWARE.get(request.param, '')}"
    return _on_fuse(tmp_path_factory, "--root", str(root), "--profile", profile, hardware)


def _on_fuse(factory: pytest.TempPathFactory, *arguments: str) -> dict[str, dict[str, Any]]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("mounting a FUSE tree needs root and /dev/fuse")
    if ctypes.util.find_library("fuse3") is None:
        pytest.skip("libfuse3 is not installed (Debian: libfuse3-3)")
    if subprocess.run([*NAMESPACES, "true"], check=False).returncode:
        pytest.skip("no namespaces of our own here (needs CAP_SYS_ADMIN)")
    output = factory.mktemp("results") / "results.json"
    command = [*NAMESPACES, sys.executable, "-m", "tests.conformance.fuse_run", *arguments]
    command.append(f"--json={output}")
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert output.exists(), finished.stdout + finished.stderr
    return {result["case"]: result for result in json.loads(output.read_text())}


@pytest.fixture(scope="module")
def libpqos_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run the library's cases once through the real libpqos, which works on a FUSE tree."""
    pytest.importorskip("pqos")
    if not Path("/usr/lib/libpqos.so.4").exists():
        pytest.skip("libpqos 4 is not installed (Debian: intel-cmt-cat)")
    root = ("--root", RESCTRL_ROOT)  # libpqos knows no other
    return _on_fuse(tmp_path_factory, *root, "--profile", "6.12", "--backend", "pqos")


@pytest.mark.root
@pytest.mark.parametrize("case", (*library_cases.CASES, *pqos_cases.CASES), ids=_name)
def test_libpqos_on_a_fuse_tree(case: Case, libpqos_results: dict[str, dict[str, Any]]) -> None:
    _expect_ok(libpqos_results[case.__name__])


@pytest.mark.root
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_fuse_tree_behaves_like_the_kernel(
    case: Case, fuse_results: dict[str, dict[str, Any]]
) -> None:
    _expect_ok(fuse_results[case.__name__])


def _expect_ok(result: dict[str, Any]) -> None:
    if result["outcome"] == "skipped":
        pytest.skip(result["reason"])
    assert result["outcome"] == "ok", result["reason"]


def _run(case: Case, world: ModelWorld) -> None:
    try:
        run_case(case, world)
    except NotApplicableError as reason:
        pytest.skip(str(reason))
