# SPDX-License-Identifier: Apache-2.0
"""Holds the private namespaces of the local compute; a program of its own, run under ``unshare --mount --uts``.

Inside, libvirt's folders are the lab's, /run is empty, and /dev has only what a guest's QEMU needs. There is no
/dev/kvm: a kvm device that root may open and QEMU cannot use makes libvirt probe QEMU again at every call. A
distribution's own libvirtd, and /dev itself, are untouched; when the last process inside ends, all mounts are gone.
"""

import argparse
import signal
import socket
import subprocess
from pathlib import Path

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_FOLDERS = ("pts", "shm", "hugepages", "mqueue", "net", "vfio")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
    "ptmx": "pts/ptmx",
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hostname", required=True)
    parser.add_argument("--ready", type=Path, required=True, help="written when all is in place")
    parser.add_argument(
        "--bind", action="append", default=[], metavar="FROM:TO", help="a folder, or a file"
    )
    options = parser.parse_args()

    socket.sethostname(options.hostname)
    _own_dev()
    _mount("-t", "tmpfs", "-o", "mode=755", "lab-run", "/run")
    for pair in options.bind:
        source, _, target = pair.partition(":")
        if not Path(source).is_file():
            Path(source).mkdir(parents=True, exist_ok=True)
            Path(target).mkdir(parents=True, exist_ok=True)
        _mount("--bind", source, target)
    options.ready.write_text(options.hostname)
    signal.pause()


def _own_dev() -> None:
    """Put a /dev together elsewhere from binds of the real one, then move it into place."""
    new = Path("/mnt")
    _mount("-t", "tmpfs", "-o", "mode=755,nosuid", "lab-dev", new)
    for name in _DEVICES:
        (new / name).touch()
        _mount("--bind", f"/dev/{name}", new / name)
    for name in _DEVICE_FOLDERS:
        if Path("/dev", name).is_dir():
            (new / name).mkdir()
            _mount("--rbind", f"/dev/{name}", new / name)
    for name, target in _DEVICE_LINKS.items():
        (new / name).symlink_to(target)
    _mount("--move", new, "/dev")


def _mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


if __name__ == "__main__":
    main()
