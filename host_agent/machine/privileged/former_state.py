# SPDX-License-Identifier: Apache-2.0
"""What an agent of the version before has remembered for the part with rights: an upgrade loses none of it.

That agent was root and kept these files in its own folder, ``[agent]state_dir``; now they are the helper's. One that
the helper has not is copied once: it is good for one boot of the host.

The folder belongs to the agent, so nothing in it is trusted: no link is followed, no pipe waited for, no more read than
such a file can have, and only what its reader accepts is taken. It tells no more than the agent may ask for anyway.
"""

import errno
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import vcpu_quota
from host_agent.machine.privileged.libvirt_state import UUID
from host_agent.machine.rdt.pqos import ClassNames
from host_agent.machine.rdt.root_masks import RootMemory
from placement_traits.json_store import replace_file
from placement_traits.regular_file import open_regular

LOG = logging.getLogger(__name__)

_BYTES_MAX: Final = 1 << 20  # the UUIDs of 4,096 servers take 160 KiB
_MODE: Final = 0o644  # whatever the umask: the agent's side reads the names of libpqos's classes


def _root_is_known(paths: HostPaths) -> bool:
    return RootMemory(paths.helper_state, paths.proc).recall() is not None


def _servers_are_throttled(paths: HostPaths) -> bool:
    servers = vcpu_quota.throttled_servers(paths).load()
    return bool(servers) and all(map(UUID.match, servers or ()))


def _classes_are_named(paths: HostPaths) -> bool:
    return bool(ClassNames(paths.helper_state, paths.proc).recall())


_FILES: Final[Mapping[str, Callable[[HostPaths], bool]]] = {
    "rdt-root.json": _root_is_known,
    "throttled.json": _servers_are_throttled,
    "pqos-classes.json": _classes_are_named,
}
"""File -> whether it can be used, in ``helper_state`` of the paths."""


def take_over(paths: HostPaths) -> None:
    """Copy what can be used of these files into the helper's folder, which must be there.

    One that cannot be used, or copied, is logged: without it ``reset`` gives root all ways.
    """
    for name, usable in _FILES.items():
        old, own = paths.state / name, paths.helper_state / name
        try:
            if not own.exists() and _copied(old, own, paths, usable):
                LOG.info("%s is taken over from %s", name, paths.state)
        except FileNotFoundError:
            continue  # the usual case: no older agent was here
        except OSError as error:
            LOG.warning("%s is not taken over: %s", old, error.strerror)


def _copied(old: Path, own: Path, paths: HostPaths, usable: Callable[[HostPaths], bool]) -> bool:
    data = _content(old)
    with tempfile.TemporaryDirectory(dir=own.parent) as folder:
        (Path(folder) / own.name).write_bytes(data)
        if not usable(replace(paths, helper_state=Path(folder))):
            return False
    replace_file(own, data, _MODE)
    return True


def _content(path: Path) -> bytes:
    """Read a whole file.

    :raises OSError: it cannot be read, is no file, or too large
    """
    with open_regular(path) as file:
        data = file.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has more than {_BYTES_MAX} bytes")
    return data
