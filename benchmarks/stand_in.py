# SPDX-License-Identifier: Apache-2.0
"""A process that looks like a server's QEMU to the agent: command line, thread names, guest memory; it does nothing.

``python -SI stand_in.py -uuid UUID -m MIB MEMORY_FD VCPUS``. The memory file is shared by all stand-ins, so that a
hundred of them need the memory of one; each has page tables of its own. It lives until its standard input ends.
"""

import mmap
import sys
import threading

OTHERS = ("IO mon_iothread", "worker")


def _idle(name: str, end: threading.Event) -> None:
    with open("/proc/thread-self/comm", "w") as comm:
        comm.write(name)
    end.wait()


def main() -> None:
    """Map the memory, start the threads, wait."""
    size, descriptor, vcpus = int(sys.argv[4]) << 20, int(sys.argv[5]), int(sys.argv[6])
    memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    end = threading.Event()
    for name in (*(f"CPU {vcpu}/KVM" for vcpu in range(vcpus)), *OTHERS):
        threading.Thread(target=_idle, args=(name, end), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    memory.close()


if __name__ == "__main__":
    main()
