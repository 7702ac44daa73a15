# SPDX-License-Identifier: Apache-2.0
"""The kernel of emulated hosts: which one, and what its initramfs holds."""

import re

import pytest
from numa_lab import kernel
from numa_lab.errors import LabError

DEPENDENCIES = """\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz
kernel/fs/netfs/netfs.ko.xz:
kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz
kernel/drivers/vfio/vfio.ko.xz:
"""
BUILTIN = "kernel/drivers/virtio/virtio_pci.ko\n"


def test_a_module_comes_after_all_it_needs_and_once():
    order = kernel.load_order(DEPENDENCIES, BUILTIN, ["9p", "vfio_pci", "netfs"])
    names = [path.rpartition("/")[2].partition(".")[0] for path in order]
    assert sorted(names) == sorted({"netfs", "9pnet", "9p", "vfio", "vfio-pci"})
    assert names.index("netfs") < names.index("9pnet") < names.index("9p")
    assert names.index("vfio") < names.index("vfio-pci")


def test_what_the_kernel_has_built_in_is_not_loaded():
    assert kernel.load_order(DEPENDENCIES, BUILTIN, ["virtio_pci"]) == []


def test_a_kernel_without_a_needed_module_is_refused_by_name():
    with pytest.raises(LabError, match="no module erofs"):
        kernel.load_order(DEPENDENCIES, BUILTIN, ["9p", "erofs"])


@pytest.mark.parametrize(
    ("series", "name", "wanted"),
    [
        ("6.12", "linux-image-6.12.117+deb12-amd64", True),
        ("6.12", "linux-image-6.12.117+deb12-cloud-amd64", False),
        ("6.12", "linux-image-6.12.117+deb12-rt-amd64", False),
        ("6.12", "linux-image-6.12.117+deb12-amd64-unsigned", False),
        ("6.12", "linux-image-6.1.0-56-amd64", False),
        ("6.1", "linux-image-6.1.0-56-amd64", True),
        ("6.1", "linux-image-6.12.117+deb12-amd64", False),
        ("6.1", "linux-image-6.1.0-56-amd64-dbg", False),
    ],
)
def test_only_ordinary_kernels_of_the_series_are_looked_at(series, name, wanted):
    assert bool(re.fullmatch(kernel.package_pattern(series), name)) is wanted


def unpacked(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Read a newc archive back as the kernel does (buffer-format.rst)."""
    found, at = {}, 0
    while True:
        assert archive[at : at + 6] == b"070701"
        numbers = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = numbers[1], numbers[6], numbers[11]
        name = archive[at + 110 : at + 110 + name_size - 1].decode()
        begin = at + (110 + name_size + 3) // 4 * 4
        if name == "TRAILER!!!":
            return found
        found[name] = (mode, archive[begin : begin + size])
        at = begin + (size + 3) // 4 * 4


def test_the_archive_holds_every_file_after_its_folders():
    files = {"init": (0o755, b"#!/bin/sh\n"), "modules/a.ko": (0o644, b"12345"), "b": (0o600, b"")}
    found = unpacked(kernel.cpio_archive(files))
    assert next(iter(found)) == "modules"
    assert found.pop("modules") == (0o040755, b"")
    assert found == {name: (0o100000 | mode, content) for name, (mode, content) in files.items()}
