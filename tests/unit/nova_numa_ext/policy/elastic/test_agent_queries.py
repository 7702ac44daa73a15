# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus is asked about a group whose members report their requests to the host agents."""

from dataclasses import asdict

import pytest
import yaml

from nova_numa_ext.policy.elastic.agent_queries import agent_queries
from tests.support.promtool import promtool, undeclared

ASKED = ("reads", "latency_ms", "placement", "disturbed", "cannot_fix")
NAMES = r'web-[0-9]+"\d'


def of_five_minutes(query):
    return query.replace("$window", "5m").replace("$fifth", "1m").replace("$tenth", "30s")


@pytest.fixture
def asked():
    made = asdict(agent_queries("project-1", NAMES))
    return {what: of_five_minutes(text) for what, text in made.items()}


def test_only_metrics_and_labels_that_agents_have_are_asked_for(asked):
    asked = asdict(agent_queries("project-1", "web-.*"))
    texts = [asked[what] for what in ASKED]
    assert [list(undeclared(text)) for text in texts] == [[], [], [], [], []]
    assert [what for what in ASKED if "$window" not in asked[what]] == ["placement", "cannot_fix"]
    assert (asked["writes"], asked["size_kb"], asked["label"]) == ("", "", "server")


def test_prometheus_understands_any_name(asked, tmp_path):
    rules = [{"record": f"asked:{what}", "expr": asked[what]} for what in ASKED]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


# Of each server what is scraped every 15 s of ten requests a second, for ten minutes; the period is the second half.
SCRAPED = {
    "steady": "0+150x40",
    "scraped-in-vain-once": "0+150x29 stale 4650+150x10",
    "silent-after-a-minute": "0+150x24 stale",
    "silent-at-the-end": "0+150x39 stale",
    "silent-for-two-minutes": "0+150x24 stale _x6 4800+150x8",
    "new-in-the-middle": "_x29 0+150x10",
    "prometheus-is-away": "0+150x24",
    "prometheus-was-away": "0+150x20 _x14 5250+150x5",
}


def test_what_falls_silent_is_unknown_in_that_period_and_not_idle(tmp_path):
    """A rate over the period divides what was counted before the silence by all of it."""
    about = {"project": "project-1"}
    counted = [
        (
            labels(
                "numa_ext_server_request_seconds_count",
                name=f"web-{server}",
                server=server,
                **about,
            ),
            values,
        )
        for server, values in SCRAPED.items()
    ]
    expected = {"steady": 10.0, "scraped-in-vain-once": 10.0}
    answers(tmp_path, counted, "reads", expected)


def test_a_server_of_another_project_is_not_among_the_disturbed(tmp_path):
    throttled = "numa_ext_server_withholds_seconds_total"
    counted = [
        (labels(throttled, name="web-1", server=server), "0+15x40") for server in ("ours", "theirs")
    ]
    for server, project in (("ours", "project-1"), ("theirs", "project-2")):
        about = {"name": "web-1", "server": server, "project": project}
        counted.append((labels("numa_ext_server_request_seconds_count", **about), "0+150x40"))
    answers(tmp_path, counted, "disturbed", {"ours": 1.0})


def test_a_member_is_known_whose_objective_nothing_on_its_host_keeps(tmp_path):
    counted = []
    for server, project in (
        ("kept", "project-1"),
        ("in-vain", "project-1"),
        ("theirs", "project-2"),
    ):
        about = {"name": f"web-{server}", "server": server}
        counts = labels("numa_ext_server_request_seconds_count", project=project, **about)
        in_vain = labels("numa_ext_server_slo_unsatisfiable", **about)
        counted += [(counts, "0+150x40"), (in_vain, f"{int(server != 'kept')}x40")]
    answers(tmp_path, counted, "cannot_fix", {"kept": 0.0, "in-vain": 1.0})


def test_a_member_whose_memory_is_elsewhere_is_the_worst_placed(tmp_path):
    """Of 1000 MiB on two nodes; without a word of the agent on pages the place is not known, and counts as good."""
    counted = []
    for server, misplaced in (
        ("at-home", 0),
        ("half", 500),
        ("moving-in", 1200),
        ("unknown", None),
    ):
        about = {"name": f"web-{server}", "server": server}
        counts = labels("numa_ext_server_request_seconds_count", project="project-1", **about)
        counted.append((counts, "0+150x40"))
        if misplaced is None:
            continue
        for node, mb in (("0", 900), ("1", 100)):
            resident = labels("numa_ext_server_memory_mb", node=node, **about)
            counted.append((resident, f"{mb}x40"))
        counted.append((labels("numa_ext_server_misplaced_mb", **about), f"{misplaced}x40"))
    theirs = {"name": "web-theirs", "server": "theirs"}
    counted.append((labels("numa_ext_server_memory_mb", node="0", **theirs), "10x40"))
    counted.append((labels("numa_ext_server_misplaced_mb", **theirs), "10x40"))
    answers(tmp_path, counted, "placement", {"at-home": 1.0, "half": 0.5, "moving-in": 0.0})


def labels(metric, **of):
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in of.items()) + "}"


def answers(folder, counted, what, expected):
    """Prometheus answers a query at the end of ten minutes.

    :param counted: series, and what is scraped of them
    :param expected: value by server
    """
    query = of_five_minutes(asdict(agent_queries("project-1", "web-.*"))[what])
    samples = [
        {"labels": labels("", server=server), "value": value} for server, value in expected.items()
    ]
    test = {
        "interval": "15s",
        "input_series": [{"series": series, "values": values} for series, values in counted],
        "promql_expr_test": [{"expr": query, "eval_time": "10m", "exp_samples": samples}],
    }
    file = folder / "tests.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [test]}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_operator_may_ask_otherwise():
    made = agent_queries("project-1", "web-.*", disturbed="", placement="where")
    assert (made.disturbed, made.placement) == ("", "where")
    assert made.reads == agent_queries("project-1", "web-.*").reads
