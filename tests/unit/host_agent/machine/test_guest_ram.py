# SPDX-License-Identifier: Apache-2.0
"""Guest memory is found among the mappings of a QEMU process; texts are as Linux 6.12 and QEMU 7.2 write them."""

import json
from pathlib import Path

import pytest

from host_agent.machine.privileged import guest_ram
from host_agent.model.process import RamRange

MB = 1 << 20

# A TCG guest: its code buffer (rwxp) is 1 GiB, guest memory 128 MiB with a guard page behind, video memory 16 MiB.
MAPS = """\
7f0000000000-7f0040000000 rwxp 00000000 00:00 0
7f0050000000-7f0058000000 rw-p 00000000 00:00 0
7f0058000000-7f0058001000 ---p 00000000 00:00 0
7f0060000000-7f0061000000 rw-p 00000000 00:00 0
7f0070000000-7f0070021000 rw-p 00000000 00:00 0
"""
NUMA_MAPS = """\
7f0000000000 default anon=10 dirty=10 active=0 N0=10 kernelpagesize_kB=4
7f0050000000 bind:2 anon=32768 dirty=32768 active=0 N0=256 N2=32512 kernelpagesize_kB=4
7f0060000000 default anon=4096 dirty=4096 N0=4096 kernelpagesize_kB=4
7f0070000000 default anon=33 dirty=33 N0=33 kernelpagesize_kB=4
"""
SMAPS = """\
7f0050000000-7f0058000000 rw-p 00000000 00:00 0
Rss:              131072 kB
AnonHugePages:    129024 kB
ShmemPmdMapped:        0 kB
7f0060000000-7f0061000000 rw-p 00000000 00:00 0
AnonHugePages:         0 kB
"""
BACKEND = json.dumps({"qom-type": "memory-backend-ram", "id": "pc.ram", "size": 128 * MB})


def proc(folder: Path, arguments: list[str], maps: str = MAPS, numa_maps: str = NUMA_MAPS) -> Path:
    (folder / "cmdline").write_bytes(b"\0".join(a.encode() for a in arguments) + b"\0")
    (folder / "maps").write_text(maps)
    (folder / "numa_maps").write_text(numa_maps)
    (folder / "smaps").write_text(SMAPS)
    return folder


def test_memory_is_known_by_its_size(tmp_path: Path) -> None:
    folder = proc(tmp_path, ["qemu", "-object", BACKEND])
    (found,) = guest_ram.read(folder)
    assert found == RamRange(0x7F0050000000, 0x7F0058000000, (2,), 4, -1, ((0, 1024), (2, 130048)))


def test_huge_pages_are_counted_on_demand(tmp_path: Path) -> None:
    folder = proc(tmp_path, ["qemu", "-object", BACKEND])
    (found,) = guest_ram.read(folder, with_thp=True)
    assert found.thp_kb == 129024


@pytest.mark.parametrize("name", [b"\xff", "\u2028".encode(), b"\r", b"\x0b", b"\xc2\x85"])
def test_a_file_that_a_process_maps_under_an_odd_name_hides_nothing(
    tmp_path: Path, name: bytes
) -> None:
    """The kernel escapes line feeds in it, and nothing else that may end a line."""
    folder = proc(tmp_path, ["qemu", "-object", BACKEND])
    (expected,) = guest_ram.read(folder, with_thp=True)
    fake = b"7f0050000000-7f0058000000 rw-p 00000000 00:00 0"
    mapped = b"7e0000000000-7e0000001000 r--p 00000000 00:00 0 /" + name + fake + b"\n"
    for file in ("maps", "smaps"):
        (folder / file).write_bytes(mapped + (folder / file).read_bytes())
    numa = b"7e0000000000 default file=/" + name + b"N9=9 N0=1\n"
    (folder / "numa_maps").write_bytes(numa + (folder / "numa_maps").read_bytes())
    assert guest_ram.read(folder, with_thp=True) == (expected,)


def test_a_mapping_that_the_kernel_merged_in_front_is_cut_off(tmp_path: Path) -> None:
    maps = MAPS.replace("7f0050000000-", "7f004ff00000-")
    numa = NUMA_MAPS.replace("7f0050000000 ", "7f004ff00000 ")
    (found,) = guest_ram.read(proc(tmp_path, ["qemu", "-object", BACKEND], maps, numa))
    assert (found.start, found.end) == (0x7F0050000000, 0x7F0058000000)


def test_a_policy_that_split_the_mapping_keeps_all_parts(tmp_path: Path) -> None:
    maps = MAPS.replace(
        "7f0050000000-7f0058000000 rw-p 00000000 00:00 0",
        "7f0050000000-7f0054000000 rw-p 00000000 00:00 0\n7f0054000000-7f0058000000 rw-p 00000000 00:00 0",
    )
    numa = NUMA_MAPS + "7f0054000000 bind:3 anon=1 N3=1 kernelpagesize_kB=4\n"
    found = guest_ram.read(proc(tmp_path, ["qemu", "-object", BACKEND], maps, numa))
    assert [(r.start, r.bound) for r in found] == [(0x7F0050000000, (2,)), (0x7F0054000000, (3,))]


def test_two_cells_are_two_ranges(tmp_path: Path) -> None:
    arguments = [
        "qemu",
        "-object",
        BACKEND,
        "-object",
        "memory-backend-memfd,id=ram-node1,share=yes,size=16777216",
    ]
    found = guest_ram.read(proc(tmp_path, arguments))
    assert [r.end - r.start for r in found] == [128 * MB, 16 * MB]


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["qemu", "-m", "128"], (128 * MB,)),
        (["qemu", "-m", "size=2048k"], (2 * MB,)),
        (["qemu", "-m", "1G,slots=4"], (1024 * MB,)),
        (["qemu", "-object", "memory-backend-file,id=a,size=1G", "-m", "5"], (1024 * MB,)),
        (["qemu", "-object", '{"qom-type":"memory-backend-ram"', "-m", "1"], (MB,)),
        (["qemu"], ()),
    ],
)
def test_sizes_are_read_from_the_command_line(arguments: list[str], sizes: tuple[int, ...]) -> None:
    assert guest_ram.backend_sizes(arguments) == sizes


@pytest.mark.parametrize(
    "text",
    [
        "memory-backend-ram,size=" + "9" * 5000,
        '{"qom-type": "memory-backend-ram", "size": ' + "[" * 100_000,
        '{"qom-type": "memory-backend-ram", "size": 1' + "0" * 5000 + "}",
    ],
    ids=["digits", "nesting", "digits of JSON"],
)
def test_a_command_line_that_qemu_has_overwritten_raises_nothing(text: str) -> None:
    guest_ram.backend_sizes(["-object", text, "-m", "9" * 5000])


def test_a_process_without_guest_memory_has_none(tmp_path: Path) -> None:
    assert guest_ram.read(proc(tmp_path, ["qemu", "-m", "7G"])) == ()


def test_which_mappings_are_guest_memory_is_known_without_a_walk(tmp_path: Path) -> None:
    folder = proc(tmp_path, ["qemu", "-object", BACKEND])
    (found,) = guest_ram.read(folder)
    for walked in ("numa_maps", "smaps"):
        (folder / walked).unlink()
    assert guest_ram.mapped(folder) == [(found.start, found.end)]
