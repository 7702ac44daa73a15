# SPDX-License-Identifier: Apache-2.0
"""What ``devstack/lab/readback.py`` takes for a running domain."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[3] / "devstack" / "lab" / "readback.py"
STATUS = """<!-- libvirt's warning -->
<domstatus state='{state}' reason='booted' pid='{pid}'>
  <domain type='qemu'><name>instance-1</name><uuid>{uuid}</uuid></domain>
</domstatus>
"""


@pytest.fixture
def readback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program as a module, with a folder of status files of two running domains and one that has no process."""
    spec = importlib.util.spec_from_file_location("readback", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for uuid, state, pid in (("a", "running", 7), ("b", "paused", 8), ("c", "shutoff", 0)):
        text = STATUS.format(uuid=uuid, state=state, pid=pid)
        (tmp_path / f"instance-{uuid}.xml").write_text(text)
    monkeypatch.setattr(module, "STATUS", tmp_path)
    return module


def test_domains_with_a_process_are_running(readback: ModuleType) -> None:
    found = readback.running([])
    assert [(s.findtext("domain/uuid"), s.get("state")) for s in found] == [
        ("a", "running"),
        ("b", "paused"),
    ]


def test_only_the_wanted_ones_are_looked_at(readback: ModuleType) -> None:
    assert [s.findtext("domain/uuid") for s in readback.running(["b", "c"])] == ["b"]
