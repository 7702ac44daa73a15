# SPDX-License-Identifier: Apache-2.0
"""Rally's tasks on the lab: green as it is, and each of three faults red for its own SLA and for no other.

The tests of the plug-ins alone, in Rally's environment, are ``make test-rally``.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from nova_numa_ext.gpu_files import read_profiles
from placement_traits import names
from tests.integration.cloud import (
    CHECKOUT,
    LabCloud,
    LabHost,
    ReadBackServer,
    Server,
    eventually,
)
from tests.integration.test_latency_objectives import socket_of
from tests.support.slo_crowd import REPORT_S, SLO_US

pytestmark = pytest.mark.long
LAB = str(CHECKOUT / "devstack/lab/lab")
REACHES = """
[remote_gpus]
uses = true
fabrics = lab
"""
LENDS = """
[remote_gpus]
transport = fake
trying_out = true
isolated = false
gpus = gpu0=8000,gpu1=8000
nics = eth0=1000
cores = 8
"""


@dataclass(frozen=True)
class RallyRun:
    """A run of ``lab rally``.

    :param out: folder of its reports
    """

    status: int
    output: str
    out: Path

    def failed(self) -> set[str]:
        """Names of the criteria that were not kept."""
        results = json.loads((self.out / "results.json").read_text())
        return {
            each["criterion"]
            for task in results["tasks"]
            for subtask in task["subtasks"]
            for workload in subtask["workloads"]
            for each in workload["sla_results"]["sla"]
            if not each["success"]
        }

    def charts(self, title: str) -> list[dict[str, float]]:
        """Figures by name of each chart of a title that iterations have handed on."""
        results = json.loads((self.out / "results.json").read_text())
        return [
            dict(chart["data"])
            for task in results["tasks"]
            for subtask in task["subtasks"]
            for workload in subtask["workloads"]
            for iteration in workload["data"]
            for chart in iteration["output"]["additive"]
            if chart["title"] == title
        ]

    def figures(self) -> dict[str, Any]:
        """The run in a few numbers."""
        return dict(json.loads((self.out / "figures.json").read_text()))


def rally(cloud: LabCloud, *tasks: str, **arguments: object) -> RallyRun:
    """Run tasks on the lab as an operator does."""
    more = ["--arguments", json.dumps(arguments)] if arguments else []
    done = subprocess.run(
        [LAB, "rally", *tasks, *more], capture_output=True, text=True, check=False
    )
    return RallyRun(done.returncode, done.stdout + done.stderr, cloud.settings.lab / "rally/out")


def up(hosts: str, environment: Mapping[str, str]) -> None:
    """Bring the lab up again; what it printed is the assertion's where that fails."""
    words = [LAB, "up", "--hosts", hosts]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(map(str, words))}:\n{done.stdout}{done.stderr}"


def ctl(host: LabHost) -> str:
    """``numa-host-agent-ctl`` of a host's agent."""
    program = f"{sys.prefix}/bin/numa-host-agent-ctl"
    return f"{sys.executable} {program} --config-file {host.emulated.agent_conf}"


def test_the_default_tasks_keep_every_sla(cloud: LabCloud) -> None:
    run = rally(cloud)
    assert run.status == 0, run.output
    assert run.failed() == set()
    figures = run.figures()
    assert figures["scenarios"] == 3
    assert figures["sla_failed"] == 0
    assert 0 < figures["explain_ratio"] <= 1
    suites = ElementTree.parse(run.out / "junit.xml").getroot()
    assert len(suites.findall(".//testcase")) == 3
    page = (run.out / "report.html").read_text()
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=[\"']https?:", page)


def test_the_filter_being_off_is_red_for_placement_only(cloud: LabCloud) -> None:
    hosts = str(len(cloud.hosts))
    off = os.environ | {"NUMA_EXT_PLUGIN": "0"}
    try:
        up(hosts, off)
        run = rally(cloud)
    finally:
        up(hosts, os.environ)
    assert run.failed() == {"numa_ext_placement"}, run.output
    assert run.status == 1


