# SPDX-License-Identifier: Apache-2.0
"""Certificates as they are read for gateways: again when a file has changed, and as before where that fails."""

import os
from pathlib import Path

import pytest

from host_agent.cmd.leases import certificates
from host_agent.conf.remote_gpus import RemoteGpuOptions
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths, digest
from placement_traits.errors import ServiceUnavailableError
from placement_traits.oslo_options import ConfigurationError

LENDS = {"gpus": ("a=500",), "transport": "mine", "nics": ("eth1=100",), "fabrics": ("main",)}


@pytest.fixture
def paths(tmp_path: Path) -> LinkPaths:
    found = LinkPaths(*(tmp_path / name for name in ("certificate", "key", "ca", "crl")))
    for each in (found.certificate, found.key, found.ca):
        each.write_text(each.name)
    return found


def test_they_are_read_again_when_one_has_changed(paths: LinkPaths) -> None:
    files = LinkFiles(paths)
    texts, first = files.read()
    assert texts == {"certificate": "certificate", "key": "key", "ca": "ca", "crl": None}
    assert first == digest(texts) == files.read()[1]
    paths.crl.write_text("list")
    texts, second = files.read()
    assert (texts["crl"], second == first) == ("list", False)
    draft = paths.key.with_name("draft")
    draft.write_text("KEY")
    os.utime(draft, ns=(0, paths.key.stat().st_mtime_ns))
    draft.replace(paths.key)
    assert files.read()[0]["key"] == "KEY", "as long and as old"
    paths.crl.unlink()
    assert files.read()[0]["crl"] is None


def test_those_before_count_where_they_cannot_be_read(
    paths: LinkPaths, caplog: pytest.LogCaptureFixture
) -> None:
    files = LinkFiles(paths)
    before = files.read()
    paths.key.unlink()
    assert [files.read(), files.read()] == [before, before]
    assert len([each for each in caplog.messages if "as they were read last" in each]) == 1
    with pytest.raises(ServiceUnavailableError, match=r"Certificates of the link: .*key"):
        LinkFiles(paths).read()


def test_a_host_with_a_certificate_needs_the_program_and_the_other_files(
    paths: LinkPaths, tmp_path: Path
) -> None:
    assert certificates(RemoteGpuOptions()) is None
    assert certificates(RemoteGpuOptions(**LENDS)) is None  # type: ignore[arg-type]
    program = tmp_path / "program"
    given = {
        "certificate": str(paths.certificate),
        "key": paths.key,
        "authorities": paths.ca,
        "revoked": paths.crl,
        "link": program,
    }
    options = RemoteGpuOptions(**LENDS, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="is no program"):
        certificates(options)
    program.touch(mode=0o755)
    assert certificates(options) is not None
    paths.key.unlink()
    with pytest.raises(ConfigurationError, match="Certificates of the link"):
        certificates(options)
