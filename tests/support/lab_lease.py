# SPDX-License-Identifier: Apache-2.0
"""Both ends of a lease's road, for emulated hosts of the lab: run inside them, as root.

::

    lab_lease serve FOLDER PROGRAM ADDRESS        a lease of this host: prints where its gateway listens
    lab_lease lead FOLDER PROGRAM SERVER ADDRESS  plugs a vsock device into a server, and leads its guest there
    lab_lease end FOLDER                          ends the lease

The server of the lease answers each line with its SHA-256: what is computed on one host is checked in a guest of
another one, by busybox. Where the folder has ``pocl.toml``, it is ``pocld``. Certificates of ``gpu`` and ``compute``
are in the folder. Supervisor, gateway, doorman and what plugs the device are the product's; in place of the job service
stands who runs this.
"""

import subprocess
import sys
import time
from pathlib import Path

from host_agent.cmd.leases import guest_domains
from host_agent.conf.paths import HostPaths
from host_agent.machine.libvirt import LibvirtSource
from host_agent.machine.privileged.operations import HostOperations
from host_agent.remote_gpu.answer import AttachedLease, ServedLease
from host_agent.remote_gpu.doors import Doors
from host_agent.remote_gpu.groups import LeaseGroups, own_group
from host_agent.remote_gpu.link_files import LinkFiles, LinkPaths
from host_agent.remote_gpu.processes import LeaseCommand, LeaseProcesses
from host_agent.transports import pocl
from host_agent.transports.fake import FakeTransport
from placement_traits.errors import ServiceUnavailableError

LEASE = "5e0f6d1c-0000-4000-8000-00000000000a"
TURN_S, STARTED_S = 1.0, 300.0
_DECLARED = """
name = "digest"
apis = ["opencl"]
slices = "advisory"
[server]
argv = ["/usr/bin/python3", "-I", "-S", "{script}", "{{port}}"]
environment = {{ HOME = "{{folder}}" }}
paths = ["{script}"]
[guest.environment]
DIGEST = "{{endpoints}}"
"""
_SCRIPT = """
import hashlib, socket, sys, threading
def serve(client):
    with client:
        for line in client.makefile("rb"):
            client.sendall(hashlib.sha256(line.strip()).hexdigest().encode() + b"\\n")
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""


def processes(folder: Path, program: Path, address: str) -> LeaseProcesses:
    """Return what runs leases of this host."""
    script = folder / "digest.py"
    script.write_text(_SCRIPT)
    (folder / "digest.toml").write_text(_DECLARED.format(script=script))
    run = Path("/run/lab-lease")
    run.mkdir(exist_ok=True)
    transport = "pocl" if (folder / "pocl.toml").exists() else "digest"
    command = LeaseCommand(transport, folder, address, {"gpu": "gpu"}, link=program)
    paths = LinkPaths(*(folder / each for each in ("gpu.pem", "gpu.key", "ca.pem", "none.pem")))
    return LeaseProcesses(run, command, LeaseGroups(run, own_group()), LinkFiles(paths))


def serve(folder: Path, program: Path, address: str) -> None:
    """Serve the lease at epoch 1 to the doorman of ``compute``; start it again until it runs, as supervisors do."""
    found = processes(folder, program, address)
    until_s = time.monotonic() + STARTED_S
    while True:
        try:
            found.start(ServedLease(LEASE, 1, "gpu", 500, "silver", "opencl", 0, "compute"))
            break
        except ServiceUnavailableError:
            if time.monotonic() > until_s:
                raise
            time.sleep(TURN_S)
    sys.stdout.write(f"{found.serve(LEASE, 1, 'compute')[1]}\n")


def lead(folder: Path, program: Path, server: str, address: str) -> None:
    """Plug the device, keep the doorman's file, and run the doorman, until this is killed."""
    libvirt = LibvirtSource("qemu:///system", 60.0)
    file = Path("/run/lab-attachments.json")
    own = folder / "pocl.toml"
    transport = pocl.read(own) if own.exists() else FakeTransport()
    doors = Doors(HostOperations(HostPaths()), lambda: guest_domains(libvirt), transport, file)
    options = ("-ca", folder / "ca.pem", "-certificate", folder / "compute.pem")
    options += ("-key", folder / "compute.key", "-crl", folder / "none.pem")
    attached = AttachedLease(LEASE, 1, server, "opencl", address, "gpu")
    doors.turn([attached])
    with subprocess.Popen([program, "doorman", "-attachments", file, *options]):
        while True:
            time.sleep(TURN_S)
            doors.turn([attached])


def main() -> None:
    """Do what is asked for."""
    what, folder, *rest = sys.argv[1:]
    place = Path(folder)
    if what == "serve":
        serve(place, Path(rest[0]), rest[1])
    elif what == "lead":
        lead(place, Path(rest[0]), rest[1], rest[2])
    else:
        processes(place, Path("/bin/false"), "127.0.0.1").end(LEASE)


if __name__ == "__main__":
    main()
