# SPDX-License-Identifier: Apache-2.0
"""QEMU with RDT is built once per content; without it the lab goes on."""

import io
import re

import pytest
from numa_lab import qemu_build
from numa_lab.errors import LabError
from numa_lab.qemu_build import build_key, share_done
from numa_lab.terminal import Progress


def test_a_build_is_known_by_patches_options_and_version():
    keys = {
        build_key([b"patch"], ("--enable-tcg",), "1:7.2"),
        build_key([b"other patch"], ("--enable-tcg",), "1:7.2"),
        build_key([b"patch", b"patch"], ("--enable-tcg",), "1:7.2"),
        build_key([b"patch"], ("--enable-tcg", "--enable-slirp"), "1:7.2"),
        build_key([b"patch"], ("--enable-tcg",), "1:7.3"),
    }
    assert len(keys) == 5
    again = build_key([b"patch"], ("--enable-tcg",), "1:7.2")
    assert again in keys and re.fullmatch("[0-9a-f]{16}", again)


def test_ninjas_lines_tell_how_far_it_is():
    assert share_done("[361/1444] Compiling C object x.c.o\n") == 0.25
    assert share_done("../hw/x.c:1: warning: [1/2] unused") is None
    assert share_done("[0/0] nothing") is None


def test_without_a_build_hosts_come_up_without_rdt_and_it_is_said(settings, monkeypatch):
    def fails(*_):
        raise LabError("no source", settings.log / "qemu-build.log")

    monkeypatch.setattr(qemu_build, "build", fails)
    said = io.StringIO()
    qemu = qemu_build.provide(settings, Progress(said))
    assert (qemu.binary, qemu.has_rdt) == (qemu_build.DEBIAN_BINARY, False)
    assert "no source" in said.getvalue() and "without RDT" in said.getvalue()


def test_nobody_has_to_want_rdt(settings, monkeypatch):
    monkeypatch.setattr(qemu_build, "build", lambda *_: pytest.fail("was built"))
    assert not qemu_build.provide(settings, Progress(io.StringIO()), with_rdt=False).has_rdt


def test_the_patches_carry_qemus_licence(settings):
    patches = sorted((settings.source / "qemu").glob("*.patch"))
    assert patches
    for patch in patches:
        text = patch.read_text()
        assert text.startswith("SPDX-License-Identifier: GPL-2.0-or-later")
        new_files = re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", text, re.MULTILINE)
        licences = re.findall(r"^\+ \* SPDX-License-Identifier: (\S+)", text, re.MULTILINE)
        assert licences == ["GPL-2.0-or-later"] * len(new_files)