def test_a_paused_agent_is_red_for_reading_back_only(cloud: LabCloud, h1: LabHost) -> None:
    try:
        h1.run(f"{ctl(h1)} pause", 240)
        run = rally(cloud)
    finally:
        h1.run(f"{ctl(h1)} resume", 240)
    assert run.failed() == {"numa_ext_read_back"}, run.output
    assert run.status == 1


def test_ways_forced_to_overlap_are_red_for_overlap_only(cloud: LabCloud, h1: LabHost) -> None:
    """What is forced is there while the host is read back."""
    words = [sys.executable, "-m", "tests.support.overlapping_ways", LAB]
    forced = f"env PYTHONPATH={CHECKOUT} {shlex.join(words)} {{host}} {shlex.quote(ctl(h1))}"
    run = rally(cloud, read_back=forced)
    assert run.failed() == {"numa_ext_overlap"}, run.output
    assert run.status == 1


@pytest.mark.parametrize("task", ["churn", "elastic", "migration", "sweep"])
def test_a_long_task_keeps_every_sla(cloud: LabCloud, task: str) -> None:
    if task == "migration" and len(cloud.hosts) < 2:
        pytest.skip("the lab runs with one emulated host")
    run = rally(cloud, task)
    assert run.status == 0, run.output
    assert run.failed() == set()


def report_in_its_place(host: LabHost, load: float) -> str:
    """Report latencies in the place of the guest of the task's server, as :mod:`emulation.slo_guests` does.

    :param load: its p99 without noise, over its objective
    :returns: the model's pid on the host
    """

    def lc() -> ReadBackServer | None:
        found = (one for one in host.domains().values() if one.facts["flavor"] == "rally.lc")
        return next((one for one in found if one.enforced()), None)

    domain = eventually("the task's server is enforced", lc, 1200, 5)
    server = Server(domain.facts["uuid"], domain.facts["server"], "rally.lc")
    port = eventually("its port", lambda: socket_of(host, server), 600, 5)
    bes = [uuid for uuid, one in host.domains().items() if one.facts["flavor"] == "rally.noise"]
    node = int(min(domain.nodes))
    lcs = [{"port": port, "node": node, "slo_p99_us": SLO_US, "load": load}]
    file = host.emulated.agent_conf.with_name("slo-guests-of-rally.json")
    file.write_text(json.dumps({"gain": 1.0, "interval_s": REPORT_S, "bes": bes, "lcs": lcs}))
    host.agent.stop()  # its connections are to QEMU; it will find the model at the same paths
    module = f"{sys.executable} -m emulation.slo_guests {file}"
    pid = host.run(f"cd {CHECKOUT} && (nohup {module} >/tmp/slo-guests.log 2>&1 & echo $!)").strip()
    sockets = f"ls -l /proc/{pid}/fd | grep -c socket || true"
    eventually("the model listens", lambda: int(host.run(sockets)) >= 1, 180, 2)
    host.agent.start()
    return pid


@pytest.mark.parametrize(("load", "red"), [(0.2, set()), (2.0, {"numa_ext_objective"})])
def test_an_objective_beside_noise_is_met_or_red_for_it_only(
    cloud: LabCloud, h1: LabHost, load: float, red: set[str]
) -> None:
    """Modelled: three noisy servers at most quadruple the latency; 0.2 stays within the objective, 2.0 never is."""
    cloud.openstack("image", "set", "--property", "hw_qemu_guest_agent=yes", "toucher")
    try:
        with ThreadPoolExecutor(1) as beside:
            guest = beside.submit(report_in_its_place, h1, load)
            server = {"nics": "none", "host": "h1"}
            run = rally(cloud, "noise", server=server, slo_p99_us=SLO_US, settle_s=1500)
            h1.run(f"kill {guest.result()} || true")
    finally:
        cloud.openstack("image", "unset", "--property", "hw_qemu_guest_agent", "toucher")
        h1.agent.start()
    assert run.failed() == red, run.output


