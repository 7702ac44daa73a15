# SPDX-License-Identifier: Apache-2.0
"""F-004-38: what the agent proposes arrives at who listens on the cloud's message bus (the lab's RabbitMQ)."""

import queue
import uuid
from typing import Any

import oslo_messaging
from oslo_config import cfg

from host_agent.control.escalation import EVENT, Escalation, bus
from host_agent.control.journal import PrintedJournal
from host_agent.decide.slo.shapes import CannotFixSloViolation
from host_agent.util.background import BackgroundTasks
from placement_traits.reason import Reason
from tests.integration.cloud import LabCloud

PATIENCE_S = 30


class Ears:
    """An endpoint as an operator's tool has one."""

    def __init__(self) -> None:
        self._heard: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()

    def warn(self, _context: Any, publisher: str, event: str, payload: Any, _meta: Any) -> None:
        """Take a notification."""
        self._heard.put((publisher, event, payload))

    def listen(self, host: str) -> tuple[str, dict[str, Any]]:
        """Return the first event from a host, and its payload; those of others may lie there for long."""
        while True:
            publisher, event, payload = self._heard.get(timeout=PATIENCE_S)
            if publisher == f"numa-host-agent.{host}":
                return event, payload


def test_f_004_38_a_proposal_reaches_who_listens_on_the_bus(running_cloud: LabCloud) -> None:
    settings, conf = running_cloud.settings, cfg.ConfigOpts()
    conf([], default_config_files=[])
    host = f"it-{uuid.uuid4().hex[:8]}"
    password, port = settings.passwords().rabbitmq, settings.ports.rabbitmq
    url = f"rabbit://openstack:{password}@127.0.0.1:{port}/"
    ears = Ears()
    listener = oslo_messaging.get_notification_listener(
        oslo_messaging.get_notification_transport(conf, url=url),
        [oslo_messaging.Target(topic="notifications")],
        [ears],
        executor="threading",
    )
    listener.start()
    try:
        send = Escalation(
            BackgroundTasks("bus"), PrintedJournal(print), host, notify=bus(conf, url, host)
        )
        event = CannotFixSloViolation(("L",), (0,), ("B",), (Reason("traffic_mbps", 9000, "B"),))
        send(event, {"L": "web", "B": "batch"})
        name, payload = ears.listen(host)
    finally:
        listener.stop()
        listener.wait()
    assert name == EVENT
    assert payload == {
        "host": host,
        "violated": [{"uuid": "L", "name": "web"}],
        "nodes": [0],
        "leave": [{"uuid": "B", "name": "batch"}],
        "reasons": ["traffic_mbps=9000 (against B)"],
    }
