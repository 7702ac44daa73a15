# SPDX-License-Identifier: Apache-2.0
"""A small Linux in which a program takes 800 us per request and ``numa-ext-slo`` tells the host: kernel and initramfs.

The kernel is the lab's; busybox, Python and the reporter are this machine's, with no more of the standard library than
the reporter imports. Nothing in the guest knows of the host, and it needs no disk and no network.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from numa_lab import kernel as lab_kernel

from tests.support import small_linux

CHECKOUT: Final = Path(__file__).resolve().parents[2]
LATENCY_US: Final = 800
_PYTHON = Path("/usr/bin/python3")
_REPORTER = CHECKOUT / "host_agent/guest/numa_ext_slo.py"
_MODULES = ("virtio_pci", "virtio_console")
_INIT = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$module; done
(while true; do  # what udev does elsewhere; a port may be plugged in at any time
  for port in /sys/class/virtio-ports/*; do
    name=$(/bin/busybox cat $port/name 2>/dev/null) && [ -n "$name" ] || continue
    /bin/busybox mkdir -p /dev/virtio-ports
    /bin/busybox ln -sf ../${{port##*/}} /dev/virtio-ports/$name
  done
  /bin/busybox sleep 1
done) &
while true; do
  /bin/busybox seq 1 50 | /bin/busybox sed 's/.*/{LATENCY_US}/'
  /bin/busybox sleep 0.2
done | {_PYTHON} -E -I /numa_ext_slo.py
"""
_TELL_MODULES = """
import contextlib, io, runpy, sys
reporter, sys.argv[1:] = sys.argv[1], ["--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    runpy.run_path(reporter, run_name="__main__")
print(*(f for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None))), sep="\\n")
"""


def kernel() -> lab_kernel.Kernel:
    """As :func:`.small_linux.kernel`, for a guest that needs this machine's Python."""
    if not _PYTHON.exists():
        pytest.skip(f"needs {_PYTHON}")
    return small_linux.kernel()


def initramfs(found: lab_kernel.Kernel) -> bytes:
    """The guest's only file system."""
    files = {"numa_ext_slo.py": (0o644, _REPORTER.read_bytes()), **_python()}
    return lab_kernel.small_linux(found, _INIT, _MODULES, files)


def _python() -> lab_kernel.Files:
    """The interpreter, what the reporter imports (some of it only when it runs), and the libraries of both."""
    output = _output(_PYTHON, "-E", "-I", "-c", _TELL_MODULES, _REPORTER)
    modules = [path for line in output.splitlines() if (path := Path(line)) != _REPORTER]
    libraries = {
        Path(name)
        for binary in (_PYTHON, *(path for path in modules if path.suffix == ".so"))
        for name in re.findall(r"(/\S+) \(0x", _output("ldd", binary))
    }
    paths = {_PYTHON, *modules, *libraries}
    return {str(path).lstrip("/"): (0o755, path.read_bytes()) for path in sorted(paths)}


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=True)
    return done.stdout
