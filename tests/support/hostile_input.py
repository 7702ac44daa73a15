# SPDX-License-Identifier: Apache-2.0
"""Hostile input: whatever stands in a text from outside, its reader uses it or refuses it in one sentence.

A :class:`Kind` of input is some that are good, and the function that reads them. Inputs are made of the good ones:
their words are replaced, repeated, cut off and mixed with those of others and with words that have broken readers
before. A reader may raise what it documents; what it raises, logs or returns to be shown is one printable line of
bounded length. No input takes long, and none makes the process grow.

The seed of a run is printed, and ``NUMA_EXT_SEED`` repeats it. Input number *n* of a kind depends on the seed and *n*
only, so that a long run begins with the inputs of a short one.
"""

import gc
import logging
import os
import random
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from placement_traits.errors import NumaExtError

LONGEST_S: Final = 1.0
LONGEST_SENTENCE: Final = 8192
MOST_GROWTH: Final = 50 << 20
_MOST_OCTETS: Final = 1 << 17
_ROOM: Final = 4 << 30
_PACKAGES: Final = frozenset({"host_agent", "nova_numa_ext", "placement_traits"})
_HANGS_S: Final = 20.0
CHUNK: Final = 200
_TOKEN: Final = re.compile(rb"[A-Za-z_]+|[0-9]+|\s+|[^A-Za-z0-9_\s]")
_WORDS: Final = (
    *(b"", b" ", b"\n", b"\r", b"\t", b"\0", b"\x1b[31m", b"\xff", b"\xed\xa0\x80", b"\xc2\x85"),
    *(text.encode() for text in ("\u2028", "\u202e", "\u0663", "\u00e9", "\U0001f600")),
    *(b"0", b"-1", b"1", b"1.5", b"1e999", b"-1e999", b"NaN", b"Infinity", b"0x", b"2026-13-45"),
    *(str(1 << bits).encode() for bits in (15, 16, 31, 32, 63, 64, 128)),
    *(b"9" * 400, b"9" * 5000, b"x" * 5000, b"0-65535", b"0-99999999999", b"^0", b"1-0"),
    *(b"null", b"true", b"[]", b"{}", b'""', b"[", b"{", b"}", b"]", b'"', b"'", b"\\", b","),
    *(b"<", b">", b"&", b"&#0;", b"<!--", b"<a/>", b"=", b":", b";", b"%s", b"%(x)s", b"$", b"${"),
    *(b"#", b"*", b"&a", b"*a", b"|", b"!", b"..", b"../../etc/passwd", b"/", b"-", b"_", b"."),
)
_VALUES: Final = (
    *(b"0", b"-1", b"1", b"1.5", b"7", b"1e999", b"-1e999", b"1e308", b"NaN"),
    *(b"9" * 400, b"9" * 5000, *(str(1 << bits).encode() for bits in (15, 16, 31, 32, 63, 64))),
    *(b"null", b"true", b"false", b"[]", b"[[]]", b"[null]", b"{}", b'{"a": {}}', b'""', b'"x"'),
    *(b"[" * 400 + b"]" * 400, b'{"a":' * 400 + b"1" + b"}" * 400),
)
_REPEATS: Final = (2, 2, 3, 10, 100, 1000, 30_000)

