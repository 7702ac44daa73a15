# SPDX-License-Identifier: Apache-2.0
"""Alert rules by promtool: each fires when it should, with its labels and sentences, and only then."""

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.promtool import TARGET, metrics_of, promtool, undeclared
from tools.dashboards import FOLDER

ETC = Path(__file__).parents[2] / "etc/prometheus"
RULES_FILE = ETC / "numa-ext.rules.yaml"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES_FILE.read_text())["groups"]
    for rule in group["rules"]
}

ALONE = "rule.yaml"

AGENT = 'instance="h1",job="numa-host-agent"'
SERVER = f'{AGENT},server="u1",name="db1"'
SCHEDULER = 'instance="c1",job="numa-ext-scheduler"'
ENGINE = 'instance="c1",job="numa-ext-engine"'
OTHER_ENGINE = 'instance="c2",job="numa-ext-engine"'

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """When an alert fires, and when it does not: values a minute by series, as promtool writes them.

    :param minutes: when both are looked at
    :param value: as its sentences show it
    :param labels: that the alert has beside those of the target
    :param target: labels of the target that the alert has
    """

    fires: Series
    silent: Series
    minutes: int = 60
    value: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ("instance", "job")


def gauge(name: str, of: str, fires: str = "1x600", silent: str = "0x600", **more: Any) -> Case:
    """A case of one series."""
    return Case({f"{name}{{{of}}}": fires}, {f"{name}{{{of}}}": silent}, **more)


def durations(name: str, labels: str, seconds: str) -> Series:
    """A histogram that gets ten durations a minute, all of them up to one bound."""
    bounds = ("0.1", "1.0", "10.0", "30.0", "+Inf")
    first = bounds.index(seconds)
    return {
        f'{name}_bucket{{{labels},le="{bound}"}}': "0+10x600" if at >= first else "0x600"
        for at, bound in enumerate(bounds)
    }


