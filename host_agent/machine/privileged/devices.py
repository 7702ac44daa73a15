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

VSOCK_ALIAS: Final = "ua-numa-ext-rgpu"
"""The name by which a vsock device is ours; another one is never unplugged. libvirt lets users name ``ua-…`` alone."""
VSOCK: Final = f"<vsock model='virtio'><cid auto='yes'/><alias name='{VSOCK_ALIAS}'/></vsock>"
"""libvirt chooses the CID; a domain has one such device at most."""

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
        self._call(partial(_attach, LATENCY_PORT), uuid)

    def plug_vsock(self, uuid: str) -> None:
        """Plug the device by which a guest reaches its host's doorman into a running domain, until it ends.

        Errors as of :meth:`plug_latency_port`; a domain that has one already refuses a second.
        """
        self._call(partial(_attach, VSOCK), uuid)

    def unplug_vsock(self, uuid: str) -> None:
        """Ask a running domain's guest to let go of that device; it is gone when it has.

        Errors as of :meth:`plug_latency_port`; a domain that has none of ours refuses.
        """
        self._call(_detach_vsock, uuid)

    def _call(self, change: Callable[[Any], None], uuid: str) -> None:
        try:
            self._deadline.call(partial(_changed, change, self._uri, uuid), uuid)
        except TimeoutError as error:
            raise ServiceUnavailableError(f"libvirt does not answer: {error}") from error


def _attach(device: str, domain: Any) -> None:
    import libvirt

    domain.attachDeviceFlags(device, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def _detach_vsock(domain: Any) -> None:
    import libvirt

    domain.detachDeviceAlias(VSOCK_ALIAS, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def _changed(change: Callable[[Any], None], uri: str, uuid: str) -> None:
    import libvirt

    libvirt.registerErrorHandler(_ignore, None)  # its default prints; errors are exceptions anyway
    connection: Any = None
    try:
        connection = libvirt.open(uri)
        change(connection.lookupByUUIDString(uuid))
    except libvirt.libvirtError as error:
        if connection is None or not connection.isAlive():
            raise ServiceUnavailableError(f"libvirt does not answer: {error}") from error
        raise CapabilityMissingError(f"libvirt plugs nothing in or out: {error}") from error
    finally:
        if connection is not None:
            with suppress(libvirt.libvirtError):
                connection.close()


def _ignore(*_arguments: object) -> None:
    """Drop an error that libvirt also raises."""
