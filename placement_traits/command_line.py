# SPDX-License-Identifier: Apache-2.0
"""What all commands of ours have in common on their command lines: ``--version``, numbers with bounds, and how one
starts another.
"""

import argparse
import math
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final, TypeVar

_Number = TypeVar("_Number", int, float)

DISTRIBUTION: Final = "nova-numa-ext"
# The working directory of what root starts: only root writes there.
SAFE_FOLDER: Final = "/"


def version() -> str:
    """Return the version that is installed, as every command shows it."""
    return metadata.version(DISTRIBUTION)


def module(name: str, *words: str) -> tuple[str, ...]:
    """Return the command line that runs a module of ours with this interpreter.

    Without ``-P`` the interpreter takes modules of the working directory first: in /tmp, root would run those of
    another user.
    """
    return (sys.executable, "-P", "-m", name, *words)


class _ShowVersion(argparse.Action):
    """Reads the version only when it is asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            nargs=0, default=argparse.SUPPRESS, help="show the version and end", **options
        )

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> None:
        sys.stdout.write(f"{version()}\n")
        parser.exit()


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add ``--version``."""
    parser.add_argument("--version", action=_ShowVersion)


def whole_from(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number in bounds, for ``type=`` of argparse."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = least - 1
        return _in_bounds(found, least, most, text, "a whole number")

    return read


def number_from(least: float, most: float) -> Callable[[str], float]:
    """Return what reads a number in bounds, for ``type=`` of argparse."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        return _in_bounds(found, least, most, text, "a number")

    return read


def _in_bounds(found: _Number, least: _Number, most: _Number, text: str, what: str) -> _Number:
    if not least <= found <= most:
        raise argparse.ArgumentTypeError(
            f"{text} is not allowed; allowed: {what} from {least:.15g} to {most:.15g}"
        )
    return found
