# SPDX-License-Identifier: Apache-2.0
"""A small Linux for tests: the lab's kernel, some of its modules and busybox of this machine, as one initramfs.

What it does is its ``init``'s. It finds modules in ``/modules``, and in ``/modules/order`` which comes after which.
"""

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest
from numa_lab import kernel as lab_kernel

COMMAND_LINE: Final = "console=ttyS0 panic=1 quiet no_timer_check"
_CACHE = Path.home() / ".cache/nova-numa-ext/kernel"
_BUSYBOX = Path("/bin/busybox")
_QEMU = Path("/usr/bin/qemu-system-x86_64")

Files = dict[str, tuple[int, bytes]]


def kernel() -> lab_kernel.Kernel:
    """The newest kernel that the lab has fetched; skips the test where something is missing."""
    found = sorted(_CACHE.glob("linux-image-*")) if _CACHE.is_dir() else []
    if not _BUSYBOX.exists():
        pytest.skip(f"needs {_BUSYBOX}")
    if not found:
        pytest.skip("needs a kernel in the lab's cache: devstack/lab/lab up fetches it")
    return lab_kernel.Kernel(found[-1].name.removeprefix("linux-image-"), found[-1])


def initramfs(
    found: lab_kernel.Kernel,
    init: str,
    modules: Iterable[str],
    files: Mapping[str, tuple[int, bytes]],
) -> bytes:
    """The only file system of a small Linux.

    :param init: what it does, a script for ``/bin/busybox sh``
    :param modules: their names, to which what they need is added
    :param files: more of them: path -> mode, content
    """
    order = lab_kernel.load_order(
        (found.modules / "modules.dep").read_text(),
        (found.modules / "modules.builtin").read_text(),
        modules,
    )
    every: Files = {
        "init": (0o755, init.encode()),
        "bin/busybox": (0o755, _BUSYBOX.read_bytes()),
        "modules/order": (0o644, "".join(f"{Path(path).stem}.ko\n" for path in order).encode()),
        **files,
    }
    for path in order:
        content = lab_kernel._decompressed(found.modules / path)
        every[f"modules/{Path(path).stem}.ko"] = (0o644, content)
    return lab_kernel.cpio_archive(every)


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
        *("-append", COMMAND_LINE, "-serial", "stdio"),
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
