# SPDX-License-Identifier: Apache-2.0
"""PoCL with our fixes: a server that dies is an error and never a wrong number, and slices hold to the byte.

Each test fails with PoCL as Debian has it, or without the layer of slices.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from host_agent.transports import pocl_probe
from host_agent.transports.pocl import FIXED
from tests.support.built_pocl import built_pocl, cached_pocl
from tests.support.pocl_server import FAILED, HANGS_S, pocl_server
from tests.support.polling import until

MIB = 1 << 20
LOST_S = 10.0
BUFFERS = 3_000
SESSIONS = 20
INTERRUPTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
static int each(int result)
{
  static int calls;
  if (__atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) % 7 != 0)
    return result;
  errno = EINTR;
  return -1;
}
int poll(struct pollfd *fds, nfds_t count, int timeout)
{
  int (*real)(struct pollfd *, nfds_t, int) = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
  int interrupted = each(0);
  return interrupted ? interrupted : real(fds, count, timeout);
}
"""


@pytest.fixture
def server(tmp_path, request):
    pocl = built_pocl() if request.node.get_closest_marker("long") else cached_pocl()
    with pocl_server(pocl, tmp_path) as found:
        yield found


def lost(server, client):
    """A client's server is killed; it ends with an error, soon, and says no wrong number."""
    server.process.kill()
    begun_s = time.monotonic()
    said, why = client.communicate(timeout=HANGS_S)
    assert client.returncode == FAILED, (client.returncode, said, why)
    assert "OpenCL error" in why
    assert time.monotonic() - begun_s < LOST_S


def test_a_killed_server_is_an_error_and_no_wrong_number(server):
    lost(server, server.working("-t", 60))


@pytest.mark.long
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2])
def test_whenever_it_is_killed(tmp_path, after_s):
    """While a client opens it, builds a program, allocates, and works on 16 MiB."""
    with pocl_server(built_pocl(), tmp_path) as server:
        client = server.client("-t", 60, "-m", 16)
        time.sleep(after_s)
        server.process.kill()
        said, why = client.communicate(timeout=HANGS_S)
        assert client.returncode == FAILED, (client.returncode, said, why)


def test_results_are_right_and_devices_are_as_large_as_the_slice(server):
    assert server.says("-t", 0.3)["rounds"] > 0
    assert server.says()["read_16mib"] > 1
    counted = server.counted()
    assert (counted["limit"], counted["objects"]) == (200 * MIB, 0)
    assert counted["busy_ns"] > 1_000_000
    assert server.says("-a", 201 * MIB, "-n", 1)["taken"] == 0


def test_a_slice_holds_to_the_byte(server):
    holds = server.working("-a", 10 * MIB, "-n", 19, "-t", 30)
    assert server.counted()["held"] == 190 * MIB
    assert server.says("-a", 10 * MIB + 1, "-n", 1)["taken"] == 0
    assert server.says("-a", 10 * MIB, "-n", 2)["taken"] == 1
    holds.kill()
    until(lambda: server.counted()["held"] == 0, LOST_S)
    assert server.says("-a", 100 * MIB, "-n", 4) == {"taken": 2, "error": -5}
    assert server.counted()["peak"] == 200 * MIB


def test_programs_of_one_lease_do_not_see_each_others_end(server):
    """F-002-42, 43: what a program held is free when it has ended, be it killed; the other's numbers are right."""
    other = server.working("-t", 2)
    killed = server.working("-t", 60)
    assert server.counted()["objects"] == 2
    killed.kill()
    said, why = other.communicate(timeout=HANGS_S)
    assert other.returncode == 0, why
    assert json.loads(said.splitlines()[-1])["rounds"] > 0
    until(lambda: server.counted()["objects"] == 0, LOST_S)
    assert server.counted()["held"] == 0


@pytest.mark.long
def test_bandwidth_is_said_for_each_size(server):
    """F-002-48."""
    said, why = server.client("-s").communicate(timeout=HANGS_S)
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line["bytes"] for line in lines] == [2 * 8**k for k in range(9)], why
    rates = [min(line["write_mb_s"], line["read_mb_s"]) for line in lines]
    assert rates[0] < rates[4] < max(rates[6:])


@pytest.mark.long
def test_ten_thousand_buffers_of_a_byte_are_bound_by_their_number(server):
    """A list of the client that grows twice is where PoCL's own goes on in memory of others."""
    assert server.says("-a", 1, "-n", BUFFERS) == {"taken": BUFFERS, "error": 0}
    until(lambda: server.counted()["objects"] == 0, LOST_S)
    found = server.says("-a", 1, "-n", 10_000)
    assert (found["taken"], found["error"]) == (8192, -5)
    until(lambda: server.counted()["objects"] == 0, LOST_S)
    assert server.says("-t", 0.1)["rounds"] > 0


@pytest.mark.long
def test_nothing_is_left_of_programs_that_have_ended(server):
    def left():
        proc = Path("/proc", str(server.process.pid))
        return len(list((proc / "task").iterdir())), len(list((proc / "fd").iterdir()))

    server.says("-t", 0.01)
    pocl_probe.devices(server.port)
    time.sleep(1.0)
    before = left()
    begun_s = time.monotonic()
    for _ in range(SESSIONS):
        assert pocl_probe.devices(server.port) == 1
    assert time.monotonic() - begun_s < SESSIONS * 0.5, "nobody waits for the end of another"
    until(lambda: left() <= before, LOST_S)


def test_a_client_without_the_fixes_gets_no_session(server):
    assert pocl_probe.devices(server.port, mark=0) is None
    assert pocl_probe.devices(server.port) == 1


def test_a_message_that_is_longer_than_any_is_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), LOST_S) as client:
        with suppress(ConnectionError):
            client.sendall(struct.pack("<I", 1 << 20) + bytes(1 << 20))
        with suppress(ConnectionError):
            assert client.recv(1) == b""
    assert pocl_probe.devices(server.port) == 1
    assert server.process.poll() is None


@pytest.mark.long
def test_a_server_goes_on_after_signals(tmp_path):
    """As after a checkpoint: each seventh poll() ends with EINTR."""
    (tmp_path / "eintr.c").write_text(INTERRUPTED)
    library = tmp_path / "eintr.so"
    words = ["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "eintr.c", "-ldl"]
    subprocess.run(words, check=True)
    with pocl_server(built_pocl(), tmp_path, more={"LD_PRELOAD": str(library)}) as server:
        assert server.says("-t", 0.3)["rounds"] > 0
        os.kill(server.process.pid, signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGCONT)
        assert server.says("-t", 0.1)["rounds"] > 0


def test_what_was_built_says_that_it_is_fixed():
    pocl = cached_pocl()
    ran = subprocess.run([pocl.server, "--version"], capture_output=True, text=True, check=True)
    assert FIXED in ran.stdout


def test_a_server_without_its_slice_serves_nobody(tmp_path):
    """The loader of OpenCL goes on without a layer that it cannot use."""
    more = {"OPENCL_LAYERS": "/not there"}
    with (
        pytest.raises(AssertionError, match="not so after"),
        pocl_server(cached_pocl(), tmp_path, more=more, starts_s=2.0) as server,
    ):
        pytest.fail(f"it serves at {server.port}")
    assert pocl_probe.counters(str(tmp_path)) is None
