# SPDX-License-Identifier: Apache-2.0
"""Devices that are plugged into running domains: their XML is made here, so that no other one can be plugged.

libvirt's read-write socket is as good as root: a domain can be given any file of the host as a disk. The agent has the
read-only one, and asks for a device by its kind and a domain's UUID.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from host_agent.model.latency import PORT
from host_agent.util.deadline import Deadline
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

LATENCY_PORT: Final = f"<channel type='unix'><target type='virtio' name='{PORT}'/></channel>"
"""Without ``<source path>``: libvirt picks a socket per domain and host. It plugs no second one of the same name."""

# Calls about one domain wait for its QEMU; where those of two do not return it is libvirt that does not answer.
_OVERDUE_DOMAINS_MAX: Final = 2


class Devices:
    """Plugs devices; a connection to libvirt is made for each, for there are few of them.

    :param uri: connection URI
    :param timeout_s: longest wait for libvirt, seconds
    """

    def __init__(self, uri: str = "qemu:///system", timeout_s: float = 10.0) -> None:
        self._uri = uri
        self._deadline = Deadline(timeout_s, "libvirt-plug", _OVERDUE_DOMAINS_MAX)

    def plug_latency_port(self, uuid: str) -> None:
        """Plug the port through which a guest reports its latencies into a running domain, until it ends.

        :raises ServiceUnavailableError: libvirt does not answer
        :raises CapabilityMissingError: libvirt refuses, or the domain has gone
        """
        self._call(partial(_attach, self._uri, uuid, LATENCY_PORT), uuid)

    def _call(self, plug: Callable[[], None], uuid: str) -> None:
        try:
            self._deadline.call(plug, uuid)
        except TimeoutError as error:
            raise ServiceUnavailableError(f"libvirt does not answer: {error}") from error


def _attach(uri: str, uuid: str, device: str) -> None:
    import libvirt

    libvirt.registerErrorHandler(_ignore, None)  # its default prints; errors are exceptions anyway
    connection: Any = None
    try:
        connection = libvirt.open(uri)
        domain = connection.lookupByUUIDString(uuid)
        domain.attachDeviceFlags(device, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        if connection is None or not connection.isAlive():
            raise ServiceUnavailableError(f"libvirt does not answer: {error}") from error
        raise CapabilityMissingError(f"libvirt plugs nothing in: {error}") from error
    finally:
        if connection is not None:
            with suppress(libvirt.libvirtError):
                connection.close()


def _ignore(*_arguments: object) -> None:
    """Drop an error that libvirt also raises."""
