# SPDX-License-Identifier: Apache-2.0
"""The helper's wire: what it takes and refuses, over a real socket and message by message."""

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from host_agent.conf.helper import HelperOptions
from host_agent.conf.options import Options
from host_agent.conf.paths import HostPaths
from host_agent.conf.rdt import RdtOptions
from host_agent.machine.privileged import arguments, client, edition, server, wire
from host_agent.machine.privileged.edition import Edition, Succession
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.processes import ProcessGoneError
from host_agent.machine.privileged.table import Way
from host_agent.model import partition, process, rdt
from host_agent.model.process import GroupLevel, MoveLimits, Pin, Target
from placement_traits.errors import ConflictError, InvalidValueError, ServiceUnavailableError
from tests.support.descriptors import many_held

A = "aaaaaaaa-0000-4000-8000-000000000000"
LIMITS = MoveLimits(1, 0, 1.0)
OWN = Edition("7.0", "options")


@pytest.fixture
def operations(tmp_path: Path) -> HostOperations:
    (tmp_path / "pids").mkdir()
    return HostOperations(
        HostPaths(
            pid_dir=tmp_path / "pids",
            resctrl=tmp_path / "nothing",
            state=tmp_path,
            helper_state=tmp_path,
        ),
        release_after_s=60.0,
    )


def test_every_argument_and_every_field_of_a_shape_has_a_bound() -> None:
    assert set(arguments.BOUNDS) == set(OPERATIONS)
    for name, operation in OPERATIONS.items():
        assert len(arguments.BOUNDS[name]) == len(operation.arguments), name
    for shape, bounded in (
        (process.Pin, ("tid", "cpus")),
        (process.Target, ("start", "end", "shares")),
        (process.MoveLimits, arguments._LIMITS.checks),
        (process.GroupLevel, ("group", "mba_percent")),
        (partition.Write, arguments._WRITE.checks),
        (partition.Membership, arguments._MEMBER.checks),
        (partition.RdtChange, ("seen", "writes", "members", "root_found")),
        (rdt.Actual, arguments._SEEN.checks),
    ):
        assert set(get_type_hints(shape)) == set(bounded), shape


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda way: way.process("../../etc"), "process, uuid"),
        (lambda way: way.process(A.upper()), "a UUID in lower case"),
        (lambda way: way.look([(A, [(0, 4096)])], 4097), "look, pages: 4097"),
        (lambda way: way.look([(A, [(0, 4096)] * 1025)], 1), "look, servers, entries"),
        (lambda way: way.look([(A, [])] * 17, 1), "look, servers, entries"),
        (lambda way: way.look([(A, [(4096, 0)])], 1), "look, servers"),
        (lambda way: way.pin(A, [Pin(0, "0")]), "pin, pins.tid"),
        (lambda way: way.pin(A, [Pin(7, "0-99999")]), "CPUs below 8192"),
        (lambda way: way.pin(A, [Pin(7, "")]), "CPUs below 8192"),
        (lambda way: way.pin(A, [Pin(7, "0," * 8192 + "0-65535")]), "CPUs below 8192"),
        (lambda way: way.pin(A, [Pin(7, "0," * 8191 + "0,^1")]), "CPUs below 8192"),
        (lambda way: way.pin(A, [Pin(7, "0-8191")] * 513), "CPUs of all: 4202496"),
        (lambda way: way.move_memory(A, [Target(0, 4096, ((0, 2.0),))], LIMITS), "0 to 1"),
        (lambda way: way.move_memory(A, [Target(0, 4096, ())], LIMITS), "sum of shares"),
        (lambda way: way.move_memory(A, [], LIMITS._replace(seconds=61)), "limits.seconds"),
        (lambda way: way.throttle([GroupLevel("", ((0, 50),))]), "throttle, levels.group"),
        (lambda way: way.throttle([GroupLevel("operators", ((0, 50),))]), "numa_ext- and one word"),
        (lambda way: way.throttle([GroupLevel("numa_ext-/../x", ())]), "numa_ext- and one word"),
        (lambda way: way.throttle([GroupLevel("numa_ext-a", ((0, 0),))]), "1 to 100"),
        (lambda way: way.limit_cpu_time([(A, 101)], True), "1 to 100"),
        (lambda way: way.count([(A, (1 << 23,))], False), "count, threads"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_name(
    operations: HostOperations, call: Callable[[Any], object], words: str
) -> None:
    def asked(operation: Any, values: tuple[Any, ...]) -> Any:
        request = json.dumps([operation.name, *wire.encode(values)]).encode()
        kind, name, error = json.loads(server.answer(operations, request)[4:])
        assert (kind, name) == (server.REFUSED, "InvalidValueError")
        raise InvalidValueError(*error)

    with pytest.raises(InvalidValueError) as caught:
        call(Way(OPERATIONS, asked))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\xff",
        b"{}",
        b"[]",
        b"null",
        b'["in_control", 1]',
        b'["process"]',
        b'["process", 7]',
        b'["eval", "1"]',
        b'["__init__", "x"]',
        b'["process", NaN]',
        b'["look", [["a", [[0, 1]]]], 1e999]',
        b"[" * 100_000,
        b"9" * 10_000,
    ],
)
def test_garbage_is_one_refusal(operations: HostOperations, request_: bytes) -> None:
    kind, name, *_ = json.loads(server.answer(operations, request_)[4:])
    assert (kind, name) == (server.REFUSED, "InvalidValueError")


