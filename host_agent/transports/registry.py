# SPDX-License-Identifier: Apache-2.0
"""Transports by name: what distributions provide, this one and others, and what files declare.

All that distributions provide are entry points of group ``numa_ext.remote_gpu_transport``: a function without arguments
that returns a :class:`~host_agent.transports.transport.RemoteGpuTransport`. Those of this distribution are taken from
here: each lease's process looks for its transport while a server waits, and a file says where parts of ``pocl`` are.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from host_agent.transports import declared, pocl
from host_agent.transports.fake import FakeTransport
from host_agent.transports.transport import RemoteGpuTransport
from placement_traits.errors import InvalidValueError

GROUP: Final = "numa_ext.remote_gpu_transport"


class Transports:
    """The transports of a host.

    :param folder: whose ``*.toml`` files declare some, and one says where parts of ``pocl`` are; it need not be there
    :raises InvalidValueError: a file is malformed, or two transports have one name
    """

    def __init__(self, folder: Path) -> None:
        own = folder / f"{pocl.PoclTransport.name}.toml"
        self._known: dict[str, RemoteGpuTransport] = {
            FakeTransport.name: FakeTransport(),
            pocl.PoclTransport.name: pocl.read(own),
        }
        for path in sorted(set(folder.glob("*.toml")) - {own}):
            found = declared.read(path)
            if found.name in self._known:
                raise InvalidValueError(f"{path}: name", found.name, "a name that is not taken")
            self._known[found.name] = found

    def named(self, name: str) -> RemoteGpuTransport:
        """Return the transport of a name.

        :raises InvalidValueError: there is none; the error has those that there are
        """
        if name in self._known:
            return self._known[name]
        for point in entry_points(group=GROUP, name=name):
            provided: RemoteGpuTransport = point.load()()
            return provided
        known = ", ".join(sorted({*self._known, *entry_points(group=GROUP).names}))
        raise InvalidValueError("transport of remote GPUs", name, known)
