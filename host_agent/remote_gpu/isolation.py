# SPDX-License-Identifier: Apache-2.0
"""Namespaces of a lease's process: it sees nothing of its host but programs, its folder and its GPU.

A process that has no rights makes a user namespace, in which it has all, and by these the others; then it gives them
up. So the supervisor needs no capability, and neither has what it starts::

    host                       │ namespaces of one lease: user, mount, process, network, IPC, host name, control group
    numa-host-agent-leases     │
     └─ process, waits ────────┼─> 1  init: reaps; ends with 2, and all with it
                               │    └─ 2  lease_process: sockets of the host that were open before, and handed over
                               │        └─ 3  server of the transport, on this network's 127.0.0.1

    /                  read only, as what follows: /usr and links into it, few files of /etc, what the transport names
    /lease             the lease's folder
    /dev               null, zero, random, urandom, and the nodes of its GPU
    /tmp /dev/shm      in memory, of limited size
    /proc              of these processes

Numbers below 300 are not used again there, so that what was frozen elsewhere gets its own numbers back
(:mod:`.checkpoint`).

All users of the host have the kernel's overflow id there, the process itself, too. It can make no namespace in turn,
and gets no right by any program. No folder of the host stays open over the change: by one the whole host could be
reached.

Sources: user_namespaces(7), pid_namespaces(7), mount_setattr(2), pivot_root(2).
"""

import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host_agent.util.parent import die_with_parent
from placement_traits.command_line import SAFE_FOLDER, module
from placement_traits.errors import CapabilityMissingError

FOLDER: Final = Path("/lease")
"""Where a lease's process has its folder."""

_INNER_ID: Final = 65534
_FIRST_NUMBER: Final = (
    300  # the kernel's RESERVED_PIDS, from which it counts on when numbers have run out
)
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_PROGRAMS: Final = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_FILES: Final = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/OpenCL", "/etc/localtime"),
)
_DEVICES: Final = tuple(map(Path, ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")))
_SCRATCH: Final = "mode=1777,size=64m"
_FILES_PER_MB: Final = 256  # 4 KiB each

_CLONE_NEWNS, _CLONE_NEWCGROUP, _CLONE_NEWUTS, _CLONE_NEWIPC = 1 << 17, 1 << 25, 1 << 26, 1 << 27
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 1 << 28, 1 << 29, 1 << 30
_SPACES: Final = (
    _CLONE_NEWUSER
    | _CLONE_NEWNS
    | _CLONE_NEWPID
    | _CLONE_NEWNET
    | _CLONE_NEWIPC
    | _CLONE_NEWUTS
    | _CLONE_NEWCGROUP
)
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1 << 1, 1 << 2, 1 << 3
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1 << 0, 1 << 1, 1 << 2
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 1 << 15, 1 << 1
_SYS_MOUNT_SETATTR: Final = 442  # of every architecture that Linux gave numbers to since 5.1
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITY_VERSION_3: Final = 0x20080522
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_INTERFACE: Final = struct.Struct("16sh14x")

_NO_NAMESPACES: Final = (
    "user namespaces are forbidden to this user; see the sysctls user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns, and RestrictNamespaces= of its "
    "unit"
)
_NO_MOUNTS: Final = (
    "its unit, the container it is in, or AppArmor (kernel.apparmor_restrict_unprivileged_userns) covers a part of "
    "/proc or forbids system calls that mount"
)


@dataclass(frozen=True, slots=True)
class Visible:
    """What a lease's process sees of its host beside the usual.

    :param folder: where its root is made; nothing is written there
    :param paths: that it may read
    :param devices: nodes of its GPU
    :param folder_mb: room of its own folder, which is in memory, MiB
    """

    folder: Path
    paths: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    folder_mb: int = 64


def _nothing() -> None:
    pass


def enter(visible: Visible, first: Callable[[], None] = _nothing) -> None:
    """Go on in namespaces of its own, as their process 2; this process has one thread, and no folder open.

    The caller's own process waits for that and ends as it does; if it is killed, all of it is.

    :param first: is called there before the rights over these namespaces are given up; it closes folders that are open
    :raises CapabilityMissingError: the kernel, or the unit's sandbox, does not let it
    """
    paths = [each.absolute() for each in (*_own_code(), *visible.paths)]
    _unshare()
    init = os.fork()
    if init:
        _give_up()
        _close_all()
        os._exit(_ended_with(init))
    die_with_parent()
    try:
        _furnish(visible, paths)
    except FileNotFoundError as error:
        raise CapabilityMissingError(f"{error.filename} is not on this host.") from error
    except OSError as error:
        raise CapabilityMissingError(
            f"The process of a lease cannot be kept apart, {error.strerror} ({error.filename}): {_NO_MOUNTS}."
        ) from error
    second = os.fork()
    if second:
        _give_up()
        _reap_until(second)
    try:
        first()
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(_FIRST_NUMBER))
    finally:
        _give_up()


def check() -> None:
    """See in a process of its own that all of it can be done.

    :raises CapabilityMissingError: it cannot be
    """
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            module(__name__, folder), cwd=SAFE_FOLDER, capture_output=True, text=True, check=False
        )
    if tried.returncode:
        raise CapabilityMissingError(tried.stderr.strip())


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        _called("unshare", _LIBC.unshare(_SPACES))
        for file, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{_INNER_ID} {user} 1"),
            ("gid_map", f"{_INNER_ID} {group} 1"),
        ):
            Path("/proc/self", file).write_text(text)
    except OSError as error:
        why = _NO_NAMESPACES
        if error.errno == errno.EINVAL:
            why = "this kernel has no user, process or network namespaces"
        raise CapabilityMissingError(
            f"The process of a lease cannot be kept apart, {error.strerror}: {why}."
        ) from error


