# SPDX-License-Identifier: Apache-2.0
"""What the agent proposes, and what happens to jobs, arrives at who listens on the cloud's message bus (RabbitMQ)."""

import queue
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oslo_messaging
from oslo_config import cfg

from host_agent.control.escalation import EVENT, Escalation, bus
from host_agent.control.journal import PrintedJournal
from host_agent.decide.slo.shapes import CannotFixSloViolation
from host_agent.util.background import BackgroundTasks
from nova_numa_ext.orchestrator import notify
from nova_numa_ext.orchestrator.conf import NotifyOptions
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.reason import Reason
from tests.integration.cloud import LabCloud
from tests.support.jobs_database import stored_job

PATIENCE_S = 30


class Ears:
    """An endpoint as an operator's tool has one."""

    def __init__(self) -> None:
        self._heard: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()

    def warn(self, _context: Any, publisher: str, event: str, payload: Any, _meta: Any) -> None:
        """Take a notification."""
        self._heard.put((publisher, event, payload))

    info = warn

    def listen(self, sender: str) -> tuple[str, dict[str, Any]]:
        """Return the first event of a sender, and its payload; those of others may lie there for long."""
        while True:
            publisher, event, payload = self._heard.get(timeout=PATIENCE_S)
            if publisher == sender:
                return event, payload


def configured(*files: Path) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    conf([], default_config_files=list(map(str, files)))
    return conf


def url_of(cloud: LabCloud) -> str:
    password, port = cloud.settings.passwords().rabbitmq, cloud.settings.ports.rabbitmq
    return f"rabbit://openstack:{password}@127.0.0.1:{port}/"


@contextmanager
def listening(cloud: LabCloud) -> Iterator[Ears]:
    ears = Ears()
    listener = oslo_messaging.get_notification_listener(
        oslo_messaging.get_notification_transport(configured(), url=url_of(cloud)),
        [oslo_messaging.Target(topic="notifications")],
        [ears],
        executor="threading",
    )
    listener.start()
    try:
        yield ears
    finally:
        listener.stop()
        listener.wait()


def test_f_004_38_a_proposal_reaches_who_listens_on_the_bus(running_cloud: LabCloud) -> None:
    host = f"it-{uuid.uuid4().hex[:8]}"
    with listening(running_cloud) as ears:
        send = Escalation(
            BackgroundTasks("bus"),
            PrintedJournal(print),
            host,
            notify=bus(configured(), url_of(running_cloud), host),
        )
        event = CannotFixSloViolation(("L",), (0,), ("B",), (Reason("traffic_mbps", 9000, "B"),))
        send(event, {"L": "web", "B": "batch"})
        name, payload = ears.listen(f"numa-host-agent.{host}")
    assert name == EVENT
    assert payload == {
        "host": host,
        "violated": [{"uuid": "L", "name": "web"}],
        "nodes": [0],
        "leave": [{"uuid": "B", "name": "batch"}],
        "reasons": ["traffic_mbps=9000 (against B)"],
    }


def test_what_happens_to_a_job_reaches_who_listens_on_the_bus(
    running_cloud: LabCloud, tmp_path: Path
) -> None:
    """As engines send it where ``[oslo_messaging_notifications]`` is as the operator's page has it."""
    host, file = f"it-{uuid.uuid4().hex[:8]}", tmp_path / "numa-ext-jobs.conf"
    file.write_text(
        "[oslo_messaging_notifications]\ndriver = messagingv2\n"
        f"transport_url = {url_of(running_cloud)}\n"
    )
    with listening(running_cloud) as ears:
        tell = notify.configured(configured(file), NotifyOptions(), host)
        job = stored_job(uuid=str(uuid.uuid4()), state=JobState.RUNNING)
        tell(job, (Reason(JobTerm.BUILT, 2),))
        name, payload = ears.listen(f"numa-ext-engine.{host}")
    assert name == "numa_ext.job.running"
    assert (payload["job"], payload["state"]) == (job.uuid, "running")
    assert [each["term"] for each in payload["reasons"]] == ["built"]
