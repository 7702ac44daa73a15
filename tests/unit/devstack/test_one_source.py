# SPDX-License-Identifier: Apache-2.0
"""DevStack and the lab are configured from the same files, and services understand what the plug-in writes."""

import copy
import json
import re
import subprocess
import sys
import textwrap
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from numa_lab import configuration
from numa_lab.settings import HostConfig, Settings
from oslo_config import cfg
from oslo_policy import policy
from placement import policies
from werkzeug.test import Client

from host_agent.cmd.leases import lent
from host_agent.conf import configuration as agent_configuration
from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.application import assembled
from nova_numa_ext.orchestrator.store.database import Database
from placement_traits import nova_conf
from placement_traits.findings import Level
from tests.support.devstack import CHECKOUT, Machine, options

OPTIONS = CHECKOUT / "devstack/options"
AGENT_CONF = "etc/numa-host-agent/numa-host-agent.conf"
JOBS_CONF = "opt/stack/data/numa-ext/numa-ext-jobs.conf"
OF_THE_PLACE = ("journal_path", "metrics_port", "job_hint_keys")
OPERATOR = CHECKOUT / "doc/source/operator"
# What is tried changes faster than a cloud.
OF_TRIALS = ("numa_ext", "numa_ext_jobs")

# nova-scheduler as it starts, up to the database: filters and weighers that it would ask, in order, and our options.
NOVA_SCHEDULER = """
import json, sys
from unittest import mock
from nova import config
from nova.conf import CONF
from nova.scheduler import host_manager

config.parse_args(["nova-scheduler", "--config-file", sys.argv[1]])
manager = host_manager.HostManager
of_the_database = ("refresh_cells_caches", "_init_aggregates", "_init_instance_info")
with mock.patch.multiple(manager, **dict.fromkeys(of_the_database, mock.DEFAULT)):
    made = manager()
print(json.dumps({
    "filters": [type(each).__name__ for each in made.enabled_filters],
    "weighers": [type(each).__name__ for each in made.weighers],
    "fallback": CONF.workarounds.disable_fallback_pcpu_query,
    "numa_ext": {name: repr(CONF.numa_ext[name]) for name in sorted(CONF.numa_ext)},
}))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with all of the plug-in."""
    made = Machine(tmp_path_factory.mktemp("devstack") / "machine")
    made.prepare()
    run = made.run("stack", "n-api,n-sch,n-cpu,placement-api,placement-client")
    assert (run.status, run.mistakes) == (0, ()), run.trace[-2000:]
    return made


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A lab with all of its files, and one compute's."""
    folder = tmp_path_factory.mktemp("lab")
    settings = Settings.from_environment(CHECKOUT, {"NUMA_EXT_LAB": str(folder)})
    settings.make_folders()
    for name in ("nova/api-paste.ini", "glance/glance-api-paste.ini"):
        (settings.venv / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (settings.venv / "etc" / name).write_text("")
    configuration.write_controller(settings)
    host = HostConfig("h1", settings.state, settings.log, settings.state)
    text = configuration.agent_conf(settings, host, Path("/etc/nova.conf"), Path("/run/helper"))
    (settings.etc / "numa-host-agent.conf").write_text(text)
    return settings


def started(nova_conf_file: Path) -> dict[str, Any]:
    """What nova-scheduler would work with."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NOVA_SCHEDULER, nova_conf_file],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout)
    for name in OF_THE_PLACE:
        del told["numa_ext"][name]
    return told


def test_nova_scheduler_starts_with_both_and_is_the_same(machine: Machine, lab: Settings) -> None:
    """DevStack's own filters come on top."""
    devstack = started(machine.root / "etc/nova/nova.conf")
    assert devstack["filters"].pop(0) == "SameHostFilter"
    assert devstack == started(lab.etc / "nova/nova.conf")
    assert devstack["filters"][-3:] == [
        "NumaExtFilter",
        "NUMATopologyFilter",
        "PciPassthroughFilter",
    ]
    assert "NumaExtWeigher" in devstack["weighers"]
    assert devstack["numa_ext"]["view_refresh_interval"] == "2.0"


def test_our_doctor_is_content_with_devstacks_nova_scheduler(machine: Machine) -> None:
    """DevStack itself says that computes tell their scheduler nothing: they cannot reach it."""
    conf = nova_conf.read([machine.root / "etc/nova/nova.conf"])
    found = {finding.check: finding.level for finding in nova_conf.scheduler(conf, [4] * 2)}
    assert {check for check, level in found.items() if level is not Level.GOOD} == {
        "track_instance_changes"
    }


@pytest.mark.parametrize(
    ("options_file", "in_devstack", "in_the_lab"),
    [
        ("placement.conf", "etc/placement/placement.conf", "placement/placement.conf"),
        ("numa-host-agent.conf", AGENT_CONF, "numa-host-agent.conf"),
        ("numa-ext-jobs.conf", JOBS_CONF, "numa-ext-jobs/numa-ext-jobs.conf"),
    ],
)
def test_options_are_those_of_the_lab(
    machine: Machine, lab: Settings, options_file: str, in_devstack: str, in_the_lab: str
) -> None:
    wanted = options(OPTIONS / options_file)
    assert wanted
    for file in (machine.root / in_devstack, lab.etc / in_the_lab):
        found = options(file)
        assert {key: found.get(key) for key in wanted} == wanted


def test_the_lab_can_do_without_our_filter_and_weigher(lab: Settings) -> None:
    text = configuration._without_ours((OPTIONS / "nova.conf").read_text())
    found = {line.partition(" = ")[0]: line.partition(" = ")[2] for line in text.splitlines()}
    assert "NumaExt" not in text
    assert found["available_filters"] == "nova.scheduler.filters.all_filters"
    assert found["enabled_filters"].endswith("Filter,NUMATopologyFilter,PciPassthroughFilter")
    assert found["weight_classes"] == "nova.scheduler.weights.all_weighers"
    assert found["disable_fallback_pcpu_query"] == "true"
    plain = Settings.from_environment(
        CHECKOUT, {"NUMA_EXT_LAB": str(lab.lab), "NUMA_EXT_PLUGIN": "0"}
    )
    host = HostConfig("h1", lab.state, lab.log, lab.state)
    assert configuration.nova_compute_conf(replace(plain), host).endswith(text)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("nova.conf", "installation.rst"),
        ("placement.conf", "installation.rst"),
        ("numa-ext-jobs.conf", "jobs.rst"),
    ],
)
def test_operators_are_told_the_same(name: str, page: str, tmp_path: Path) -> None:
    """But for how often something is done."""
    blocks = re.findall(
        r"(?m)^\.\. code-block:: ini\n\n((?:    .*\n|\n)+)", (OPERATOR / page).read_text()
    )
    shown = [re.sub("(?m)^    ", "", block) for block in blocks]
    (tmp_path / "shown").write_text("".join(shown))
    found = options(tmp_path / "shown")
    told = options(OPTIONS / name).items()
    wanted = {key: value for key, value in told if key[0] not in OF_TRIALS}
    assert wanted
    assert {key: found.get(key) for key in wanted} == wanted


