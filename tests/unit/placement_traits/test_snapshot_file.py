# SPDX-License-Identifier: Apache-2.0
"""The fleet in a file: whole or not used, whatever happens to the writer, the disk and the clock."""

import resource
import signal
import stat
import subprocess
import sys
import textwrap

import pytest

from placement_traits import boot_clock, snapshot_file
from placement_traits.fleet_arrays import LAYOUT, FleetArrays
from placement_traits.snapshot_file import MappedSnapshot, SnapshotFileError, SnapshotWriter
from tests.support.fleet import domain, host

FLEET = FleetArrays.of([host(domain(0), domain(1, nodes=(1, 99))), host(name="h2")])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "view.fleet"


@pytest.fixture
def written(path):
    SnapshotWriter(path).write(FLEET, 7, 123.5)
    return path


def test_what_is_written_is_mapped(written):
    mapped = MappedSnapshot(written)
    assert dict(mapped.arrays.views) == dict(FLEET.views)
    assert (mapped.version, mapped.read_at_s) == (7, 123.5)
    assert not any(getattr(mapped.arrays, name).flags.writeable for name in LAYOUT)
    assert stat.S_IMODE(written.stat().st_mode) == 0o640


def test_an_empty_fleet_is_a_fleet(path):
    SnapshotWriter(path).write(FleetArrays.of(()), 0, 1.0)
    assert dict(MappedSnapshot(path).arrays.views) == {}


def test_a_reading_without_news_writes_its_time_into_the_same_file(path):
    writer = SnapshotWriter(path)
    writer.write(FLEET, 7, 100.0)
    mapped = MappedSnapshot(path)
    writer.write(FLEET, 7, 110.0)
    assert mapped.read_at_s == 110.0
    assert MappedSnapshot(path).inode == mapped.inode


def test_news_are_a_new_file_and_the_old_one_stays_as_it_was_for_those_who_read_it(path):
    writer = SnapshotWriter(path)
    writer.write(FLEET, 7, 100.0)
    before = MappedSnapshot(path)
    writer.write(FLEET.with_changes({"root-h2": None}, 8), 8, 110.0)
    after = MappedSnapshot(path)
    assert after.inode != before.inode
    assert (list(after.arrays.rows), after.version) == (["root-h1"], 8)
    assert (list(before.arrays.rows), before.read_at_s) == (["root-h1", "root-h2"], 100.0)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_that_was_taken_away_is_written_again(path):
    writer = SnapshotWriter(path)
    writer.write(FLEET, 7, 100.0)
    path.unlink()
    writer.write(FLEET, 7, 110.0)
    assert MappedSnapshot(path).read_at_s == 110.0


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_half_file_is_not_used(written, share):
    octets = written.read_bytes()
    written.write_bytes(octets[: int(len(octets) * share)])
    with pytest.raises(SnapshotFileError, match="is not used"):
        MappedSnapshot(written)


def test_every_octet_counts(written):
    """But for those of the last reading's time, which are written in place."""
    octets = written.read_bytes()
    unseen = []
    for at in range(0, len(octets), 1 if len(octets) < 4096 else 5):
        written.write_bytes(octets[:at] + bytes([octets[at] ^ 0x10]) + octets[at + 1 :])
        try:
            MappedSnapshot(written)
        except SnapshotFileError:
            continue
        unseen.append(at)
    assert set(unseen) <= set(range(72, 80))


def test_a_file_of_another_release_is_not_used(written, monkeypatch):
    monkeypatch.setattr(snapshot_file, "FORMAT", 1)
    with pytest.raises(SnapshotFileError, match=r"its format is .*, ours 00000001"):
        MappedSnapshot(written)


def test_a_file_from_before_the_boot_is_not_used(written, monkeypatch, tmp_path):
    other = tmp_path / "boot_id"
    other.write_text("another\n")
    monkeypatch.setattr(boot_clock, "BOOT_ID", other)
    with pytest.raises(SnapshotFileError, match="before the host booted"):
        MappedSnapshot(written)


def test_on_a_full_disk_the_old_file_stays_and_no_draft(written):
    """A limit on the size of files stands for the full disk: both end a write in the middle."""
    program = """
        import sys
        from pathlib import Path
        from placement_traits.fleet_arrays import FleetArrays
        from placement_traits.snapshot_file import SnapshotWriter
        from tests.support.fleet import domain, host
        many = FleetArrays.of([host(domain(0), name=f"h{number}") for number in range(200)])
        try:
            SnapshotWriter(Path(sys.argv[1])).write(many, 8, 200.0)
        except OSError as error:
            print(error.strerror)
    """

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))

    done = subprocess.run(
        [sys.executable, "-B", "-c", textwrap.dedent(program), str(written)],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "File too large\n"
    assert MappedSnapshot(written).version == 7
    assert [file.name for file in written.parent.iterdir()] == [written.name]