Tokens = list[bytes]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input.

    :param name: what users call it
    :param good: inputs that are used; the more of the language is in them, the more is tried
    :param read: the function under test; what it returns is shown to people, so it is one sentence, too
    :param refusals: errors that it documents
    :param cost: how many times as long as of most kinds one input takes: so many fewer are tried
    """

    name: str
    good: tuple[bytes, ...]
    read: Callable[[bytes], str | None]
    refusals: tuple[type[Exception], ...] = (NumaExtError,)
    cost: int = 1


def seed() -> int:
    """Return the seed of this run, and print it."""
    found = int(os.environ.get("NUMA_EXT_SEED", time.time_ns() % 10**9))
    sys.stdout.write(f"NUMA_EXT_SEED={found}\n")
    return found


def inputs(kind: Kind, seed: int, count: int) -> Iterator[bytes]:
    """Yield the first ``count`` inputs of a kind."""
    good = [_TOKEN.findall(each) for each in kind.good]
    for number in range(count):
        chance = random.Random(f"{seed} {kind.name} {number}")
        tokens = list(chance.choice(good))
        for _change in range(chance.choice((1, 1, 1, 2, 2, 4, 8))):
            chance.choice(_CHANGES)(chance, tokens, good)
        data = b"".join(tokens)[:_MOST_OCTETS]
        yield data if chance.random() < 0.9 else _spoilt(chance, data)


def cuts(kind: Kind) -> Iterator[bytes]:
    """Yield each good input, and what is left of it when it ends at any byte before: a crash, a full disk."""
    for good in kind.good:
        yield from (good[:end] for end in range(len(good) + 1))


def _replace(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    tokens[_place(chance, tokens)] = chance.choice(_WORDS)


def _retype(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    """Put another value in place of a number: what is around it stays well formed."""
    numbers = [place for place, token in enumerate(tokens) if token.isdigit()]
    if numbers:
        tokens[chance.choice(numbers)] = chance.choice(_VALUES)


def _rename(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    """Put a word of another place in place of a word."""
    words = [place for place, token in enumerate(tokens) if token.isalpha()]
    others = [token for token in chance.choice(good) if token.isalpha()]
    if words and others:
        tokens[chance.choice(words)] = chance.choice(others)


def _mix(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    other = chance.choice(good)
    begin = _place(chance, other)
    place = _place(chance, tokens)
    tokens[place : place + 1] = other[begin : begin + chance.choice((1, 1, 1, 5, 50))]


def _insert(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    tokens.insert(_place(chance, tokens), chance.choice(_WORDS))


def _remove(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    begin = _place(chance, tokens)
    tokens[begin : begin + chance.choice((1, 1, 1, 5, 50))] = [b""]


def _repeat(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    begin = _place(chance, tokens)
    part = tokens[begin : begin + chance.choice((1, 1, 2, 5, 20))]
    times = min(chance.choice(_REPEATS), _MOST_OCTETS // (1 + sum(map(len, part))))
    tokens[begin:begin] = [b"".join(part) * times]


def _end(chance: random.Random, tokens: Tokens, good: list[Tokens]) -> None:
    del tokens[_place(chance, tokens) + 1 :]


_CHANGES: Final = (
    *(_retype, _retype, _retype, _retype, _rename, _rename),
    *(_replace, _replace, _mix, _insert, _remove, _repeat, _end),
)


def _place(chance: random.Random, tokens: Tokens) -> int:
    if not tokens:
        tokens.append(b"")
    return chance.randrange(len(tokens))


def _spoilt(chance: random.Random, data: bytes) -> bytes:
    place = chance.randrange(len(data) + 1)
    return data[:place] + chance.randbytes(1) + data[place + chance.choice((0, 1)) :]


def attack(kind: Kind, tried: Iterator[bytes]) -> None:
    """Let the function under test read the good inputs, which it must use, and then each of these.

    :raises AssertionError: naming the input, when one breaks what the module promises
    """
    for good in kind.good:
        kind.read(good)
    with watched() as (logged, grown):
        for number, data in enumerate(tried):
            try:
                _read(kind, data, logged)
                if number % CHUNK == CHUNK - 1:
                    assert grown() <= MOST_GROWTH, (
                        f"{grown()} octets more, by this one or some before"
                    )
            except BaseException as error:
                error.add_note(f"{kind.name}, input {number}, {len(data)} octets: {data[:3000]!r}")
                raise


def _read(kind: Kind, data: bytes, logged: list[logging.LogRecord]) -> None:
    told: list[str] = []
    begun = time.thread_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANGS_S)
    try:
        told.append(kind.read(data) or "nothing")
    except kind.refusals as error:
        told.append(str(error))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    took_s = time.thread_time() - begun
    assert took_s <= LONGEST_S, f"{took_s:.1f} s"
    check(told, logged)


def check(told: Iterable[str], logged: list[logging.LogRecord]) -> None:
    """Check that what is told, and what was logged meanwhile, are sentences; the records are taken."""
    for record in logged:
        assert record.exc_info is None, record.getMessage()
    sentences = [*told, *(record.getMessage() for record in logged)]
    logged.clear()
    for sentence in sentences:
        assert sentence.isprintable() and 0 < len(sentence) <= LONGEST_SENTENCE, sentence[:5000]


class _Records(logging.Handler):
    """What our packages log; libraries write as they like."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in _PACKAGES:
            self.found.append(record)


@contextmanager
def watched() -> Iterator[tuple[list[logging.LogRecord], Callable[[], int]]]:
    """Yield what is logged, and how much memory the process had more, at most, than at the beginning.

    No other handler gets what is logged: pytest's keep all of it, which grows by 50 MB in 34,000 inputs.
    """
    root, records = logging.getLogger(), _Records()
    others = root.handlers
    limits = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, _interrupt)
    root.handlers = [records]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): VmHWM begins again
    before = _status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") + _ROOM, limits[1]))
    try:
        yield records.found, lambda: _status("VmHWM") - before
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        root.handlers = others
        signal.signal(signal.SIGVTALRM, handler)


def _status(field: str) -> int:
    """Return a size of proc_pid_status(5) in octets."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"\n{field}:")[2].split(maxsplit=1)[0]) << 10


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"it was not done after {_HANGS_S} s")
