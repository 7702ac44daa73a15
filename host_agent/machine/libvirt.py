# SPDX-License-Identifier: Apache-2.0
"""The libvirt of this host: domains, lifecycle events, and a connection that comes back.

Events only say *look again*; what is true is always read from the domain list, so a lost event costs time until the
next resync and nothing else. libvirt is imported on first use: it takes long to load and tests do without it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from host_agent.model.workload import Activity
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError

LOG = logging.getLogger(__name__)

_KEEPALIVE_S: Final = 5
_KEEPALIVE_COUNT: Final = 3


@dataclass(frozen=True, slots=True)
class ListedDomain:
    """One domain: UUID, live XML and what may be done to it."""

    uuid: str
    xml: str
    activity: Activity


class DomainSource(Protocol):
    """What the agent needs of libvirt."""

    def hostname(self) -> str:
        """Nova's name of this hypervisor."""

    def domains(self) -> tuple[ListedDomain, ...]:
        """All active domains."""

    def migrating(self, uuid: str) -> bool:
        """Whether a job such as a live migration runs on the domain."""

    def attach(self, uuid: str, device: str) -> None:
        """Plug a device into a running domain."""

    def perf_totals(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of running domains, as far as libvirt counts them: UUID -> event -> total."""

    def wait(self, seconds: float) -> bool:
        """Wait for an event or :meth:`wake`; return whether there was one."""

    def has_events(self) -> bool:
        """Whether domains have changed since this was asked last: they have to be listed again."""

    def wake(self) -> None:
        """End a wait; that alone is no event."""


class LibvirtSource:
    """A connection to libvirtd that is opened again whenever it was lost; any thread may use it.

    :param uri: connection URI
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._connection: Any = None
        self._opening = threading.Lock()
        self._woken = threading.Event()
        self._changed = threading.Event()
        self._loop: threading.Thread | None = None

    def hostname(self) -> str:
        """Return libvirt's host name, which nova uses as hypervisor hostname.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        with self._using() as connection:
            return str(connection.getHostname())

    def domains(self) -> tuple[ListedDomain, ...]:
        """List all active domains with their live XML.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        with self._using() as connection:
            return tuple(self._listed(connection))

    @staticmethod
    def _listed(connection: Any) -> Iterator[ListedDomain]:
        import libvirt

        for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            try:
                state = domain.state()[0]
                yield ListedDomain(domain.UUIDString(), domain.XMLDesc(), _activity(state))
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise

    def migrating(self, uuid: str) -> bool:
        """Tell whether a job (migration, dump, save) runs on the domain.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        import libvirt

        with self._using() as connection:
            try:
                job = connection.lookupByUUIDString(uuid).jobInfo()
            except libvirt.libvirtError as error:
                if error.get_error_code() in (
                    libvirt.VIR_ERR_NO_DOMAIN,
                    libvirt.VIR_ERR_OPERATION_INVALID,
                ):
                    return False
                raise
        return bool(job[0] != libvirt.VIR_DOMAIN_JOB_NONE)

    def attach(self, uuid: str, device: str) -> None:
        """Plug a device into a running domain, until it ends.

        :param device: XML
        :raises ServiceUnavailableError: libvirt does not answer
        :raises CapabilityMissingError: libvirt refuses, or the domain has gone
        """
        import libvirt

        with self._using() as connection:
            try:
                domain = connection.lookupByUUIDString(uuid)
                domain.attachDeviceFlags(device, libvirt.VIR_DOMAIN_AFFECT_LIVE)
                self._changed.set()
            except libvirt.libvirtError as error:
                if not connection.isAlive():
                    raise
                raise CapabilityMissingError(f"libvirt plugs nothing in: {error}") from error

    def perf_totals(self) -> Mapping[str, Mapping[str, int]]:
        """Return UUID -> event -> total of all running domains whose perf events nova has turned on.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        import libvirt

        with self._using() as connection:
            found = connection.getAllDomainStats(
                libvirt.VIR_DOMAIN_STATS_PERF, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
            )
            return {
                domain.UUIDString(): {
                    name.removeprefix("perf."): total
                    for name, total in totals.items()
                    if name.startswith("perf.")
                }
                for domain, totals in found
            }

    def wait(self, seconds: float) -> bool:
        """Wait for a lifecycle event or :meth:`wake`; return whether there was one."""
        happened = self._woken.wait(seconds)
        self._woken.clear()
        return happened

    def has_events(self) -> bool:
        """Tell whether there was a lifecycle event, a new connection or a device plugged in since the last call."""
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    def wake(self) -> None:
        """End a wait; that alone is no event."""
        self._woken.set()

    def close(self) -> None:
        """Close the connection."""
        with self._opening:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _quietly(connection.close)

    @contextmanager
    def _using(self) -> Iterator[Any]:
        """Lend the connection; turn libvirt's errors into ours, and let the next call open a new one.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        import libvirt

        connection = None
        try:
            with self._opening:
                connection = self._connected()
            yield connection
        except libvirt.libvirtError as error:
            with self._opening:
                if connection is self._connection:  # another thread may have opened a new one since
                    self._close()
            raise ServiceUnavailableError(f"libvirt does not answer: {error}") from error

    def _connected(self) -> Any:
        import libvirt

        if self._connection is not None and self._connection.isAlive():
            return self._connection
        self._close()
        self._start_loop()
        connection = libvirt.open(self._uri)
        try:
            connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
        except libvirt.libvirtError as error:
            LOG.debug(
                "no keepalive on %s: %s", self._uri, error
            )  # drivers within the process have none
        connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_event, None
        )
        # A libvirtd that ends wakes the loop, which then looks for it every round.
        connection.registerCloseCallback(self._on_event, None)
        self._connection = connection
        self._on_event()
        LOG.info("connected to libvirt at %s", self._uri)
        return connection

    def _on_event(self, *_arguments: object) -> None:
        self._changed.set()
        self._woken.set()

    def _start_loop(self) -> None:
        import libvirt

        if self._loop is not None:
            return
        libvirt.registerErrorHandler(
            _ignore, None
        )  # its default prints; errors come as exceptions anyway
        libvirt.virEventRegisterDefaultImpl()

        def run() -> None:
            while True:
                libvirt.virEventRunDefaultImpl()

        self._loop = threading.Thread(target=run, name="libvirt-events", daemon=True)
        self._loop.start()


def _ignore(*_arguments: object) -> None:
    """Drop an error that libvirt also raises."""


def _quietly(action: Callable[[], object]) -> None:
    import libvirt

    try:
        action()
    except libvirt.libvirtError as error:
        LOG.debug("closing the libvirt connection: %s", error)


def _activity(state: int) -> Activity:
    import libvirt

    if state in (
        libvirt.VIR_DOMAIN_RUNNING,
        libvirt.VIR_DOMAIN_BLOCKED,
    ):
        return Activity.RUNNING
    if state in (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PMSUSPENDED):
        return Activity.PAUSED
    return Activity.OFF
