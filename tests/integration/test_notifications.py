# SPDX-License-Identifier: Apache-2.0
"""F-004-38: what the agent proposes arrives at who listens on the cloud's message bus (the lab's RabbitMQ)."""

import queue
from typing import Any

import oslo_messaging
from oslo_config import cfg

from host_agent.controllers.balm_shapes import CannotFixSloViolation
from host_agent.errands import Errands
from host_agent.escalation import EVENT, Escalation, bus
from host_agent.journal import PrintedJournal
from nova_numa_ext.policy.reason import Reason
from tests.integration.cloud import Cloud

PATIENCE_S = 30.0


class Ears:
    """An endpoint as an operator's tool has one."""

    def __init__(self) -> None:
        self.heard: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()

    def warn(self, _context: Any, publisher: str, event: str, payload: Any, _meta: Any) -> None:
        """Take a notification."""
        self.heard.put((publisher, event, payload))


def test_f_004_38_a_proposal_reaches_who_listens_on_the_bus(running_cloud: Cloud) -> None:
    settings, conf = running_cloud.settings, cfg.ConfigOpts()
    conf([])
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
            Errands("bus"), PrintedJournal(print), "compute1", notify=bus(conf, url, "compute1")
        )
        event = CannotFixSloViolation(("L",), (0,), ("B",), (Reason("traffic_mbps", 9000, "B"),))
        send(event, {"L": "web", "B": "batch"})
        publisher, name, payload = ears.heard.get(timeout=PATIENCE_S)
    finally:
        listener.stop()
        listener.wait()
    assert (publisher, name) == ("numa-host-agent.compute1", EVENT)
    assert payload == {
        "host": "compute1",
        "violated": [{"uuid": "L", "name": "web"}],
        "nodes": [0],
        "leave": [{"uuid": "B", "name": "batch"}],
        "reasons": ["traffic_mbps=9000 (against B)"],
    }
