# SPDX-License-Identifier: Apache-2.0
"""Progress for people on a terminal and for plain CI logs: what, how long, how long it usually takes.

On a terminal one line at the bottom shows the steps that run now; finished steps scroll above it. In a plain log a
step that is not known to be short announces itself when it begins, and again as long as it lasts, so that a hanging
one can be named.
"""

import contextlib
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from .errors import LabError

_SHORT_S = 3.0
_REDRAW_S = 0.5
_REMIND_S = 30.0


class Progress:
    """Reports steps, also several at once from different threads.

    :param stream: where to write (standard output of the lab program).
    :param timings: JSON file with the seconds each step took last time; None: no expectations.
    :param prefix: put before each line, for a part that runs side by side with others ("h1: ").
    """

    def __init__(
        self, stream: TextIO | None = None, timings: Path | None = None, prefix: str = ""
    ) -> None:
        self._board = _Board(stream or sys.stdout, timings)
        self._prefix = prefix

    def part(self, prefix: str) -> "Progress":
        """The same progress with a prefix of its own: lines of parallel parts stay apart."""
        child = Progress.__new__(Progress)
        child._board = self._board
        child._prefix = f"{self._prefix}{prefix}: "
        return child

    @contextlib.contextmanager
    def step(self, what: str, log: Path | None = None) -> Iterator[None]:
        """A step of the work; an error in it is reported with its time and goes on as it is.

        :param what: what is done, in a few words; also the key of its expected time.
        :param log: the log to show if it fails with a LabError that names none.
        """
        title = self._prefix + what
        self._board.begin(title)
        try:
            yield
        except LabError as error:
            error.log = error.log or log
            self._board.end(title, "FAILED")
            raise
        except BaseException:
            self._board.end(title, "FAILED")
            raise
        self._board.end(title, "ok")

    def note(self, text: str) -> None:
        """A line of its own."""
        self._board.print(self._prefix + text)

    def close(self) -> None:
        """Save the times for the next run and clear the live line."""
        self._board.close()


class _Board:
    """The shared screen: which steps run since when, drawn under one lock."""

    def __init__(self, stream: TextIO, timings: Path | None) -> None:
        self._stream = stream
        self._timings = timings
        self._known_s = _read_timings(timings)
        self._running: dict[str, float] = {}
        self._lock = threading.Lock()
        self._live = stream.isatty()
        self._painter: threading.Thread | None = None
        self._closed = threading.Event()

    def begin(self, title: str) -> None:
        with self._lock:
            self._running[title] = time.monotonic()
            expected_s = self._known_s.get(title)
            self._start_painter()
            if self._live:
                self._paint()
            elif expected_s is None or expected_s > _SHORT_S:
                hint = f" (usually {expected_s:.0f} s)" if expected_s else ""
                self._write(f"  ...    {title}{hint}\n")

    def end(self, title: str, outcome: str) -> None:
        with self._lock:
            elapsed_s = time.monotonic() - self._running.pop(title)
            if outcome == "ok":
                self._known_s[title] = elapsed_s
            self._line(f"  {outcome:6} {title:58} {elapsed_s:6.1f} s")

    def print(self, text: str) -> None:
        with self._lock:
            self._line(text)

    def close(self) -> None:
        self._closed.set()
        if self._painter is not None:
            self._painter.join()
        with self._lock:
            if self._live:
                self._write("\r\033[K")
        if self._timings is not None and self._timings.parent.is_dir():
            draft = self._timings.with_suffix(".new")
            draft.write_text(
                json.dumps({k: round(v, 2) for k, v in sorted(self._known_s.items())}, indent=1)
            )
            draft.replace(self._timings)

    def _line(self, text: str) -> None:
        self._write(f"\r\033[K{text}\n" if self._live else f"{text}\n")
        if self._live:
            self._paint()

    def _paint(self) -> None:
        parts = self._parts()
        self._write("\r\033[K" + ("  ...    " + " | ".join(parts))[:118] if parts else "\r\033[K")

    def _remind(self) -> None:
        self._write(f"  ...    still: {' | '.join(self._parts())}\n")

    def _parts(self) -> list[str]:
        """The steps that run, each with its seconds so far and, where they are known, the usual ones."""
        now = time.monotonic()
        parts = []
        for title, since in self._running.items():
            so_far_s, expected_s = now - since, self._known_s.get(title)
            if expected_s is None:
                parts.append(f"{title} {so_far_s:.0f} s")
            elif so_far_s > expected_s:
                parts.append(f"{title} {so_far_s:.0f} s (usually {expected_s:.0f})")
            else:
                parts.append(f"{title} {so_far_s:.0f}/{expected_s:.0f} s")
        return parts

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _start_painter(self) -> None:
        if self._painter is None:
            self._painter = threading.Thread(target=self._keep_painting, daemon=True)
            self._painter.start()

    def _keep_painting(self) -> None:
        while not self._closed.wait(_REDRAW_S if self._live else _REMIND_S):
            with self._lock:
                if self._running and self._live:
                    self._paint()
                elif self._running:
                    self._remind()


def last_lines(path: Path, count: int = 20) -> list[str]:
    """The last ``count`` lines of a log file; empty if it does not exist."""
    try:
        with path.open(errors="replace") as stream:
            return [line.rstrip("\n") for line in deque(stream, maxlen=count)]
    except FileNotFoundError:
        return []


def report_failure(error: LabError, retry: str | None, stream: TextIO) -> None:
    """Say what failed, show the end of the log that matters and the one command to retry, if that may help."""
    stream.write(f"\nerror: {error}\n")
    if error.log is not None:
        lines = last_lines(error.log)
        stream.write(f"\nlast lines of {error.log}:\n" + "".join(f"  | {line}\n" for line in lines))
    if retry is not None:
        stream.write(f"\nto try again: {retry}\n")
    stream.flush()


def _read_timings(path: Path | None) -> dict[str, float]:
    if path is None or not path.is_file():
        return {}
    try:
        return {str(k): float(v) for k, v in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError):
        # Expected times are a convenience: an unreadable file only means none are known.
        return {}
