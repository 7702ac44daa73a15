# SPDX-License-Identifier: Apache-2.0
"""A small Linux for tests, as :func:`numa_lab.kernel.small_linux` packs it: its kernel, and how it is run."""

import re
import subprocess
from pathlib import Path

import pytest
from numa_lab import kernel as lab_kernel

_CACHE = Path.home() / ".cache/nova-numa-ext/kernel"
_BUSYBOX = Path("/bin/busybox")
_QEMU = Path("/usr/bin/qemu-system-x86_64")


def kernel() -> lab_kernel.Kernel:
    """The newest kernel that the lab has fetched; skips the test where something is missing."""
    found = sorted(_CACHE.glob("linux-image-*")) if _CACHE.is_dir() else []
    if not _BUSYBOX.exists():
        pytest.skip(f"needs {_BUSYBOX}")
    if not found:
        pytest.skip("needs a kernel in the lab's cache: devstack/lab/lab up fetches it")
    return lab_kernel.Kernel(found[-1].name.removeprefix("linux-image-"), found[-1])


def shown(
    folder: Path,
    found: lab_kernel.Kernel,
    content: bytes,
    *options: str,
    memory_mb: int,
    patience_s: float,
) -> dict[str, str]:
    """Boot a small Linux until it turns itself off; return what it has shown under each headline, ``== NAME``.

    :param folder: for its initramfs
    :param content: of that
    :param options: more of them for QEMU
    """
    if not _QEMU.exists():
        pytest.skip(f"needs {_QEMU}")
    (folder / "initramfs").write_bytes(content)
    command = [
        *(str(_QEMU), "-accel", "tcg", "-m", str(memory_mb)),
        *("-nographic", "-nodefaults", "-no-reboot"),
        *("-kernel", str(found.image), "-initrd", str(folder / "initramfs"), *options),
        *("-append", lab_kernel.SMALL_LINUX, "-serial", "stdio"),
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=patience_s,
        check=False,
    )
    parts = re.split(r"^== (.*?)\s*$", done.stdout, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert "end" in sections, done.stdout[-3000:]
    return sections
