# SPDX-License-Identifier: Apache-2.0
"""libvirt's own files of running domains: what its versions write, and files that are not to be believed."""

import os
from pathlib import Path

import pytest

from benchmarks.opens import opened
from emulation import libvirt_state as files
from host_agent.machine.privileged.libvirt_state import LibvirtState, RunningDomain, parse
from placement_traits.errors import CapabilityMissingError, InvalidValueError

# Written by libvirtd 9.0.0 (Debian 12, QEMU 7.2) and 11.3.0 (Debian 13, QEMU 10.0) for the same domain of nova's.
RECORDED = Path(__file__).with_name("data")
A = "aaaaaaaa-0000-4000-8000-000000000000"
B = "bbbbbbbb-0000-4000-8000-000000000000"


@pytest.mark.parametrize(("version", "pid"), [("9.0", 73), ("11.3", 34)])
def test_what_each_libvirt_writes_is_understood(version: str, pid: int) -> None:
    found = parse((RECORDED / f"libvirt-{version}.xml").read_bytes())
    assert found == RunningDomain("6f0d4f3c-51a1-4c39-9a0e-3f1f2ad3b7c1", pid, 100_000, -1)


def test_the_quota_that_nova_has_set_is_read() -> None:
    text = (RECORDED / "libvirt-11.3.xml").read_text()
    tune = "<cputune><shares>2048</shares><period>50000</period><quota>100000</quota></cputune>"
    found = parse(text.replace("<os>", f"{tune}<os>").encode())
    assert (found.period_us, found.quota_us) == (50_000, 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<domstatus pid='7'/>",
        f"<domain pid='7'><domain><uuid>{A}</uuid></domain></domain>",
        f"<domstatus><domain><uuid>{A}</uuid></domain></domstatus>",
        f"<domstatus pid='0'><domain><uuid>{A}</uuid></domain></domstatus>",
        f"<domstatus pid='-7'><domain><uuid>{A}</uuid></domain></domstatus>",
        f"<domstatus pid='99999999'><domain><uuid>{A}</uuid></domain></domstatus>",
        "<domstatus pid='7'><domain><uuid>../a</uuid></domain></domstatus>",
        f"<domstatus pid='7'><domain><uuid>{A}</uuid><cputune><quota>x</quota></cputune></domain></domstatus>",
        f"<?xml version='1.0' encoding='none'?><domstatus pid='7'><domain><uuid>{A}</uuid></domain></domstatus>",
    ],
)
def test_what_is_no_status_of_a_domain_is_one_sentence(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse(text.encode(), "instance-1.xml")
    assert "instance-1.xml" in str(caught.value)


def test_a_domain_that_starts_ends_or_comes_back_is_seen(tmp_path: Path) -> None:
    state = LibvirtState(tmp_path / "qemu")
    state.folder.mkdir()
    assert state.find(A) is None
    files.write(state.folder, "instance-1", A, 7)
    files.write(state.folder, "instance-2", B, 8)
    assert state.find(A) == RunningDomain(A, 7)
    files.write(state.folder, "instance-1", A, 4444)
    assert state.find(A) == RunningDomain(A, 4444)
    (state.folder / "instance-1.pid").unlink()
    assert state.find(A) is None
    (state.folder / "instance-1.xml").unlink()
    files.write(state.folder, "instance-2", A, 9)
    assert (state.find(A), state.find(B)) == (RunningDomain(A, 9), None)


def test_both_files_have_to_agree_and_neither_may_be_a_link_or_anothers(tmp_path: Path) -> None:
    state = LibvirtState(tmp_path / "qemu")
    files.write(state.folder, "instance-1", A, 7)
    pid = state.folder / "instance-1.pid"
    pid.write_text("8\n")
    assert state.find(A) is None
    pid.unlink()
    assert state.find(A) is None
    (tmp_path / "elsewhere").write_text("7\n")
    pid.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CapabilityMissingError, match="files of instance-1"):
        state.find(A)
    pid.unlink()
    os.mkfifo(pid)
    with pytest.raises(CapabilityMissingError, match="only root can write"):
        state.find(A)  # it does not wait for a writer
    pid.unlink()
    pid.write_text("7\n")
    for file in (pid, state.folder / "instance-1.xml"):
        file.chmod(0o666)
        with pytest.raises(CapabilityMissingError, match="only root can write"):
            LibvirtState(state.folder).find(A)
        file.chmod(0o644)
    assert state.find(A) == RunningDomain(A, 7)


def test_a_file_that_cannot_be_read_hides_no_other_domain_and_is_no_end(tmp_path: Path) -> None:
    """Until it can: nothing of a refusal is remembered with the file's time."""
    state = LibvirtState(tmp_path / "qemu")
    files.write(state.folder, "instance-1", A, 7)
    files.write(state.folder, "instance-2", B, 8)
    status = state.folder / "instance-1.xml"
    status.chmod(0o664)
    assert state.find(B) == RunningDomain(B, 8)
    with pytest.raises(CapabilityMissingError, match=r"files of instance-1"):
        state.find(A)
    status.chmod(0o644)
    assert state.find(A) == RunningDomain(A, 7)
    status.write_text("<domstatus")
    with pytest.raises(CapabilityMissingError, match=r"files of instance-1"):
        state.find(A)


def test_a_folder_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(CapabilityMissingError, match=r"see \[libvirt_host\]pid_dir"):
        LibvirtState(tmp_path / "qemu").find(A)


def test_a_folder_that_others_can_write_tells_nothing(tmp_path: Path) -> None:
    state = LibvirtState(tmp_path / "qemu")
    files.write(state.folder, "instance-1", A, 7)
    state.folder.chmod(0o777)
    with pytest.raises(CapabilityMissingError, match="can be written by others than root"):
        state.find(A)


def test_files_that_have_not_changed_are_not_opened_again(tmp_path: Path) -> None:
    """Each round asks twice for each server; a file of this moment may still be written in the same tick."""
    state = LibvirtState(tmp_path / "qemu")
    files.write(state.folder, "instance-1", A, 7)
    long_ago = 10**9
    for name in ("instance-1.pid", "instance-1.xml"):
        os.utime(state.folder / name, (long_ago, long_ago))
    state.find(A)
    with opened() as found:
        assert state.find(A) == RunningDomain(A, 7)
    assert found == [str(state.folder)]
    files.write(state.folder, "instance-1", A, 9)
    assert state.find(A) == RunningDomain(A, 9)
    files.write(state.folder, "instance-1", A, 8)
    assert state.find(A) == RunningDomain(A, 8)
