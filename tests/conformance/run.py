# SPDX-License-Identifier: Apache-2.0
"""Run the resctrl conformance cases on one tree: ``python -m tests.conformance.run --profile 6.12``.

Needs the standard library and this project, and root for a real tree. One line per case; exit code 1 when one failed.
The tree must be mounted and nobody else's: all groups in it are removed.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from emulation.kernel.profiles import LINUX_6_12, PROFILES
from host_agent.machine.rdt.files import RESCTRL_ROOT
from host_agent.machine.rdt.pqos import PqosFiles
from tests.conformance import kernel_cases, library_cases, pqos_cases
from tests.conformance.bench import Bench, Case, NotApplicableError
from tests.conformance.world import ModelWorld, OsWorld, World, closing_world

CASES: Final[tuple[Case, ...]] = (*kernel_cases.CASES, *library_cases.CASES)


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of one case: ``ok``, ``skipped`` or ``FAILED``, why, and how long it took."""

    case: str
    outcome: str
    reason: str
    seconds: float


def run_case(case: Case, world: World) -> None:
    """Run one case on a clean tree and clean up after it.

    :raises AssertionError: the tree does not behave as expected
    :raises NotApplicableError: the case does not apply
    """
    with closing_world(world):
        bench = Bench(world)
        bench.clean()
        try:
            case(bench)
        finally:
            bench.clean()


def results(cases: Sequence[Case], world: World) -> Iterator[Result]:
    """Run cases one after the other; nothing stops the run."""
    for case in cases:
        start = time.monotonic()
        outcome, reason = "ok", ""
        try:
            run_case(case, world)
        except NotApplicableError as why:
            outcome, reason = "skipped", str(why)
        except Exception as error:  # noqa: BLE001 - the next case shall run whatever this one did
            outcome = "FAILED"
            reason = "".join(traceback.format_exception_only(error)).strip()
            if not isinstance(error, AssertionError):
                reason = traceback.format_exc()
        yield Result(case.__name__, outcome, reason, round(time.monotonic() - start, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--root", default=RESCTRL_ROOT, help="mount point, or `model` for the in-process model"
    )
    parser.add_argument("--profile", choices=sorted(PROFILES), default=LINUX_6_12.version)
    parser.add_argument(
        "--backend",
        choices=("resctrl", "pqos"),
        default="resctrl",
        help="pqos: only the cases of the library, through libpqos",
    )
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    given = parser.parse_args(arguments)
    profile = PROFILES[given.profile]
    cases = CASES
    if given.root == "model":
        world: World = ModelWorld(profile)
    elif given.backend == "pqos":
        cases = (*library_cases.CASES, *pqos_cases.CASES)
        state = tempfile.TemporaryDirectory(prefix="numa-ext-pqos-")  # goes with the process
        world = OsWorld(given.root, profile, PqosFiles(Path(state.name), Path("/proc")))
    else:
        world = OsWorld(given.root, profile)
    found = []
    for result in results([case for case in cases if given.only in case.__name__], world):
        found.append(result)
        print(f"{result.outcome:8} {result.case} {result.reason}".rstrip(), flush=True)  # noqa: T201
    if isinstance(world.files, PqosFiles):
        world.files.give_up()
    if given.json:
        Path(given.json).write_text(
            json.dumps([asdict(result) for result in found], indent=1) + "\n"
        )
    failed = sum(result.outcome == "FAILED" for result in found)
    print(f"{len(found)} cases, {failed} failed", flush=True)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
