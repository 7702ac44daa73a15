# SPDX-License-Identifier: Apache-2.0
"""The libvirt of this host, read only: domains, lifecycle events, and a connection that comes back.

Events (a domain's life, a device plugged in) only say *look again*; what is true is always read from the domain list,
so a lost event costs time until the next resync and nothing else. Who may write to libvirt is as good as root: what we
plug in the privileged helper does (:mod:`.privileged.devices`). libvirt is imported on first use: it takes long to load
and tests do without it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from host_agent.model.workload import Activity
from host_agent.util.deadline import WHOLE, Deadline, EndedError
from placement_traits.errors import ServiceUnavailableError
from placement_traits.oslo_options import ConfigurationError

LOG = logging.getLogger(__name__)

_KEEPALIVE_S: Final = 5
_KEEPALIVE_COUNT: Final = 3
# Calls about one domain wait for its QEMU; where those of two do not return it is libvirt that does not answer.
_OVERDUE_DOMAINS_MAX: Final = 2

_Answer = TypeVar("_Answer")


class AgentEndsError(ServiceUnavailableError):
    """libvirt is not asked any more, because the agent was asked to end: that is no fault of libvirt's."""


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

    def perf_totals(self) -> Mapping[str, Mapping[str, int]]:
        """Counters of running domains, as far as libvirt counts them: UUID -> event -> total."""

    def wait(self, seconds: float) -> bool:
        """Wait for an event or :meth:`wake`; return whether there was one."""

    def has_events(self) -> bool:
        """Whether domains have changed since this was asked last: they have to be listed again."""

    def wake(self) -> None:
        """End a wait; that alone is no event."""

    def end(self) -> None:
        """Let no call wait for libvirt any more: the agent ends."""


class LibvirtSource:
    """A connection to libvirtd that is opened again whenever it was lost; any thread may use it.

    Every call has a deadline: libvirt's own keepalive breaks a connection whose other end is gone, but not one to a
    libvirtd that lives and does not answer, and opening one has no time limit at all.

    :param uri: connection URI
    :param timeout_s: longest wait for an answer, seconds
    :raises ConfigurationError: libvirt's binding is not installed
    """

    def __init__(self, uri: str, timeout_s: float) -> None:
        try:
            import libvirt  # noqa: F401 - whether it is there
        except ImportError as error:
            raise ConfigurationError(
                "libvirt's Python binding is not installed: install nova-numa-ext[agent], or the distribution's "
                "python3-libvirt into the same environment"
            ) from error
        self._uri = uri
        self._connection: Any = None
        self._opening = threading.Lock()
        self._woken = threading.Event()
        self._changed = threading.Event()
        self._loop: threading.Thread | None = None
        self._deadline = Deadline(timeout_s, "libvirt-call", _OVERDUE_DOMAINS_MAX)
        self._listed: dict[str, ListedDomain] = {}
        self._unreadable: dict[str, str] = {}

    def hostname(self) -> str:
        """Return libvirt's host name, which nova uses as hypervisor hostname.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        return self._call(lambda connection: str(connection.getHostname()))

    def domains(self) -> tuple[ListedDomain, ...]:
        """List all active domains with their live XML; one that cannot be read is as it was read last.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        return self._call(self._list)

    def _list(self, connection: Any) -> tuple[ListedDomain, ...]:
        import libvirt

        listed, unreadable = {}, {}
        for domain in connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE):
            uuid = domain.UUIDString()
            try:
                state = domain.state()[0]
                listed[uuid] = ListedDomain(uuid, domain.XMLDesc(), _activity(state))
            except libvirt.libvirtError as error:
                if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                    continue  # it has ended meanwhile
                if not connection.isAlive():
                    raise
                unreadable[uuid] = str(error)
                if uuid in self._listed:
                    listed[uuid] = self._listed[uuid]
        for uuid in unreadable.keys() - self._unreadable.keys():
            LOG.warning("libvirt cannot describe domain %s: %s", uuid, unreadable[uuid])
        self._listed, self._unreadable = listed, unreadable
        return tuple(listed.values())

    def migrating(self, uuid: str) -> bool:
        """Tell whether a job (migration, dump, save) runs on the domain.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        import libvirt

        def runs(connection: Any) -> bool:
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

        return self._call(runs, uuid)

    def perf_totals(self) -> Mapping[str, Mapping[str, int]]:
        """Return UUID -> event -> total of all running domains whose perf events nova has turned on.

        :raises ServiceUnavailableError: libvirt does not answer
        """
        import libvirt

        def totals(connection: Any) -> Mapping[str, Mapping[str, int]]:
            found = connection.getAllDomainStats(
                libvirt.VIR_DOMAIN_STATS_PERF, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
            )
            return {
                domain.UUIDString(): {
                    name.removeprefix("perf."): total
                    for name, total in counted.items()
                    if name.startswith("perf.")
                }
                for domain, counted in found
            }

        return self._call(totals)

    def wait(self, seconds: float) -> bool:
        """Wait for an event or :meth:`wake`; return whether there was one."""
        happened = self._woken.wait(seconds)
        if happened:
            self._woken.clear()
        return happened

    def has_events(self) -> bool:
        """Tell whether there was an event or a new connection since the last call."""
        changed = self._changed.is_set()
        if (
            changed
        ):  # one that comes before this line is seen by the listing, a later one by the next call
            self._changed.clear()
        return changed

    def wake(self) -> None:
        """End a wait; that alone is no event."""
        self._woken.set()

    def end(self) -> None:
        """Let no call wait for libvirt any more: the agent ends."""
        self._deadline.end()

    def close(self) -> None:
        """Close the connection, if libvirt lets us."""

        def close() -> None:
            with self._opening:
                self._close()

        with suppress(TimeoutError):
            self._deadline.call(close)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _quietly(connection.close)

    def _call(self, work: Callable[[Any], _Answer], domain: str = WHOLE) -> _Answer:
        """Do what needs a connection, within the deadline.

        :param work: takes the connection
        :param domain: UUID of the only domain that it is about
        :raises ServiceUnavailableError: libvirt does not answer
        :raises AgentEndsError: :meth:`end` was called
        """

        def connected() -> _Answer:
            with self._using() as connection:
                return work(connection)

        try:
            return self._deadline.call(connected, domain)
        except EndedError as error:
            raise AgentEndsError(str(error)) from error
        except TimeoutError as error:
            raise ServiceUnavailableError(f"libvirt does not answer: {error}") from error

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
        connection = libvirt.openReadOnly(self._uri)
        try:
            connection.setKeepAlive(_KEEPALIVE_S, _KEEPALIVE_COUNT)
        except libvirt.libvirtError as error:
            # Drivers within the process have none.
            LOG.debug("no keepalive on %s: %s", self._uri, error)
        for event in (
            libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
            libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
        ):
            connection.domainEventRegisterAny(None, event, self._on_event, None)
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
        # The default handler prints; errors come as exceptions anyway.
        libvirt.registerErrorHandler(_ignore, None)
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
