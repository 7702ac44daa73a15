# SPDX-License-Identifier: Apache-2.0
"""The guest reporter end to end: a small Linux that nova boots on the local compute, whose port the agent plugs in.

The local compute has no RDT, and each latency-critical server needs a class of service: a provider beside the agent's
lends one, and the server is forced there past the filters. Levels play no part here, only the way of the latencies.
"""

import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from numa_lab.kernel import SMALL_LINUX

from tests.integration.cloud import LabCloud, eventually, run_on
from tests.support.reporting_guest import LATENCY_US, initramfs, kernel

HOST = "local"
LC = {
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "numa_ext:tier": "LC",
    "numa_ext:slo_p99_us": "1000",
    "resources:CUSTOM_RDT_CLOS": "1",
}
PATIENCE_S = 600.0


def made(cloud: LabCloud, *words: str) -> str:
    """Run a command of ``openstack`` that makes something; return its id."""
    shown = json.loads(cloud.openstack(*words, "-f", "json").stdout)
    return str(shown.get("id") or shown["uuid"])


@pytest.fixture
def image(cloud: LabCloud, tmp_path: Path) -> Iterator[str]:
    """The small Linux: an empty disk with a kernel and an initramfs of its own."""
    found = kernel()
    (tmp_path / "initramfs").write_bytes(initramfs(found))
    (tmp_path / "disk").write_bytes(b"\0" * (1 << 20))
    name = f"it-{uuid.uuid4().hex[:8]}"
    images = []

    def upload(part: str, file: Path, kind: str, *properties: str) -> str:
        options = [word for text in properties for word in ("--property", text)]
        formats = ("--disk-format", kind, "--container-format", "bare" if kind == "raw" else kind)
        words = ("image", "create", *formats, "--file", str(file), *options, f"{name}-{part}")
        images.append(made(cloud, *words))
        return images[-1]

    try:
        parts = {
            "kernel_id": upload("kernel", found.image, "aki"),
            "ramdisk_id": upload("initramfs", tmp_path / "initramfs", "ari"),
            "os_command_line": SMALL_LINUX,
            "hw_qemu_guest_agent": "yes",
        }
        properties = [f"{key}={value}" for key, value in parts.items()]
        yield upload("disk", tmp_path / "disk", "raw", *properties)
    finally:
        cloud.openstack("image", "delete", *images, check=False)


@pytest.fixture
def class_of_service(cloud: LabCloud) -> Iterator[None]:
    """A provider below the local compute that has one class of service."""
    version = ("--os-placement-api-version", "1.18")
    (root,) = json.loads(
        cloud.openstack(
            *version, "resource", "provider", "list", "--name", HOST, "-f", "json"
        ).stdout
    )
    words = ("resource", "provider", "create", "--parent-provider", root["uuid"])
    provider = made(cloud, *version, *words, f"it-{uuid.uuid4().hex[:8]}")
    try:
        words = ("resource", "provider", "inventory", "set", provider)
        cloud.openstack(*version, *words, "--resource", "CUSTOM_RDT_CLOS=1")
        yield
        cloud.end()  # its server holds the class
    finally:
        cloud.openstack("resource", "provider", "delete", provider, check=False)


def latency_of(cloud: LabCloud, server: str) -> Callable[[], dict[str, Any] | None]:
    """Return what tells a server's latency as the agent's operator sees it; None while it is not known."""
    ctl = f"{sys.executable} {sys.prefix}/bin/numa-host-agent-ctl"
    command = f"{ctl} --config-file {cloud.lab.local().agent_conf} status -f json"

    def look() -> dict[str, Any] | None:
        rows = {row["uuid"]: row["slo"] for row in json.loads(run_on(cloud.lab, HOST, command, 60))}
        slo = rows.get(server, {})
        return slo if slo.get("p99_us") else None

    return look


@pytest.mark.usefixtures("class_of_service")
def test_a_program_in_a_guest_tells_the_agent_its_latency(cloud: LabCloud, image: str) -> None:
    flavor = cloud.flavor(LC, ram=384)
    server = cloud.boot(flavor, "--availability-zone", f"nova:{HOST}", image=image)
    known = eventually("its latency is known", latency_of(cloud, server.id), PATIENCE_S, 5)
    assert known["source"] == "channel"
    assert known["p99_us"] == pytest.approx(LATENCY_US, rel=0.02)
    assert known["state"] == "ample"
    assert not known["problem"]
