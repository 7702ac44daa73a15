# SPDX-License-Identifier: Apache-2.0
"""The fleet in a file: written by one process, mapped by many, so that ten thousand hosts are in memory once.

::

    0    magic                8   NUMAVIEW
    8    format               4   another layout or vocabulary is another format
    12   check sum            4   CRC-32 of all other octets but those of the last reading
    16   size                 8   of the whole file
    24   version              8   of the snapshot
    32   id of the boot      40
    72   last reading         8   nanoseconds since the boot when the reading that this fleet comes from began
    80   number of records   10 × 8, in the order of LAYOUT
    …    the arrays, each at a multiple of 64

A new fleet is a new file under the old name, so who has mapped the old one keeps it as it was. A reading that finds
the fleet unchanged writes its time into the file that is there: eight octets, in place. Nothing is forced to the disk:
after a boot the file is not used anyway.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from placement_traits.boot_clock import boot_id
from placement_traits.errors import NumaExtError
from placement_traits.fleet_arrays import LAYOUT, LINKS, NEIGHBOURS, FleetArrays

_MAGIC: Final = b"NUMAVIEW"
_FIXED: Final = struct.Struct("<8sIIQq40s")
_CHECK_SUM: Final = slice(12, 16)
_READ_AT: Final = struct.Struct("<q")
_READ_AT_OFFSET: Final = _FIXED.size
_COUNTS: Final = struct.Struct(f"<{len(LAYOUT)}Q")
_COUNTS_OFFSET: Final = _READ_AT_OFFSET + _READ_AT.size
_HEADER_SIZE: Final = _COUNTS_OFFSET + _COUNTS.size
_ALIGNMENT: Final = 64
_NANOSECONDS: Final = 10**9
_MODE: Final = 0o640

# What the octets mean: changes with any field, with the order of the vocabulary and with this module's own layout.
FORMAT: Final = zlib.crc32(
    repr(
        (
            1,
            {name: dtype.descr for name, dtype in LAYOUT.items()},
            [str(trait) for trait in NEIGHBOURS],
            [str(link) for link in LINKS],
        )
    ).encode()
)


class SnapshotFileError(NumaExtError):
    """A file does not hold a fleet that this program can use.

    :param path: the file
    :param reason: what is wrong with it
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} is not used: {self.reason}."


class MappedSnapshot:
    """The fleet of one file, mapped read-only.

    :param path: the file
    :raises FileNotFoundError: there is none
    :raises OSError: it cannot be read
    :raises SnapshotFileError: it is half, damaged, of another format or of another boot
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.inode = inode_of(os.fstat(file.fileno()))
            if os.fstat(file.fileno()).st_size < _HEADER_SIZE:
                raise SnapshotFileError(path, "it is shorter than a header")
            self._octets = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        magic, format_, check_sum, size, self.version, boot = _FIXED.unpack_from(self._octets)
        if magic != _MAGIC:
            raise SnapshotFileError(path, "it is no snapshot of the fleet")
        if format_ != FORMAT:
            raise SnapshotFileError(path, f"its format is {format_:08x}, ours {FORMAT:08x}")
        counts = _COUNTS.unpack_from(self._octets, _COUNTS_OFFSET)
        if size != len(self._octets) or size != _size(counts):
            raise SnapshotFileError(path, f"{len(self._octets)} octets are there, {size} belong")
        if _sum_of(self._octets) != check_sum:
            raise SnapshotFileError(path, "its check sum is wrong")
        if boot.rstrip(b"\0").decode() != boot_id():
            raise SnapshotFileError(path, "it was written before the host booted")
        self.arrays = FleetArrays(
            **{
                name: np.frombuffer(self._octets, LAYOUT[name], count, offset)
                for (name, offset), count in zip(_places(counts), counts, strict=True)
            }
        )

    @property
    def read_at_s(self) -> float:
        """Boot time at which the last reading that found this fleet began; moves while the fleet stays."""
        (read_at,) = _READ_AT.unpack_from(self._octets, _READ_AT_OFFSET)
        return float(read_at / _NANOSECONDS)


class SnapshotWriter:
    """Writes the fleet into one file, for the one process that may.

    :param path: the file; its folder is there
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: FleetArrays | None = None
        self._inode = (0, 0)

    def write(self, arrays: FleetArrays, version: int, read_at_s: float) -> None:
        """Make the file hold this fleet and say when it was read.

        :param read_at_s: boot time at which the reading began
        :raises OSError: it cannot be written; what was there stays, and its age is true
        """
        read_at = _READ_AT.pack(int(read_at_s * _NANOSECONDS))
        if arrays is self._written and self._renew(read_at):
            return
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            with draft.open("wb") as file:
                os.fchmod(file.fileno(), _MODE)
                for part in _parts(arrays, version, read_at):
                    file.write(part)
                file.flush()
                inode = inode_of(os.fstat(file.fileno()))
            draft.replace(self._path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self._written, self._inode = arrays, inode

    def _renew(self, read_at: bytes) -> bool:
        """Write the time alone; returns False where the file is not the one that this object wrote."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if inode_of(os.fstat(descriptor)) != self._inode:
                return False
            os.pwrite(descriptor, read_at, _READ_AT_OFFSET)
        finally:
            os.close(descriptor)
        return True


def inode_of(status: os.stat_result) -> tuple[int, int]:
    """Return what tells one file from another under the same name."""
    return status.st_dev, status.st_ino


def _parts(arrays: FleetArrays, version: int, read_at: bytes) -> Iterator[bytes | memoryview]:
    tables: Mapping[str, Any] = {name: getattr(arrays, name) for name in LAYOUT}
    counts = [len(table) for table in tables.values()]
    body: list[bytes | memoryview] = []
    end = _HEADER_SIZE
    for name, offset in _places(counts):
        body += [bytes(offset - end), np.ascontiguousarray(tables[name]).view(np.uint8).data]
        end = offset + tables[name].nbytes
    header = bytearray(
        _FIXED.pack(_MAGIC, FORMAT, 0, _size(counts), version, boot_id().encode())
        + read_at
        + _COUNTS.pack(*counts)
    )
    check_sum = _sum_of_header(header)
    for part in body:
        check_sum = zlib.crc32(part, check_sum)
    header[_CHECK_SUM] = struct.pack("<I", check_sum)
    yield bytes(header)
    yield from body


def _places(counts: Any) -> Iterator[tuple[str, int]]:
    """Yield where each array begins."""
    offset = _HEADER_SIZE
    for (name, dtype), count in zip(LAYOUT.items(), counts, strict=True):
        offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
        yield name, offset
        offset += dtype.itemsize * count


def _size(counts: Any) -> int:
    *_others, (last, offset) = _places(counts)
    return int(offset + LAYOUT[last].itemsize * counts[-1])


def _sum_of_header(header: Any) -> int:
    check_sum = zlib.crc32(header[: _CHECK_SUM.start])
    check_sum = zlib.crc32(header[_CHECK_SUM.stop : _READ_AT_OFFSET], check_sum)
    return zlib.crc32(header[_COUNTS_OFFSET:_HEADER_SIZE], check_sum)


def _sum_of(octets: mmap.mmap) -> int:
    check_sum = _sum_of_header(octets)
    with memoryview(octets) as whole, whole[_HEADER_SIZE:] as body:
        return zlib.crc32(body, check_sum)
