# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of ``make test`` and ``make check``, and tells what each took beside what it may take.

Parts are targets of the Makefile; ``budget.toml`` names them with their budgets. All are made, even when one fails, but
not those that need one that failed. A run is red when a part failed or when it took longer than its limit in all.

Only the standard library: the virtual environment is made by one of the parts.
"""

import argparse
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True, slots=True)
class Part:
    """A target of the Makefile.

    :param budget_s: wall time that it may take
    :param needs: the part without whose success it is not made
    """

    name: str
    budget_s: int
    needs: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a part; ``took_s`` is None when it was not made."""

    part: Part
    took_s: float | None
    succeeded: bool

    def verdict(self) -> str:
        """One or two words for the table."""
        if self.took_s is None:
            return f"not run: needs {self.part.needs}"
        over = ", over its budget" if self.took_s > self.part.budget_s else ""
        return ("ok" if self.succeeded else "FAILED") + over


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run and its limit."""

    name: str
    limit_s: int
    results: tuple[Result, ...]

    @property
    def took_s(self) -> float:
        """Wall time of all parts."""
        return sum(result.took_s or 0.0 for result in self.results)

    def faults(self) -> tuple[str, ...]:
        """Why the run is red; empty when it is green."""
        bad = [result.part.name for result in self.results if not result.succeeded]
        faults = [f"not successful: {', '.join(bad)}"] if bad else []
        if self.took_s > self.limit_s:
            faults.append(f"{clock(self.took_s)} is over the limit of {clock(self.limit_s)}")
        return tuple(faults)

    def text(self) -> str:
        """A table, a row for each part; the last line says whether the run is green or red."""
        rows = [("part", "budget", "took", "")]
        for result in self.results:
            took = "-" if result.took_s is None else clock(result.took_s)
            rows.append((result.part.name, clock(result.part.budget_s), took, result.verdict()))
        rows.append(("all", clock(self.limit_s), clock(self.took_s), ""))
        width = max(len(name) for name, *_ in rows)
        lines = [f"{n:<{width}}  {b:>6}  {t:>6}  {v}".rstrip() for n, b, t, v in rows]
        verdict = "; ".join(self.faults())
        return "\n".join([*lines, f"make {self.name}: {f'red, {verdict}' if verdict else 'green'}"])


def clock(seconds: float) -> str:
    """Minutes and seconds, ``12:05``."""
    return f"{int(seconds + 0.5) // 60}:{int(seconds + 0.5) % 60:02}"


def load(file: Path = FILE) -> dict[str, Any]:
    """Read the budgets."""
    return tomllib.loads(file.read_text())


def parts(table: dict[str, Any]) -> tuple[Part, ...]:
    """Read the parts of a run, in the order in which they are made."""
    return tuple(Part(**row) for row in table["parts"])


def run(
    wanted: Sequence[Part],
    make: Callable[[str], bool],
    now: Callable[[], float] = time.monotonic,
) -> tuple[Result, ...]:
    """Make the parts one after the other.

    :param make: makes one, tells whether it succeeded
    :param now: seconds of a clock
    """
    results: dict[str, Result] = {}
    for part in wanted:
        if part.needs is not None and not results[part.needs].succeeded:
            results[part.name] = Result(part, None, succeeded=False)
            continue
        began = now()
        succeeded = make(part.name)
        results[part.name] = Result(part, now() - began, succeeded)
    return tuple(results.values())


def main(arguments: Sequence[str]) -> int:
    """``python3 -m tests.budget test MAKE...``: the exit status is 0 when the run is green, 1 when it is red."""
    parser = argparse.ArgumentParser(prog="tests.budget", description=__doc__)
    table = load()
    parser.add_argument("run", choices=[name for name in table if "parts" in table[name]])
    parser.add_argument("make", nargs=argparse.REMAINDER, help="the make command, its options")
    options = parser.parse_args(arguments)

    def make(name: str) -> bool:
        return subprocess.run([*options.make, name], check=False).returncode == 0

    wanted = table[options.run]
    report = Report(options.run, wanted["limit_s"], run(parts(wanted), make))
    sys.stdout.write(f"\n{report.text()}\n")
    return 1 if report.faults() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