@contextmanager
def leases_of(cloud: LabCloud, host: LabHost, lends: str = "") -> Iterator[None]:
    """Its agent publishes how its servers reach pools, and numa-host-agent-leases runs beside it.

    :param lends: options by which it lends GPUs; an echo is in their place, in the namespaces of the host
    """
    folder = host.emulated.folder / "leases"
    folder.mkdir(exist_ok=True)
    conf, log = folder / "leases.conf", folder / "log"
    program = f"{sys.executable} {sys.prefix}/bin/numa-host-agent-leases"
    words = f"{program} --config-file {host.emulated.agent_conf} --config-file {conf}"
    state = "[agent]\nstate_dir = /run/leases-of-rally\n"  # sockets cannot be on what the host shares with its own
    (root,) = (uuid for uuid, name in cloud.providers().items() if name == host.name)
    reaches = {names.REMOTE_GPU_CLIENT, names.fabric("lab")}
    before = host.emulated.agent_conf.read_text()
    host.emulated.agent_conf.write_text(before + REACHES)
    conf.write_text(state + lends)
    host.agent.restart()
    pid = host.run(f"setsid {words} > {log} 2>&1 < /dev/null & echo $!").strip()
    try:
        eventually(f"{host.name} reaches pools", lambda: reaches <= cloud.traits(root), 300, 2)
        if lends:
            pool = names.pool_provider(host.name)
            eventually(
                f"{host.name} lends GPUs",
                lambda: pool in cloud.providers().values(),
                600,
                2,
                log.read_text,
            )
        yield
    finally:
        host.run(f"kill {pid}; while [ -d /proc/{pid} ]; do sleep 0.2; done")
        conf.write_text(state)
        host.run(f"{words} --once", 600)  # takes the pool out of Placement
        host.emulated.agent_conf.write_text(before)
        host.agent.restart()
        eventually(
            f"{host.name} reaches pools no more", lambda: not reaches & cloud.traits(root), 300, 2
        )


def test_leases_of_a_task_are_attached_moved_and_gone(cloud: LabCloud) -> None:
    """F-002-91, 93, 94: what is behind the leases is no GPU, so times say nothing but that there are some::

    h1    its servers require a remote GPU, and reach pools in fabric "lab"
    h2    lends two GPUs there
    """
    if "h2" not in cloud.hosts:
        pytest.skip("the lab runs with one emulated host")
    with (
        leases_of(cloud, cloud.hosts["h2"], LENDS),
        leases_of(cloud, cloud.hosts["h1"]),
    ):
        run = rally(cloud, "leases")
    assert run.status == 0, run.output
    assert run.failed() == set()
    (moved,) = run.charts("Seconds of the longest move of a lease")
    assert 0 < moved["out of use at most"] <= moved["whole"]


def test_scheduling_is_compared_with_the_filter_and_without(cloud: LabCloud) -> None:
    run = rally(cloud, "filter", times=5, many=8)
    assert run.status == 0, run.output
    assert run.figures()["filter_ratio_single"] > 0


def test_the_whole_chain_of_a_characterisation_writes_a_file_that_says_it_is_void(
    cloud: LabCloud,
) -> None:
    """F-000-43 with real servers, GPUs and host; the emulated GPUs compute nothing, so no figure is looked at."""
    if "h2" not in cloud.hosts:
        pytest.skip("the lab runs with one emulated host")
    run = rally(cloud, "characterise")
    assert run.status == 0, run.output
    file = run.out / "gpu-profiles.yaml"
    text = file.read_text()
    assert "# VOID: emulated hardware." in text
    written = yaml.safe_load(text)["toucher"]
    assert {key: len(value) for key, value in written.items() if key != "beside_s"} == {
        "pack_s": 5,
        "spread_s": 5,
    }
    assert len(written["beside_s"]["toucher"]) == 5
    assert "toucher" in read_profiles(file, "profiles").profiles
