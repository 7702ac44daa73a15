# SPDX-License-Identifier: Apache-2.0
"""A Python that has imported what the services of an emulated host need, and becomes them by fork.

Importing nova is most of what a nova-compute under emulation takes to serve. ``guest/init`` runs this before the host
has its name or its file tree, so that it can be saved with the machine's state and many hosts start from that. Its root
is the disk with the virtual environment; what it forks moves to that of process 1.

    fork_server.py FOLDER ROOT      serve: FOLDER/fork-server takes requests, FOLDER/fork-server-ready gets a line first
    fork_server.py --mapped         print the files that this takes into memory

A request is a line with the name of a JSON file: ``argv`` (a Python program and its words), ``environment``, ``log``,
``pid_file``, which is written in the format of ``guest/service``, and ``executable``, its ``sys.executable``.

Nothing here may start a thread or open a connection: a fork would share it.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys

# What a nova-compute and an agent that serve have imported, but for the checkout's own packages.
MODULES = (
    "nova.cmd.compute",
    "nova.compute.pci_placement_translator",
    "nova.objects.*",
    "nova.quota",
    "nova.share.manila",
    "nova.virt.libvirt.driver",
    "oslo_messaging._drivers.impl_rabbit",
    "oslo_messaging.notify._impl_noop",
    "statistics",
    "vif_plug_noop.noop",
    "vif_plug_ovs.ovs",
)


def main(*words: str) -> None:
    for name in MODULES:
        load(name)
    if words == ("--mapped",):
        print(*sorted(mapped_files()), sep="\n")
    else:
        serve(*words)


def load(name: str) -> None:
    """Import a module; after ".*" all in a package."""
    package, every, _ = name.partition(".*")
    module = importlib.import_module(package)
    if every:
        for found in pkgutil.iter_modules(module.__path__):
            importlib.import_module(f"{package}.{found.name}")


def mapped_files() -> set[str]:
    """Names of the files that this process has in its memory."""
    with open("/proc/self/maps") as lines:
        return {name.strip() for line in lines if (name := line[73:]).startswith("/")}


def serve(folder: str, root: str) -> None:
    """Fork for each request until the machine ends; returns in what was forked, when its program has ended."""
    gc.collect()
    gc.freeze()
    # The kernel reaps what is forked.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Also open for writing, so that it has no end.
    with open(f"{folder}/fork-server", "r+b", buffering=0) as requests:
        with open(f"{folder}/fork-server-ready", "w") as ready:
            ready.write("\n")
        pending = b""
        while True:
            pending += requests.read(4096)
            *lines, pending = pending.split(b"\n")
            for line in lines:
                if os.fork() == 0:
                    requests.close()
                    become(line.decode(), root)
                    return


def become(request: str, root: str) -> None:
    """Be the program of a request."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chroot(root)
    os.chdir("/")
    with open(request) as stream:
        order = json.load(stream)
    os.environ.clear()
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    with open("/proc/self/stat") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
        started = stat.read().rpartition(")")[2].split()[19]
        identity = f"{os.getpid()} {started} {boot.read()}"
    with open(order["pid_file"], "w") as stream:
        stream.write(identity)
    # Folders that were not there before may be now.
    sys.path_importer_cache.clear()
    sys.executable = order["executable"]
    sys.argv = order["argv"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
