# SPDX-License-Identifier: Apache-2.0
"""A lease's server that has a state: memory, and a chain of digests over all that it was ever sent.

Each answer depends on all before it and on the memory, so that a client which keeps the same chain sees any byte that
is lost, doubled or other, and a server that began anew.
"""

import hashlib
import socket
import struct
from pathlib import Path

BLOCK = 4096
NAME = "counting"
_DECLARED = """
name = "counting"
apis = ["cuda"]
slices = "advisory"
[server]
argv = ["/usr/bin/python3", "-I", "-S", "{script}", "{{port}}", "{mib}"]
environment = {{ HOME = "{{folder}}" }}
paths = ["{script}"]
[guest.environment]
COUNTING = "{{endpoints}}"
"""
_SCRIPT = """
import hashlib, socket, struct, sys, threading
memory = bytearray(bytes(range(256)) * 4096) * int(sys.argv[2])
blocks, state, turn = len(memory) // 4096, b"", threading.Lock()
def answer(word):
    global state
    with turn:
        at = int.from_bytes(hashlib.sha256(state + word).digest()[:8], "big") % blocks * 4096
        state = hashlib.sha256(state + word + memory[at:at + 4096]).digest()
        memory[at:at + 32] = state
        return state
def serve(client):
    with client:
        while word := client.recv(8, socket.MSG_WAITALL):
            client.sendall(answer(word))
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


def write_counting(folder: Path, mib: int = 4) -> None:
    """Declare the transport ``counting`` in a folder: its server has so many MiB."""
    script = folder / "counting.py"
    script.write_text(_SCRIPT)
    (folder / f"{NAME}.toml").write_text(_DECLARED.format(script=script, mib=mib))


class Chain:
    """A client that knows what the server has to answer.

    :param mib: of the server's memory
    """

    def __init__(self, mib: int = 4) -> None:
        self._memory = bytearray(bytes(range(256)) * 4096) * mib
        self._blocks, self._state, self.steps = len(self._memory) // BLOCK, b"", 0

    def step(self, client: socket.socket) -> None:
        """Have the server compute once; the test fails where its answer is not the right one."""
        word = struct.pack(">Q", self.steps)
        client.sendall(word)
        found = b""
        while len(found) < 32:
            more = client.recv(32 - len(found))
            if not more:
                raise ConnectionResetError("the stream has ended")
            found += more
        at = int.from_bytes(hashlib.sha256(self._state + word).digest()[:8], "big")
        at = at % self._blocks * BLOCK
        block = self._memory[at : at + BLOCK]
        self._state = hashlib.sha256(self._state + word + block).digest()
        self._memory[at : at + 32] = self._state
        assert found == self._state, f"a wrong number at step {self.steps}"
        self.steps += 1
