# SPDX-License-Identifier: Apache-2.0
"""What flavors of servers ask for, by nova: for an operator who does not take a host's word for it."""

import time
from collections.abc import Callable
from math import inf
from typing import Final
from urllib.parse import quote

from nova_numa_ext.orchestrator.cloud.asking import answered, strange
from placement_traits import request
from placement_traits.client import HttpAdapter
from placement_traits.remote_gpu_request import RemoteGpuRequest

FRESH_S: Final = 60.0
"""Seconds for which nova is not asked again about a server."""

_MOST: Final = 10_000
_HIDDEN: Final = (403, 404)


class ServerFlavors:
    """Remote GPUs that servers ask for; for one thread at a time.

    :param compute: a keystoneauth1 adapter for service type ``compute``, microversion 2.47 or later, of a user who may
        read all servers and the extra specs of their flavors: nova's role admin
    :param clock: monotonic seconds
    """

    def __init__(self, compute: HttpAdapter, clock: Callable[[], float] = time.monotonic) -> None:
        self._compute, self._clock = compute, clock
        self._asked: dict[str, tuple[float, RemoteGpuRequest | None]] = {}

    def remote_gpus(self, server: str) -> RemoteGpuRequest | None:
        """Return what a server's flavor asks for; None: nothing, nova shows none, or it makes no sense.

        What its image says of a tier does not count: a flavor without a service level asks for silver.

        :raises ServiceUnavailableError: nova does not answer
        """
        read_s, found = self._asked.get(server, (-inf, None))
        if self._clock() - read_s < FRESH_S:
            return found
        found = self._read(server)
        if len(self._asked) >= _MOST:
            self._asked.clear()
        self._asked[server] = self._clock(), found
        return found

    def _read(self, server: str) -> RemoteGpuRequest | None:
        path = f"/servers/{quote(server, safe='')}"
        answer = answered(self._compute, "Nova", "GET", path)
        if answer.status_code in _HIDDEN:
            return None
        if answer.status_code != 200:
            raise strange(answer, "Nova", f"GET {path}")
        try:
            flavor = answer.json()["server"]["flavor"]
            specs = dict(flavor.get("extra_specs", {}))  # not there for who may not read them
            vcpus, memory_mb = int(flavor["vcpus"]), int(flavor["ram"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise strange(answer, "Nova", f"GET {path}") from error  # a proxy's page
        try:
            return request.parse(specs, vcpus=vcpus, memory_mb=memory_mb).remote_gpus
        except request.InvalidRequestError:
            return None  # the host's agent reports why