def test_the_agent_reads_every_key_that_it_is_told(machine: Machine) -> None:
    conf = agent_configuration.load([f"--config-file={machine.root / AGENT_CONF}"])
    assert agent_configuration.unknown_keys(conf) == []
    assert conf.placement.bandwidth_mbps_per_node == 20000
    assert conf.host.nova_conf == (str(machine.root / "etc/nova/nova-cpu.conf"),)
    assert conf.oslo.placement.auth_type == "password"


def test_the_agent_reads_what_the_readme_adds_for_leases(tmp_path: Path) -> None:
    """And the unit of leases finds a pool to lend in it."""
    blocks = re.findall(
        r"(?m)^    \[\[post-config\|\$NUMA_EXT_AGENT_CONF\]\]\n((?:    .+\n)+)",
        (CHECKOUT / "devstack/README.rst").read_text(),
    )
    file = tmp_path / "numa-host-agent.conf"
    file.write_text("".join(map(textwrap.dedent, blocks)))
    conf = agent_configuration.load([f"--config-file={file}"])
    assert agent_configuration.unknown_keys(conf) == []
    assert lent(conf.remote_gpus, "compute1").gpus[0].memory_mb == 8192


def test_the_job_service_starts_with_what_devstack_writes(machine: Machine) -> None:
    file = machine.root / JOBS_CONF
    conf = startup.configured([str(file)])
    wrong = {key for section, key in options(file) if section == "numa_ext_jobs"}
    assert wrong - {*conf.numa_ext_jobs} == set(), "no option of ours"
    assert Client(assembled(conf)).get("/healthcheck").status_code == 200
    assert Database.configured(conf)


def test_placement_finds_the_shipped_policy_beside_its_own(machine: Machine) -> None:
    """In oslo.policy's default folder, so that a policy.yaml stays as it is."""
    folder = machine.root / "etc/placement"
    conf = cfg.ConfigOpts()
    conf([], project="placement", default_config_files=[str(folder / "placement.conf")])
    enforcer = policy.Enforcer(conf, policy_file="policy.yaml")
    enforcer.register_defaults(copy.deepcopy(policies.list_rules()))
    host = {"roles": ["numa_ext_host"]}
    assert enforcer.enforce("placement:resource_providers:traits:update", {}, host)
    assert not enforcer.enforce("placement:reshaper:reshape", {}, host)


def test_pip_installs_the_agents_extra_but_for_libvirts_binding() -> None:
    setup = ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    extra = {line.partition("#")[0].strip() for line in setup["extras"]["agent"].splitlines()}
    (words,) = re.findall(r"pip_install (.*)", (CHECKOUT / "devstack/plugin.sh").read_text())
    assert set(re.findall(r'"(.+?)"', words)) == {
        each for each in extra if each and not each.startswith("libvirt-python")
    }


def test_the_readme_names_every_setting_and_service() -> None:
    settings = (CHECKOUT / "devstack/settings").read_text()
    readme = (CHECKOUT / "devstack/README.rst").read_text()
    names = set(re.findall(r"\$\(trueorfalse \w+ (\w+)\)|enable_service ([\w-]+)", settings))
    named = {one or other for one, other in names}
    assert len(named) == 6
    assert {name for name in named if f"* - ``{name}``" not in readme} == set()