DB1 = {"server": "u1", "name": "db1"}
CASES = {
    "NumaExtAgentDown": gauge("up", AGENT, "1x5 0x60", "1x5 0x3 1x60", minutes=11),
    "NumaExtNoRounds": gauge(
        "numa_ext_rounds_total",
        f'{AGENT},result="done"',
        "7x60",
        "0+30x60",
        labels={"result": "done"},
    ),
    "NumaExtRoundsFail": Case(
        {
            f'numa_ext_rounds_total{{{AGENT},result="done"}}': "0+20x90",
            f'numa_ext_rounds_total{{{AGENT},result="failed"}}': "0+4x90",
        },
        {
            f'numa_ext_rounds_total{{{AGENT},result="done"}}': "0+20x90",
            f'numa_ext_rounds_total{{{AGENT},result="failed"}}': "0+1x90",
        },
    ),
    "NumaExtRoundsSlow": Case(
        durations("numa_ext_round_seconds", AGENT, "30.0"),
        durations("numa_ext_round_seconds", AGENT, "1.0"),
    ),
    "NumaExtNotInControl": gauge("numa_ext_in_control", AGENT, "1x5 0x60", "1x5 0 1x60", minutes=9),
    "NumaExtThrottlesReleased": gauge(
        "numa_ext_dead_man_switch_fired_total", AGENT, "2x50 3x60", "2x90", minutes=90
    ),
    "NumaExtLibvirtLost": gauge("numa_ext_libvirt_lost", AGENT, "1x60", "1x4 0x60", minutes=6),
    "NumaExtPlacementBehind": gauge(
        "numa_ext_placement_synced", AGENT, "0x60", "0x12 1 0x60", minutes=20
    ),
    "NumaExtObjectiveViolated": gauge(
        "numa_ext_server_slo_violation_seconds_total",
        SERVER,
        "0+6x90",
        "0+2x90",
        value="10%",
        labels=DB1,
    ),
    "NumaExtObjectiveUnwatched": gauge(
        "numa_ext_server_slo_unwatched", SERVER, minutes=16, labels=DB1
    ),
    "NumaExtBestEffortStarved": gauge(
        "numa_ext_server_withheld_seconds_total",
        SERVER,
        "0+48x200",
        "0+30x200",
        minutes=120,
        value="80%",
        labels=DB1,
    ),
    "NumaExtNoClassOfServiceLeft": gauge(
        "numa_ext_closids_left", AGENT, "0x60", "1x60", minutes=11
    ),
    "NumaExtNoMonitoringGroupLeft": gauge("numa_ext_rmids_left", AGENT, "0x60", "1x60", minutes=11),
    "NumaExtActionsFail": gauge(
        "numa_ext_actions_total",
        f'{AGENT},action="pin",result="failed"',
        "0+1x90",
        "0 3x90",
        labels={"action": "pin", "result": "failed"},
    ),
    "NumaExtRefinerFails": gauge(
        "numa_ext_refiner_failures_total",
        f'{AGENT},refiner="Balancing"',
        "0+1x90",
        "0 3x90",
        labels={"refiner": "Balancing"},
    ),
    "NumaExtListenerFails": gauge(
        "numa_ext_listener_failures_total",
        f'{AGENT},listener="Publisher"',
        "0+1x90",
        "0 3x90",
        labels={"listener": "Publisher"},
    ),
    "NumaExtStateUnwritten": gauge(
        "numa_ext_unwritten_total",
        f'{AGENT},file="journal"',
        "_x40 1x60",
        "1x90",
        labels={"file": "journal"},
    ),
    "NumaExtPagesStuck": gauge(
        "numa_ext_server_misplaced_mb",
        SERVER,
        "512x90",
        "512x50 0x5 512x50",
        minutes=90,
        value="512",
        labels=DB1,
    ),
    "NumaExtPausedForLong": gauge("numa_ext_paused", AGENT, "1x600", "1x200 0 1x600", minutes=300),
    "NumaExtTakeoverStalls": gauge(
        "numa_ext_servers_waiting", AGENT, "3x600", "3x100 0x600", minutes=180
    ),
    "NumaExtViewNotFresh": gauge(
        "numa_ext_scheduler_view_state",
        f'{SCHEDULER},state="fresh"',
        "0x60",
        "0x4 1x60",
        minutes=6,
        labels={"state": "fresh"},
    ),
    "NumaExtSchedulerFaults": gauge(
        "numa_ext_scheduler_faults_total",
        f'{SCHEDULER},worker="w1",where="filter"',
        "_x50 1x60",
        "4x90",
        labels={"where": "filter"},
    ),
    "NumaExtDecisionsNotJournalled": gauge(
        "numa_ext_scheduler_journal_failures_total", f'{SCHEDULER},worker="w1"', "0x50 2x60", "2x90"
    ),
    "NumaExtNoHostForServers": Case(
        {
            f'numa_ext_scheduler_decisions_total{{{SCHEDULER},worker="w1",result="passed"}}': "0+6x90",
            f'numa_ext_scheduler_decisions_total{{{SCHEDULER},worker="w2",result="none"}}': "0+3x90",
        },
        {
            f'numa_ext_scheduler_decisions_total{{{SCHEDULER},worker="w1",result="passed"}}': "0+6x90",
            f'numa_ext_scheduler_decisions_total{{{SCHEDULER},worker="w2",result="none"}}': "0+1x90",
        },
    ),
    "NumaExtDecisionsSlow": Case(
        durations(
            "numa_ext_scheduler_decision_seconds", f'{SCHEDULER},worker="w1",step="filter"', "10.0"
        ),
        durations(
            "numa_ext_scheduler_decision_seconds", f'{SCHEDULER},worker="w1",step="filter"', "1.0"
        ),
        labels={"step": "filter"},
    ),
    "NumaExtJobEngineDown": gauge("up", ENGINE, "1x5 0x60", "1x5 0x3 1x60", minutes=11),
    "NumaExtNoJobEngineLeads": Case(
        {
            f"numa_ext_jobs_engine_leads{{{ENGINE}}}": "1x5 0x10 _x60",
            f"numa_ext_jobs_recovers{{{ENGINE}}}": "0x15 _x60",
            f"up{{{ENGINE}}}": "1x15 0x60",
        },
        {
            f"numa_ext_jobs_engine_leads{{{ENGINE}}}": "0x60",
            f"numa_ext_jobs_engine_leads{{{OTHER_ENGINE}}}": "1x60",
            f"up{{{ENGINE}}}": "1x60",
            f"up{{{OTHER_ENGINE}}}": "1x60",
        },
        minutes=30,
        target=("job",),
    ),
    "NumaExtScalingTroubled": gauge(
        "numa_ext_jobs_scaling_groups", f'{ENGINE}, state="troubled"', minutes=15, target=("job",)
    ),
    "NumaExtScalingMembersStuck": gauge(
        "numa_ext_jobs_scaling_members",
        f'{ENGINE}, step="draining"',
        minutes=125,
        labels={"step": "draining"},
        target=("job",),
    ),
    "NumaExtJobsRecover": gauge("numa_ext_jobs_recovers", ENGINE, minutes=1, target=("job",)),
    "NumaExtJobRoundsFail": Case(
        {
            f'numa_ext_jobs_rounds_total{{{ENGINE},result="led"}}': "0+20x90",
            f'numa_ext_jobs_rounds_total{{{ENGINE},result="failed"}}': "0+4x90",
        },
        {
            f'numa_ext_jobs_rounds_total{{{ENGINE},result="led"}}': "0+20x90",
            f'numa_ext_jobs_rounds_total{{{ENGINE},result="failed"}}': "0+1x90",
        },
    ),
    "NumaExtJobRoundsSlow": Case(
        durations("numa_ext_jobs_round_seconds", ENGINE, "30.0"),
        durations("numa_ext_jobs_round_seconds", ENGINE, "1.0"),
    ),
    "NumaExtJobsRefused": Case(
        {
            f'numa_ext_jobs_moves_total{{{ENGINE},state="planned",term="placed"}}': "0+4x90",
            f'numa_ext_jobs_moves_total{{{ENGINE},state="queued",term="no_valid_host"}}': "0+3x90",
        },
        {
            f'numa_ext_jobs_moves_total{{{ENGINE},state="planned",term="placed"}}': "0+4x90",
            f'numa_ext_jobs_moves_total{{{ENGINE},state="queued",term="preempted"}}': "0+1x90",
        },
        minutes=80,
        target=("job",),
    ),
    "NumaExtJobWaitsForLong": Case(
        {f'numa_ext_jobs_longest_wait_seconds{{{ENGINE},kind="servers"}}': "90000x100"},
        {
            f'numa_ext_jobs_longest_wait_seconds{{{ENGINE},kind="servers"}}': "90000x30 80000x100",
            # A server may wait for a GPU for ever.
            f'numa_ext_jobs_longest_wait_seconds{{{ENGINE},kind="attach"}}': "90000x200",
        },
        minutes=70,
        target=("job",),
    ),
}


