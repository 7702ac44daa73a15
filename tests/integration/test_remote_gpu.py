# SPDX-License-Identifier: Apache-2.0
"""A server on h1 has something computed by a lease of h2, over vsock and TLS, and checks the result itself.

Once digests of lines, once a program of OpenCL on h2's processor, by PoCL.

::

    guest ══ vsock ══ doorman of h1 ══ TLS 1.3 ══ gateway of the lease, in its namespaces ── server on h2

The vsock device is plugged into the server when that runs; its guest has no network and no other way out. Nothing is
timed: both hosts are emulated, and the guest within one of them.
"""

import json
import shlex
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from numa_lab import gpu_client, link_build
from numa_lab.kernel import SMALL_LINUX

from benchmarks.link_certificates import write_certificates
from tests.integration.cloud import CHECKOUT, LabCloud, LabHost, eventually
from tests.support.built_link import built_link
from tests.support.built_pocl import built_pocl
from tests.support.pocl_server import write_pocl
from tests.support.small_linux import kernel

pytestmark = pytest.mark.long
PATIENCE_S = 1200.0
NO_CX16 = "clearcpuid=cx16"
"""QEMU's own processor, within one of QEMU's, spoils flags after a cmpxchg16b: Linux 6.12 dies in its first seconds."""


def lab_lease(host: LabHost, *words: object, background: bool = False) -> str:
    """Run one end of the road inside a host; in the background, return the number of its process."""
    command = shlex.join(
        ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "tests.support.lab_lease"]
        + [str(word) for word in words]
    )
    log = shlex.quote(f"{words[1]}/{words[0]}.log")
    if background:
        command = f"setsid {command} > {log} 2>&1 < /dev/null & echo $!"
    else:  # what it leaves running has its standard error, which the shell would wait for
        command = f"{command} 2> {log} || {{ cat {log} >&2; false; }}"
    return host.run(command, 600).strip()


@pytest.fixture(params=["digest", "pocl"])
def transport(request: pytest.FixtureRequest) -> str:
    """What carries the lease."""
    return str(request.param)


@pytest.fixture
def road(running_cloud: LabCloud, transport: str) -> Iterator[dict[str, Path]]:
    """Folders that each host sees at the same path, with certificates of both, and the programs."""
    hosts = running_cloud.hosts
    folders = {name: hosts[name].emulated.folder / "lease" for name in ("h1", "h2")}
    program = built_link() / link_build.PROGRAM
    folders["h1"].mkdir(exist_ok=True)
    folders["h2"].mkdir(exist_ok=True)
    write_certificates(folders["h1"], "compute", "gpu")
    for name, folder in folders.items():
        if name != "h1":
            for each in folders["h1"].glob("*.*"):
                (folder / each.name).write_bytes(each.read_bytes())
        copy = folder / program.name
        copy.write_bytes(program.read_bytes())
        copy.chmod(0o755)
        (folder / "pocl.toml").unlink(missing_ok=True)
        if transport == "pocl":
            pocl = built_pocl()
            for each in (pocl.server, pocl.layer):
                (folder / each.name).write_bytes(each.read_bytes())
            write_pocl(folder, folder / pocl.server.name, folder / pocl.layer.name)
        for each in folder.iterdir():
            each.chmod(0o755)  # the lab's users inside read them
    yield folders
    hosts["h2"].run(f"rm -rf {shlex.quote(str(folders['h2']))}/*.log; true")


@pytest.fixture
def image(cloud: LabCloud, transport: str, tmp_path: Path) -> Iterator[str]:
    """``gpu-client``: an empty disk with a kernel and an initramfs of its own."""
    found = kernel()
    pocl = built_pocl() if transport == "pocl" else None
    made = gpu_client.write(tmp_path, found, built_link() / link_build.PROGRAM, pocl)
    name = f"gpu-client-{uuid.uuid4().hex[:8]}"
    images: list[str] = []

    def upload(part: str, file: Path, kind: str, *properties: str) -> str:
        options = [word for text in properties for word in ("--property", text)]
        formats = ("--disk-format", kind, "--container-format", "bare" if kind == "raw" else kind)
        words = ("image", "create", *formats, "--file", str(file), *options, f"{name}-{part}")
        images.append(str(json.loads(cloud.openstack(*words, "-f", "json").stdout)["id"]))
        return images[-1]

    try:
        parts = {
            "kernel_id": upload("kernel", found.image, "aki"),
            "ramdisk_id": upload("initramfs", made, "ari"),
            "os_command_line": f"{SMALL_LINUX} {NO_CX16}",
        }
        yield upload(
            "disk", tmp_path / "disk", "raw", *(f"{key}={value}" for key, value in parts.items())
        )
    finally:
        cloud.openstack("image", "delete", *images, check=False)


def test_a_server_computes_on_another_hosts_lease_over_vsock(
    cloud: LabCloud, image: str, transport: str, road: dict[str, Path]
) -> None:
    h1, h2 = cloud.hosts["h1"], cloud.hosts["h2"]
    h1.run("modprobe vhost_vsock")
    server = cloud.boot(cloud.flavor({}, ram=384), "--availability-zone", "nova:h1", image=image)

    def console() -> str:
        return str(cloud.openstack("console", "log", "show", server.id, check=False).stdout)

    eventually("the guest runs", lambda: "RGPU-UP" in console(), PATIENCE_S, 10, console)
    program = link_build.PROGRAM
    address = h2.emulated.peer_address
    doing = ""
    try:
        gateway = lab_lease(h2, "serve", road["h2"], road["h2"] / program, address)
        doing = lab_lease(
            h1, "lead", road["h1"], road["h1"] / program, server.id, gateway, background=True
        )
        done = f"RGPU-OK {gpu_client.ANSWERS}" if transport == "digest" else "RGPU-OK "
        eventually(
            "the guest has its answers",
            lambda: done in console(),
            PATIENCE_S,
            10,
            lambda: (console()[-2000:], h1.run(f"cat {road['h1']}/lead.log")[-2000:]),
        )
        assert "RGPU-WRONG" not in console()
    finally:
        if doing:
            h1.run(f"kill -- -{doing}; true")
        lab_lease(h2, "end", road["h2"])