def _own_code() -> Iterable[Path]:
    """What this program is made of: the interpreter, libraries, and our packages."""
    ours = [Path(str(sys.modules[name].__file__)).parent for name in _packages()]
    return (Path(sys.prefix), Path(sys.base_prefix), *ours)


def _packages() -> Iterable[str]:
    own = ("host_agent", "nova_numa_ext", "placement_traits")
    return (name for name in own if name in sys.modules)


def _furnish(visible: Visible, paths: Sequence[Path]) -> None:
    """Make the root, and go there."""
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    root = visible.folder
    sources = {each: os.open(each, os.O_PATH) for each in _seen(paths, visible.devices)}
    _mount("root", root, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for scratch in ("tmp", "dev/shm"):
        (root / scratch).mkdir(parents=True, exist_ok=True)
        _mount("scratch", root / scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, _SCRATCH)
    (root / "proc").mkdir()
    _mount("proc", root / "proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for each, source in sources.items():
        device = each in _DEVICES or each in visible.devices
        _show(source, _below(root, each), 0 if device else _ATTR_NODEV)
        os.close(source)
    _links(root)
    own = _below(root, FOLDER)
    own.mkdir()
    options = f"mode=700,size={visible.folder_mb}m,nr_inodes={visible.folder_mb * _FILES_PER_MB}"
    _mount("lease", own, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    _set_attributes(root, _ATTR_RDONLY | _ATTR_NOSUID, recursive=False)
    _pivot(root)
    _loopback_up()
    socket.sethostname("lease")
    # A namespace in turn would have rights again, and with them more of the kernel in reach.
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def _seen(paths: Sequence[Path], devices: Sequence[Path]) -> list[Path]:
    """Return what is mounted, each once, and no part of what is mounted already."""
    usual = ["/usr", *(each for each in _PROGRAMS if not os.path.islink(each)), *_FILES]
    there = [each for each in (*map(Path, usual), *paths) if each.exists()]
    apart = [
        each for each in dict.fromkeys(there) if not any(above in there for above in each.parents)
    ]
    return [*sorted(apart), *_DEVICES, *devices]


def _links(root: Path) -> None:
    for each in _PROGRAMS:
        if os.path.islink(each):
            (root / each[1:]).symlink_to(os.readlink(each))
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0")):
        (root / "dev" / name).symlink_to(target)


def _below(root: Path, path: Path) -> Path:
    return root / path.relative_to("/")


def _show(source: int, target: Path, attributes: int) -> None:
    """Mount a file or folder of the host, to be read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.isdir(f"/proc/self/fd/{source}"):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(f"/proc/self/fd/{source}", target, "", _MS_BIND | _MS_REC)
    _set_attributes(target, attributes | _ATTR_NOSUID | _ATTR_RDONLY, recursive=True)


def _pivot(root: Path) -> None:
    os.chdir(root)
    _called("pivot_root", _LIBC.pivot_root(b".", b"."))
    _called("umount the host", _LIBC.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        found = fcntl.ioctl(asked, _SIOCGIFFLAGS, _INTERFACE.pack(b"lo", 0))
        _name, flags = _INTERFACE.unpack(found)
        fcntl.ioctl(asked, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", flags | _IFF_UP))


def _give_up() -> None:
    """Give up all rights for ever, and be no process that the server may trace, of the same user as it is."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _called("prctl", _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _called("capset", _LIBC.capset(header, bytes(24)))
    _called("prctl", _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _called("prctl", _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def _reap_until(process: int) -> None:
    """Be the init of the namespaces: take the exit status of all that end, and end with one of them."""
    # The only one for which Python has a handler; the kernel keeps all others from an init.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _close_all()
    while True:
        ended, status = os.wait()
        if ended == process:
            os._exit(_status(status))


def _close_all() -> None:
    """Close the sockets and the lock, which are for those who serve: open here they would outlive them."""
    os.closerange(sys.stderr.fileno() + 1, os.sysconf("SC_OPEN_MAX"))


def _ended_with(process: int) -> int:
    _process, status = os.waitpid(process, 0)
    return _status(status)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _mount(source: str, target: str | Path, kind: str, flags: int, options: str = "") -> None:
    words = [os.fsencode(each) for each in (source, target, kind, options)]
    source_, target_, kind_, options_ = words
    done = _LIBC.mount(source_, target_, kind_, ctypes.c_ulong(flags), options_)
    _called(f"mount {target}", done)


def _set_attributes(target: Path, attributes: int, *, recursive: bool) -> None:
    """Add attributes to a mount, and to those below it; those that there are stay."""
    asked = struct.pack("4Q", attributes, 0, 0, 0)
    done = _LIBC.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(target),
        _AT_RECURSIVE if recursive else 0,
        asked,
        len(asked),
    )
    _called(f"mount_setattr {target}", done)


def _called(what: str, done: int) -> None:
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def main() -> int:
    """Try it with a folder; return the exit status, and say why it is not 0."""
    try:
        enter(Visible(Path(sys.argv[1])))
    except CapabilityMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