def test_no_leader_is_expected_while_an_old_database_recovers(tmp_path: Path) -> None:
    alert, case = "NumaExtNoJobEngineLeads", CASES["NumaExtNoJobEngineLeads"]
    recovers = case.fires | {f"numa_ext_jobs_recovers{{{ENGINE}}}": "1x60"}
    done = run(tmp_path, alert, test_file(alert, case, case.fires, recovers))
    assert done.returncode == 0, done.stdout + done.stderr


def labels_of(case: Case) -> dict[str, str]:
    """What the alert is about."""
    (series, *_) = case.fires
    found = dict(re.findall(r'(\w+)="([^"]*)"', series))
    return {name: found[name] for name in case.target} | case.labels


def rendered(text: str, labels: dict[str, str], value: str) -> str:
    """A sentence with the alert's labels and value put in."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)
    return re.sub(r"\{\{ \$value \| \w+ \}\}", value, text)


def test_file(alert: str, case: Case, fires: Series, silent: Series) -> str:
    """What promtool runs: the alert fires with the first series, and not with the second.

    It evaluates all rules of its file at each minute, so that file has the one rule.
    """
    rule, labels = RULES[alert], labels_of(case)
    expected = {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": {
            name: rendered(text, labels, case.value) for name, text in rule["annotations"].items()
        },
    }

    def group(series: Series, alerts: list[Any]) -> dict[str, Any]:
        asked = {"eval_time": f"{case.minutes}m", "alertname": alert, "exp_alerts": alerts}
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [asked],
        }

    return yaml.safe_dump(
        {
            "rule_files": [ALONE],
            "evaluation_interval": "1m",
            "tests": [group(fires, [expected]), group(silent, [])],
        },
        sort_keys=False,
    )


test_file.__test__ = False  # type: ignore[attr-defined]


def run(tmp_path: Path, alert: str, text: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "test.yaml"
    file.write_text(text)
    group = {"name": "alone", "rules": [RULES[alert]]}
    (tmp_path / ALONE).write_text(yaml.safe_dump({"groups": [group]}, sort_keys=False))
    return promtool("test", "rules", str(file))


def test_every_rule_has_a_case() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("alert", sorted(RULES))
def test_an_alert_fires_when_it_should_and_only_then(tmp_path: Path, alert: str) -> None:
    case = CASES[alert]
    done = run(tmp_path, alert, test_file(alert, case, case.fires, case.silent))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_case_the_wrong_way_round_is_red(tmp_path: Path) -> None:
    """The tests above could not fail otherwise."""
    alert, case = "NumaExtLibvirtLost", CASES["NumaExtLibvirtLost"]
    done = run(tmp_path, alert, test_file(alert, case, case.silent, case.fires))
    assert done.returncode == 1
    assert done.stdout.count("FAILED") + done.stderr.count("FAILED") >= 1


@pytest.mark.parametrize("alert", sorted(RULES))
def test_a_rule_names_what_is_declared_and_says_what_to_do(alert: str) -> None:
    rule = RULES[alert]
    assert list(undeclared(rule["expr"])) == []
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(rule["annotations"]) == {"summary", "description"}
    grouped = re.search(r"\bby \(([^)]*)\)", rule["expr"])
    known = TARGET | {label for metric in metrics_of(rule["expr"]) for label in metric.labels}
    left = set(re.split(r",\s*", grouped[1])) if grouped else known
    shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    assert shown <= left


def test_the_operators_guide_lists_every_alert() -> None:
    page = (ETC.parents[1] / "doc/source/operator/monitoring.rst").read_text()
    rows = re.findall(r"^   \* - ``(NumaExt\w+)``\n     - (\w+)\n     - (.+)$", page, re.M)
    assert rows == [
        (name, rule["labels"]["severity"], rule.get("for", "at once"))
        for name, rule in RULES.items()
    ]


def test_rules_and_the_sample_configuration_are_valid(tmp_path: Path) -> None:
    assert promtool("check", "rules", str(RULES_FILE)).returncode == 0
    (tmp_path / RULES_FILE.name).write_text(RULES_FILE.read_text())
    config = tmp_path / "prometheus.yml"
    config.write_text((ETC / "prometheus.yaml.sample").read_text())
    done = promtool("check", "config", str(config))
    assert done.returncode == 0, done.stdout + done.stderr


def test_jobs_that_rules_and_dashboards_name_are_those_of_the_sample() -> None:
    sample = yaml.safe_load((ETC / "prometheus.yaml.sample").read_text())
    jobs = {job["job_name"] for job in sample["scrape_configs"]}
    texts = [RULES_FILE.read_text(), *(file.read_text() for file in FOLDER.glob("*.json"))]
    named = {job for text in texts for job in re.findall(r'job=\\?"([\w-]+)\\?"', text)}
    assert named
    assert named <= jobs
