# SPDX-License-Identifier: Apache-2.0
"""The table of privileged operations, what a dry run makes of it, and what travels to the helper and back."""

import inspect
import tracemalloc
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from host_agent.machine.privileged import frames, wire
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.seam import read_only
from host_agent.machine.privileged.table import Way
from host_agent.model.partition import Membership, RdtChange, RdtState, Write, WriteKind
from host_agent.model.process import (
    Look,
    MoveLimits,
    Pin,
    PinFailure,
    Process,
    Role,
    Target,
    Thread,
)
from host_agent.model.rdt import (
    Actual,
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    Capabilities,
    GroupState,
)
from placement_traits.errors import InvalidValueError
from tests.support.hostile_input import MOST_GROWTH


def test_the_table_and_what_the_agent_may_ask_are_the_same() -> None:
    """mypy sees that each operation is there, this also that none is forgotten and that the helper's shapes agree."""
    asked = {name for name in vars(Privileged) if not name.startswith("_")}
    assert set(OPERATIONS) == asked
    for name, operation in OPERATIONS.items():
        hints = get_type_hints(getattr(Privileged, name))
        assert operation.result == hints.pop("return"), name
        assert operation.arguments == tuple(hints.values()), name
        assert list(operation.shape.parameters) == list(hints), name


class Recorder:
    """Stands for the real operations; remembers what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, arguments))


def test_a_dry_run_reads_and_foretells_but_never_writes() -> None:
    real = Recorder()
    way = read_only(real)  # type: ignore[arg-type]  # a stand-in
    way.process("a")
    way.limit_cpu_time(levels=[("a", 50)], write=True)
    way.reset_partitions(True)

    assert way.pin("a", [Pin(1, "0")]) == ()
    assert way.move_memory("a", [], MoveLimits(1, 0, 1.0)).over
    assert way.throttle([]) == ()
    way.in_control()
    way.graceful_shutdown()

    assert real.calls == [
        ("process", ("a",)),
        ("limit_cpu_time", ([("a", 50)], False)),
        ("reset_partitions", (False,)),
    ]


def test_what_an_operation_is_told_last_is_whether_to_write_where_it_can_foretell() -> None:
    """A dry run replaces the last argument, so it must be that one."""
    for name, operation in OPERATIONS.items():
        parameters = list(inspect.signature(getattr(HostOperations, name)).parameters)
        assert ("write" in parameters) == (parameters[-1] == "write"), name
        assert list(operation.shape.parameters) == parameters[1:], name


def test_arguments_that_do_not_fit_are_refused_before_anything_is_called() -> None:
    way = Way(OPERATIONS, lambda operation, _arguments: pytest.fail(operation.name))
    with pytest.raises(TypeError):
        way.pin("a")  # type: ignore[attr-defined]  # made of the table


CAPABILITIES = Capabilities(
    (CacheControl("L3", 0xFFF, 1, 0xC00, 8, (0, 1), False),),
    BandwidthControl(10, 100, 10, True, None, 8, BandwidthUnit.PERCENT, (0, 1)),
)


ACTUAL = Actual(
    (
        GroupState("", "shareable", {"L3": {0: 0xFFF}, "MB": {0: 100}}, ("theirs",)),
        GroupState("numa_ext-be-0", "shareable", {"L3": {0: 0xFF0}}),
    )
)
CHANGE = RdtChange(
    ACTUAL,
    (
        Write(WriteKind.MOVE_THREADS, "numa_ext-be-0", "numa_ext-vm-a", target="numa_ext-be-1"),
        Write(WriteKind.SCHEMATA, "", schemata={"L3": {0: 1}}, before={"L3": {0: 3}}),
    ),
    (Membership("11111111-aaaa-4000-8000-000000000001", "numa_ext-be-0"),),
    {"L3": {0: 0xFFF}},
)


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (RdtState, RdtState(CAPABILITIES, ACTUAL, None)),
        (RdtState, RdtState(Capabilities(), ACTUAL, {})),
        (RdtChange, CHANGE),
        (Process, Process(7, 1, "0-1", (Thread(7, Role.EMULATOR, -1, "qemu", "0"),))),
        (tuple[PinFailure, ...], (PinFailure(1, "no"),)),
        (Target, Target(0, 4096, ((0, 0.25), (1, 0.75)))),
        (Capabilities, CAPABILITIES),
        (Mapping[str, Mapping[int, int]], {"L3": {0: 0xF, 1: 0xF0}}),
        (Capabilities | None, None),
        (frozenset[int], frozenset({1, 2})),
        (MoveLimits, MoveLimits(1, 0, 60)),  # a whole number where seconds may be a fraction
    ],
)
def test_what_travels_arrives_as_it_was(shape: Any, value: object) -> None:
    message = frames.pack(wire.encode(value))
    plain = frames.unpack(message[4:])  # behind its length
    assert wire.decode(shape, plain) == value


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (Pin, ("1", "0")),
        (Pin, (1,)),
        (Pin, (1, "0", "more")),
        (Pin, "10"),
        (int, True),
        (tuple[tuple[int, int], ...], ((1, 2, 3),)),
        (BandwidthUnit, "furlongs"),
        (str | None, 3),
    ],
)
def test_what_has_another_shape_is_refused(shape: Any, value: object) -> None:
    with pytest.raises(InvalidValueError):
        wire.decode(shape, value)


def test_of_what_is_refused_the_beginning_is_written_only() -> None:
    """A message may have 1 MiB: to write all of it as text would take longer than to refuse it."""
    written: list[int] = []

    class Noted:
        def __repr__(self) -> str:
            written.append(1)
            return "x"

    with pytest.raises(InvalidValueError, match=r"\[x, x"):
        wire.decode(int, [Noted() for _ in range(10_000)])
    assert len(written) < 100


@pytest.mark.parametrize("part", [b"{},", b"[],", b"[0,1],", b"0.5,", b'"",', b"99999,"])
def test_the_longest_message_needs_less_memory_than_the_helper_may_grow_by(part: bytes) -> None:
    """Measured before: 88 MB for the 4 MiB that a message could have."""
    count = (frames.MOST_BYTES - 3) // len(part)
    message = b"[" + part * count + b"0]"
    tracemalloc.start()
    try:
        frames.unpack(message)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MOST_GROWTH / 1.5


def test_what_is_no_plain_value_does_not_travel() -> None:
    with pytest.raises(InvalidValueError):
        wire.encode(object())


def test_what_a_message_can_hold_is_not_taken_apart() -> None:
    """A round has thousands of such fields: half of the helper's time was taking them apart, one by one."""
    threads = (Thread(7, Role.EMULATOR, -1, "qemu", "0"),)
    looks = (Look(Process(7, 1, "0-1", threads), ((0, 500),)), Look(problem="gone"))
    assert all(sent is look for sent, look in zip(wire.encode(looks), looks, strict=True))
    assert wire.encode(CAPABILITIES) != CAPABILITIES, "a dataclass is"
