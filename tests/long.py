# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that are marked ``long``: all of them, one share, or the share that is this commit's turn.

``long.toml`` says how long each takes alone, with its fixtures. The list is cut into shares of consecutive tests, about
equally long: every test is in exactly one, tests of one file stay together for what they share, and equal arguments
give the same share at the same commit.
"""

import argparse
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import budget

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".toml")
LAB = ROOT / "devstack/lab/lab"
IN_NOVA, ON_THE_LAB = "tests/in_nova/", "tests/integration/"
SHORTEST_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Long:
    """A long test.

    :param test: its pytest node id
    :param seconds: what it takes alone on two cores, with its fixtures
    """

    test: str
    seconds: int


Share = tuple[Long, ...]


def load(file: Path = FILE) -> Share:
    """Read all long tests, in the file's order."""
    table = tomllib.loads(file.read_text())
    return tuple(
        Long(f"{path}::{name}", seconds)
        for path, rows in table.items()
        for name, seconds in rows.items()
    )


def seconds(share: Share) -> int:
    """How long a share takes."""
    return sum(one.seconds for one in share)


def fill(tests: Share, limit_s: int) -> tuple[Share, ...]:
    """Cut into as few shares of consecutive tests as the limit allows.

    :raises ValueError: when a test alone is over the limit
    """
    shares: list[Share] = []
    for one in tests:
        if one.seconds > limit_s:
            raise ValueError(f"{one.test} takes {one.seconds} s, a share {limit_s} s")
        if shares and seconds(shares[-1]) + one.seconds <= limit_s:
            shares[-1] += (one,)
        else:
            shares.append((one,))
    return tuple(shares)


def cut(tests: Share, count: int) -> tuple[Share, ...]:
    """Cut into ``count`` shares of consecutive tests, the longest as short as possible; the last ones may be empty."""
    limit_s = max([-(-seconds(tests) // count), *(one.seconds for one in tests)])
    while len(shares := fill(tests, limit_s)) > count:
        limit_s += 1
    return (*shares, *[()] * (count - len(shares)))


def commits() -> int:
    """How many commits lead to this one: 1 in a shallow clone, 0 outside of git."""
    words = ["git", "-C", str(ROOT), "rev-list", "--count", "HEAD"]
    told = subprocess.run(words, check=False, capture_output=True, text=True).stdout
    return int(told or 0)


def numbered(text: str) -> tuple[int, int]:
    """Read ``i/N`` with 1 <= i <= N."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share; wanted: i/N with 1 <= i <= N")
    return int(number), int(count)


def commands(share: Share) -> list[list[str]]:
    """What runs a share: the lab where it is needed, and it and nova's test bed in processes of their own.

    A test that hangs is ended after four times what the longest is known to take.
    """
    timeout_s = max([SHORTEST_TIMEOUT_S, *(4 * one.seconds for one in share)])
    words = [sys.executable, "-m", "pytest", "-v", "--long", "--durations=10"]
    words += ["-o", f"timeout={timeout_s}"]
    tests = [one.test for one in share]
    in_nova = [test for test in tests if test.startswith(IN_NOVA)]
    on_the_lab = [test for test in tests if test.startswith(ON_THE_LAB)]
    others = [test for test in tests if not test.startswith((IN_NOVA, ON_THE_LAB))]
    started = []
    if others:
        started += [[sys.executable, "-m", "tests.reachable", *words, *others]]
    if on_the_lab:
        started += [[str(LAB), "up"], [*words, *on_the_lab]]
    if in_nova:
        started += [[*words, *in_nova]]
    return started


def chosen(asked: tuple[int, int] | None, *, rotating: bool) -> tuple[str, Share]:
    """Pick a share, and say which it is.

    :param asked: i of N; None for all tests, or for the turn of this commit when rotating
    :param rotating: only tests that are short enough for ``make test``
    :raises ValueError: when shares of that number take too long
    """
    kind = "rotating" if rotating else "long"
    limit_s = budget.load()["shares"][f"{kind}_s"]
    tests = tuple(one for one in load() if one.seconds <= limit_s)
    enough = len(fill(tests, limit_s))
    number, count = asked or ((commits() % enough + 1, enough) if rotating else (1, 1))
    shares = cut(tests, count)
    if asked and max(map(seconds, shares)) > limit_s:
        raise ValueError(
            f"a share takes more than {budget.clock(limit_s)}; N must be {enough} at least"
        )
    share = shares[number - 1]
    told = f"long tests, share {number}/{count}: {len(share)}, about {budget.clock(seconds(share))} minutes"
    return f"{told}; again: make test-{kind} SHARD={number}/{count}", share


def main(arguments: Sequence[str]) -> int:
    """``python -m tests.long [--rotating] [i/N]``: the exit status is 0 when all tests passed."""
    parser = argparse.ArgumentParser(prog="tests.long", description=__doc__)
    parser.add_argument("share", nargs="?", type=numbered, help="i/N: the i-th of N shares")
    parser.add_argument(
        "--rotating", action="store_true", help="of the tests short enough for `make test`"
    )
    try:
        options = parser.parse_args(arguments)
        told, share = chosen(options.share, rotating=options.rotating)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write(f"{told}\n")
    sys.stdout.flush()
    failed = [words for words in commands(share) if subprocess.run(words, check=False).returncode]
    sys.stdout.write(f"{told}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
