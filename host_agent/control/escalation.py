# SPDX-License-Identifier: Apache-2.0
"""When nothing on this host keeps an objective: propose which server should leave, and ask nova if allowed.

The proposal is always in journal, log and metrics (:mod:`host_agent.control.slo`). Here it goes out: as notification
``numa_ext.slo.cannot_fix`` on the message bus (Watcher, Masakari or an operator's tools listen there). Where the
operator has turned it on nova is asked for a live migration, but only of a server whose throttling was shown to help
one that is violated beyond chance, which what Prometheus reports or IPC suggests never is; for the sake of one
latency-critical server at most every six hours, so that a guest that pretends all this cannot empty its host.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from oslo_config import cfg

from host_agent.decide.slo.shapes import CannotFixSloViolation, ShouldLeave
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.util.background import BackgroundTasks
from placement_traits.client import HttpAdapter
from placement_traits.errors import CapabilityMissingError
from placement_traits.oslo_options import ConfigurationError

LOG = logging.getLogger(__name__)

EVENT: Final = "numa_ext.slo.cannot_fix"
PAUSE_S: Final = 600.0
PAUSE_PER_SERVER_S: Final = 6 * 3600.0
_MICROVERSION: Final = "compute 2.30"
_ACCEPTED: Final = 202
_RETRIES: Final = 2

Notify = Callable[[Mapping[str, Any]], None]
Migrate = Callable[[str], None]


class Escalation:
    """Sends proposals, off the caller's thread.

    :param tasks: runs what may take long; of its own, for a message bus may be down for hours
    :param journal: gets each live migration that was asked for
    :param host: name of this host
    :param notify: sends one notification; None sends none
    :param migrate: asks nova to live-migrate a server; None asks nothing
    """

    def __init__(
        self,
        tasks: BackgroundTasks,
        journal: ActionJournal,
        host: str,
        *,
        notify: Notify | None = None,
        migrate: Migrate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks, self._journal, self._host = tasks, journal, host
        self._notify, self._migrate, self._clock = notify, migrate, clock
        self._next_s = 0.0
        self._next_for_s: dict[str, float] = {}

    def __call__(
        self, event: CannotFixSloViolation | ShouldLeave, titles: Mapping[str, str]
    ) -> None:
        """Take a proposal; does not wait.

        :param titles: UUID -> name
        """
        match event:
            case CannotFixSloViolation():
                self._propose(event, titles)
            case ShouldLeave():
                self._ask(event, titles)

    def _propose(self, event: CannotFixSloViolation, titles: Mapping[str, str]) -> None:
        payload = {
            "host": self._host,
            "violated": [_named(uuid, titles) for uuid in event.lcs],
            "nodes": list(event.nodes),
            "leave": [_named(uuid, titles) for uuid in event.leave],
            "reasons": [str(reason) for reason in event.reasons],
        }
        if self._notify is not None:
            self._tasks.submit(self._send, self._notify, payload)

    def _ask(self, event: ShouldLeave, titles: Mapping[str, str]) -> None:
        now = self._clock()
        self._next_for_s = {lc: at for lc, at in self._next_for_s.items() if at > now}
        for_whom = [lc for lc in event.lcs if lc not in self._next_for_s]
        if self._migrate is None or not for_whom or now < self._next_s:
            return
        self._next_s = now + PAUSE_S
        self._next_for_s |= dict.fromkeys(event.lcs, now + PAUSE_PER_SERVER_S)
        uuid = event.leave[0]
        self._tasks.submit(self._move, self._migrate, uuid, titles.get(uuid, ""))

    def _send(self, notify: Notify, payload: Mapping[str, Any]) -> None:
        try:
            notify(payload)
        except Exception as error:  # noqa: BLE001 - whatever a message bus raises: the proposal stands in the journal
            LOG.warning("notification %s was not sent: %s", EVENT, error)

    def _move(self, migrate: Migrate, uuid: str, title: str) -> None:
        problem = ""
        try:
            migrate(uuid)
        except Exception as error:  # noqa: BLE001 - whatever keystone or nova raise is reported
            problem = str(error)
            LOG.warning("nova does not live-migrate server %s: %s", uuid, problem)
        result = Result.FAILED if problem else Result.DONE
        self._journal.write(Entry("live_migrate", result, uuid, title, problem=problem))


def _named(uuid: str, titles: Mapping[str, str]) -> dict[str, str]:
    return {"uuid": uuid, "name": titles.get(uuid, "")}


def bus(conf: cfg.ConfigOpts, url: str, host: str) -> Notify:
    """Return what sends notifications to a message bus.

    :raises ConfigurationError: oslo.messaging is not installed, or cannot use the URL
    """
    try:
        import oslo_messaging
    except ImportError as error:
        raise ConfigurationError(
            "[slo]notify_url needs oslo.messaging: install nova-numa-ext[notify], or leave the option out"
        ) from error
    try:
        transport = oslo_messaging.get_notification_transport(conf, url=url)
    except (oslo_messaging.InvalidTransportURL, oslo_messaging.DriverLoadFailure) as error:
        raise ConfigurationError(f"[slo]notify_url cannot be used: {error}") from error
    sender = oslo_messaging.Notifier(
        transport,
        publisher_id=f"numa-host-agent.{host}",
        driver="messagingv2",
        topics=["notifications"],
        retry=_RETRIES,  # by default it tries for ever, and its message grows old
    )

    def send(payload: Mapping[str, Any]) -> None:
        sender.warn({}, EVENT, dict(payload))

    return send


def nova(compute: HttpAdapter) -> Migrate:
    """Return what asks nova for a live migration; the scheduler picks the host.

    :param compute: a keystoneauth1 adapter for service type ``compute``
    """

    def migrate(uuid: str) -> None:
        answer = compute.request(
            f"/servers/{uuid}/action",
            "POST",
            json={"os-migrateLive": {"host": None, "block_migration": "auto"}},
            headers={"OpenStack-API-Version": _MICROVERSION},
            raise_exc=False,
        )
        if answer.status_code != _ACCEPTED:
            raise CapabilityMissingError(
                f"Nova answered the live migration of {uuid} with {answer.status_code}"
            )

    return migrate
