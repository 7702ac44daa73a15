# SPDX-License-Identifier: Apache-2.0
"""A transport whose server says what it sees: a script that evaluates the lines it gets."""

import sys
from pathlib import Path

SPY = """
import contextlib, ctypes, os, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def failed(result):
    return os.strerror(ctypes.get_errno()) if result else "done"
def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name + ":"))
def states():
    return [open(f"/proc/{each}/stat").read().rpartition(")")[2].split()[0]
            for each in os.listdir("/proc") if each.isdecimal()]
def orphans(count):
    # each child leaves a grandchild to init, which ends at once
    for _ in range(count):
        subprocess.run([sys.executable, "-I", "-S", "-c", "import os; os._exit(0 if os.fork() else 0)"])
def forks(count):
    # How many children there can be at once; they stay.
    found = []
    with contextlib.suppress(BlockingIOError):
        while len(found) < count:
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            found.append(child)
    return len(found)
def is_open(number):
    return os.path.exists(f"/proc/self/fd/{number}")
def fills(place):
    # What can be written there, in MiB and in files.
    written = 0
    with contextlib.suppress(OSError), open(f"{place}/large", "wb", buffering=0) as file:
        while True:
            written += file.write(bytes(1 << 20))
    os.remove(f"{place}/large")
    files = 0
    with contextlib.suppress(OSError):
        while True:
            open(f"{place}/{files}", "w").close()
            files += 1
    for each in range(files):
        os.remove(f"{place}/{each}")
    return written >> 20, files
def escape():
    # As a daemon does: no file, no session, no parent of before.
    if os.fork():
        return True
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 4096)
    time.sleep(600)
    os._exit(0)
def serve(client):
    with client, contextlib.suppress(ConnectionError):
        for line in client.makefile("r"):
            try:
                answer = repr(eval(line))
            except Exception as error:
                answer = repr(f"{type(error).__name__}: {error}")
            client.sendall(answer.encode() + b"\\n")
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""
DECLARED = """
name = "spy"
apis = ["cuda"]
slices = "advisory"
[server]
argv = ["{python}", "-I", "-S", "{script}", "{{port}}"]
environment = {{ HOME = "{{folder}}", SEEN = "{{gpu}}" }}
paths = ["{script}"]
[guest.environment]
SPY = "{{endpoints}}"
"""


def write_spy(folder: Path) -> None:
    """Declare the transport ``spy`` in a folder."""
    script = folder / "spy.py"
    script.write_text(SPY)
    (folder / "spy.toml").write_text(DECLARED.format(python=sys.executable, script=script))