class Served:
    """A helper's server in a thread."""

    def __init__(self, operations: HostOperations, path: Path, users: set[int]) -> None:
        self.path = path
        self._stopped, (self._woken, self._wake) = threading.Event(), os.pipe()
        self._listening = server.listen(path)
        self._server = server.Server(self._listening, operations, users, Succession(OWN))
        arguments_ = (self._woken, self._stopped)
        self._thread = threading.Thread(target=self._server.run, args=arguments_, daemon=True)
        self._thread.start()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(str(self.path))
        return connection

    def stop(self) -> None:
        self._stopped.set()
        os.write(self._wake, b".")
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._listening.close()


@pytest.fixture
def serve(operations: HostOperations, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(users: set[int]) -> Served:
        made.append(Served(operations, tmp_path / "socket", users))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def test_results_and_errors_arrive_and_the_connection_stays(
    serve: Callable[..., Served], operations: HostOperations
) -> None:
    served = serve({os.geteuid()})
    way = client.over_socket(served.path)
    for _again in range(2):
        with pytest.raises(ProcessGoneError, match=f"runs domain {A}"):
            way.process(A)
        way.in_control()
    assert operations.dead_man_switch is not None
    assert operations.dead_man_switch.held
    way.graceful_shutdown()
    assert not operations.dead_man_switch.held


def test_a_helper_serves_beside_more_than_a_thousand_counters(
    serve: Callable[..., Served], operations: HostOperations
) -> None:
    """select(2) refuses descriptors from 1,024 on."""
    with many_held():
        client.over_socket(serve({os.geteuid()}).path).in_control()
    assert operations.dead_man_switch is not None
    assert operations.dead_man_switch.held


def test_another_user_is_not_served(serve: Callable[..., Served]) -> None:
    served = serve({os.geteuid() + 1})
    with pytest.raises(ServiceUnavailableError, match="the helper does not answer"):
        client.over_socket(served.path).in_control()


def test_a_message_that_is_too_long_is_refused_before_it_is_read(
    serve: Callable[..., Served],
) -> None:
    served = serve({os.geteuid()})
    with served.connect() as connection:
        connection.sendall(struct.pack("!I", (4 << 20) + 1))
        answer = connection.recv(1 << 16)
        assert b"length of a message" in answer
        assert connection.recv(1) == b"", "nothing after it could be understood"
    client.over_socket(served.path).in_control()


def test_a_client_that_goes_in_the_middle_leaves_the_others_alone(
    serve: Callable[..., Served],
) -> None:
    served = serve({os.geteuid()})
    for part in (
        b"",
        b"\0",
        struct.pack("!I", 100) + b"[",
        struct.pack("!I", 14) + b'["in_control"]',
    ):
        with served.connect() as connection:
            connection.sendall(part)
    client.over_socket(served.path).in_control()


def test_a_user_has_so_many_connections_and_no_more(serve: Callable[..., Served]) -> None:
    served = serve({os.geteuid()})
    held = [served.connect() for _ in range(server._CONNECTIONS_MAX)]
    try:
        for connection in held:
            connection.sendall(struct.pack("!I", 14) + b'["in_control"]')
            assert connection.recv(100)
        with served.connect() as another:
            assert another.recv(1) == b""
    finally:
        for connection in held:
            connection.close()


def test_a_client_for_whom_there_is_no_thread_is_refused_and_the_next_one_is_served(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the helper by a traceback, and with it the dead-man switch."""
    served = serve({os.geteuid()})

    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        for _each in range(2 * server._CONNECTIONS_MAX):
            with served.connect() as connection:
                assert connection.recv(1) == b""
    client.over_socket(served.path).in_control()


def test_a_helper_that_was_started_again_is_asked_again(
    operations: HostOperations, tmp_path: Path
) -> None:
    first = Served(operations, tmp_path / "socket", {os.geteuid()})
    way = client.over_socket(first.path)
    way.in_control()
    helper = client.Helper(first.path)
    helper.ask(OPERATIONS["in_control"], ())
    first.stop()
    assert helper._connection is not None
    helper._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does when the helper ends
    second = Served(operations, tmp_path / "socket", {os.geteuid()})
    helper.ask(OPERATIONS["in_control"], ())
    second.stop()


def test_without_a_helper_the_sentence_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnavailableError, match=r"numa-host-agent-helper\.socket"):
        client.over_socket(tmp_path / "none").in_control()


@pytest.mark.parametrize(
    ("throttle", "held"),
    [
        (lambda helper: helper.limit_cpu_time([(A, 50)], False), False),
        (lambda helper: helper.limit_cpu_time([], True), False),
        (lambda helper: helper.limit_cpu_time([(A, 50)], True), True),
        (lambda helper: helper.throttle([]), True),
    ],
)
def test_no_throttle_is_without_the_switch(
    operations: HostOperations, throttle: Callable[[HostOperations], object], held: bool
) -> None:
    """Also one that an agent has asked for that has gone since."""
    assert operations.dead_man_switch is not None
    throttle(operations)
    assert operations.dead_man_switch.held == held


def test_an_idle_helper_ends_when_its_socket_is_held_by_another_process(
    operations: HostOperations, tmp_path: Path
) -> None:
    woken, wake = os.pipe()
    with server.listen(tmp_path / "socket") as listening:
        server.Server(listening, operations, {0}, Succession(OWN), 0.05).run(
            woken, threading.Event()
        )
    for end in (woken, wake):
        os.close(end)


@pytest.mark.parametrize("changed", [Edition("8.0", "options"), Edition("7.0", "others")])
def test_a_helper_that_is_older_than_its_files_leaves_its_client_to_the_next(
    operations: HostOperations, tmp_path: Path, changed: Edition
) -> None:
    """As behind systemd's socket: the helper ends, and the next one answers what was asked."""
    woken, wake = os.pipe()
    listening = server.listen(tmp_path / "socket")
    ended: list[str] = []

    def start() -> None:
        for name, own in (("old", OWN), ("new", changed)):
            succession = Succession(own, lambda: changed)
            server.Server(listening, operations, {os.geteuid()}, succession).run(woken, stopped)
            ended.append(name)

    stopped = threading.Event()
    running = threading.Thread(target=start, daemon=True)
    running.start()
    way = client.over_socket(tmp_path / "socket", changed)
    way.in_control()
    way.in_control()
    assert ended == ["old"]
    stopped.set()
    os.write(wake, b".")
    running.join(20)
    assert ended == ["old", "new"]
    listening.close()
    for end in (woken, wake):
        os.close(end)


def test_root_asks_nobody_where_a_helper_of_other_options_ends_and_none_follows(
    operations: HostOperations, tmp_path: Path
) -> None:
    """As of a supervisor that has ended without its helper; then the command's configuration was changed."""
    path = tmp_path / "socket"
    changed = Edition("7.0", "others")
    woken, wake = os.pipe()
    assert not client.serves(path, OWN)
    listening = server.listen(path)
    succession = Succession(OWN, lambda: changed)
    serving = server.Server(listening, operations, {os.geteuid()}, succession)

    def run() -> None:
        serving.run(woken, threading.Event())
        listening.close()

    running = threading.Thread(target=run, daemon=True)
    running.start()
    assert client.serves(path, OWN)
    assert not client.serves(path, changed)
    running.join(20)
    assert not client.serves(path, OWN)
    for end in (woken, wake):
        os.close(end)


def test_a_helper_that_refuses_its_client_serves(serve: Callable[..., Served]) -> None:
    """So that the first operation says why, instead of root working beside it."""
    assert client.serves(serve({os.geteuid()}).path, Edition("6.0", "options"))


def test_a_process_of_another_release_is_told_what_to_restart(
    serve: Callable[..., Served],
) -> None:
    served = serve({os.geteuid()})
    for _again in range(2):
        with pytest.raises(ConflictError, match=r"of release 7\.0, .* release 6\.0: restart"):
            client.over_socket(served.path, Edition("6.0", "options")).in_control()
    client.over_socket(served.path, Edition("7.0", "of an agent before SIGHUP")).in_control()


def test_files_that_cannot_be_read_again_end_no_helper(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Edition:
        raise InvalidValueError("[rdt]backend", "x", "resctrl or pqos")

    succession = Succession(OWN, broken)
    assert succession.meet(Edition("7.0", "others"))
    assert not succession.over
    assert "[rdt]backend" in caplog.text


def test_what_the_helper_uses_is_in_the_digest_and_nothing_else() -> None:
    own = edition.of(Options())
    for other in (
        Options(rdt=RdtOptions(full_bandwidth_mbps=4096)),
        Options(rdt=RdtOptions(release_after_s=999.0)),
        Options(helper=HelperOptions(agent_user="other")),
    ):
        assert edition.of(other) != own
    assert edition.of(Options(rdt=RdtOptions(verify_s=999.0))) == own
