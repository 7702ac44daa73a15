# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus is asked about a group whose members report their requests to the host agents."""

from dataclasses import asdict

import pytest
import yaml

from nova_numa_ext.policy.elastic.agent_queries import agent_queries
from tests.support.promtool import promtool, undeclared

NAMES = r'web-[0-9]+"\d'


@pytest.fixture
def asked():
    made = asdict(agent_queries("project-1", NAMES))
    return {what: text.replace("$window", "300000ms") for what, text in made.items()}


def test_only_metrics_and_labels_that_agents_have_are_asked_for(asked):
    asked = asdict(agent_queries("project-1", "web-.*"))
    texts = [asked[what] for what in ("reads", "latency_ms", "disturbed")]
    assert [list(undeclared(text)) for text in texts] == [[], [], []]
    assert all("$window" in text for text in texts)
    assert (asked["writes"], asked["placement"], asked["label"]) == ("", "", "server")


def test_prometheus_understands_any_name(asked, tmp_path):
    rules = [
        {"record": f"asked:{what}", "expr": asked[what]}
        for what in ("reads", "latency_ms", "disturbed")
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_operator_may_ask_otherwise():
    made = agent_queries("project-1", "web-.*", disturbed="", placement="where")
    assert (made.disturbed, made.placement) == ("", "where")
    assert made.reads == agent_queries("project-1", "web-.*").reads
