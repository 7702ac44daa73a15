# SPDX-License-Identifier: Apache-2.0
"""What the services are told."""

import configparser
import json
import stat
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from uuid import UUID

import pytest
from numa_lab import configuration
from numa_lab.errors import LabError
from numa_lab.settings import JOB_ENGINES, HostConfig, Settings
from werkzeug.test import Client

from host_agent.cmd import supervisor
from host_agent.conf import configuration as agent_configuration
from nova_numa_ext.job_hint import hint_keys
from nova_numa_ext.orchestrator import conf as jobs_conf
from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.application import assembled


def parsed(text: str) -> configparser.ConfigParser:
    """Nova's files repeat some options; the last one counts here."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(text)
    return parser


@pytest.fixture
def h1(settings: Settings) -> HostConfig:
    return HostConfig(
        name="h1",
        state=settings.hosts / "h1" / "state",
        log=settings.hosts / "h1" / "log",
        instances=Path("/var/lib/nova/instances"),
        cpu_dedicated_set="1-3",
        cpu_shared_set="0",
        pci_device_specs=(
            '{"vendor_id": "1b36", "product_id": "0005"}',
            '{"vendor_id": "10de", "product_id": "20b5"}',
        ),
        slow=True,
    )


def test_a_template_that_wants_more_than_it_is_given_is_named(tmp_path: Path) -> None:
    template = tmp_path / "thing.conf"
    template.write_text("port = $port\ncost = 5 $$\nname = $name\n")

    assert "cost = 5 $\n" in configuration.render(template, {"port": 1, "name": "n"})
    with pytest.raises(LabError, match=r"thing.conf wants \$name"):
        configuration.render(template, {"port": 1})


def test_a_file_is_written_only_when_its_text_changes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.conf"

    assert configuration.write_if_changed(path, "one") is True
    before = path.stat().st_mtime_ns
    assert configuration.write_if_changed(path, "one") is False
    assert path.stat().st_mtime_ns == before
    assert configuration.write_if_changed(path, "two") is True
    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_emulated_compute_reaches_the_services_on_its_own_loopback(
    settings: Settings, h1: HostConfig
) -> None:
    conf = parsed(configuration.nova_compute_conf(settings, h1))

    assert conf["DEFAULT"]["host"] == "h1"
    assert conf["DEFAULT"]["transport_url"].endswith(f"@127.0.0.1:{settings.ports.rabbitmq}/")
    assert conf["placement"]["auth_url"] == f"http://127.0.0.1:{settings.ports.keystone}/v3"
    assert conf["compute"]["cpu_dedicated_set"] == "1-3"
    assert conf["compute"]["cpu_shared_set"] == "0"
    assert conf["libvirt"]["virt_type"] == "qemu"


def test_servers_migrate_between_hosts_with_one_path_for_their_disks(
    settings: Settings, h1: HostConfig
) -> None:
    """Nova writes no disk path anew for the target, and asks it where guests arrive: no name is looked up."""
    fixed = parsed(configuration.nova_compute_conf(settings, h1))
    moving = replace(h1, migration_address="192.168.77.1")
    conf = parsed(configuration.nova_compute_conf(settings, moving))

    assert "live_migration_inbound_addr" not in fixed["libvirt"]
    assert conf["libvirt"]["live_migration_inbound_addr"] == "192.168.77.1"
    assert conf["DEFAULT"]["instances_path"] == "/var/lib/nova/instances"


def test_only_the_libvirt_of_a_host_with_a_migration_address_listens_and_there_alone(
    settings: Settings,
) -> None:
    quiet = configuration.libvirt_files(settings, UUID(int=1), settings.log)
    open_ = configuration.libvirt_files(settings, UUID(int=1), settings.log, "192.168.77.1")

    assert "listen_tcp = 0" in quiet["libvirtd.conf"]
    assert not any("auth_tcp" in text or "192.168" in text for text in quiet.values())
    lines = open_["libvirtd.conf"].splitlines()
    assert {"listen_tcp = 1", 'listen_addr = "192.168.77.1"', 'auth_tcp = "none"'} <= {*lines}
    assert 'migration_address = "192.168.77.1"' in open_["qemu.conf"].splitlines()


def test_every_pci_device_and_the_alias_are_told(settings: Settings, h1: HostConfig) -> None:
    text = configuration.nova_compute_conf(settings, h1)

    specs = [line for line in text.splitlines() if line.startswith("device_spec")]
    assert [json.loads(line.partition("=")[2])["vendor_id"] for line in specs] == ["1b36", "10de"]
    alias = json.loads(parsed(text)["pci"]["alias"])
    assert alias["resource_class"] == configuration.GPU_RESOURCE_CLASS
    assert parsed(text)["pci"]["report_in_placement"] == "true"


def test_a_host_without_cpu_sets_leaves_novas_defaults(settings: Settings) -> None:
    host = HostConfig("small", settings.state, settings.log, settings.state)
    conf = parsed(configuration.nova_compute_conf(settings, host))

    assert "cpu_dedicated_set" not in conf["compute"]
    assert "cpu_shared_set" not in conf["compute"]


@pytest.mark.parametrize("plugin", [True, False])
def test_the_schedulers_plugins_are_ours_only_when_wanted(settings: Settings, plugin: bool) -> None:
    environment = {
        "NUMA_EXT_LAB": str(settings.lab),
        "NUMA_EXT_PLUGIN": "1" if plugin else "0",
    }
    chosen = Settings.from_environment(settings.checkout, environment)
    host = HostConfig("small", settings.state, settings.log, settings.state)
    text = configuration.nova_compute_conf(chosen, host)
    conf = parsed(text)["filter_scheduler"]

    assert "available_filters = nova.scheduler.filters.all_filters\n" in text
    filters = conf["enabled_filters"].split(",")
    assert ("NumaExtFilter" in filters) is plugin
    assert not plugin or filters.index("NumaExtFilter") + 1 == filters.index("NUMATopologyFilter")
    assert ("nova_numa_ext.scheduler.NumaExtWeigher" in conf["weight_classes"]) is plugin
    assert conf["weight_classes"].startswith("nova.scheduler.weights.all_weighers")


def test_the_agent_is_told_its_provider_its_gpus_and_its_folder(
    settings: Settings, h1: HostConfig
) -> None:
    told = replace(h1, gpu_matrix="/lab/gpus/minsky.txt")
    conf = parsed(
        configuration.agent_conf(settings, told, Path("/etc/nova.conf"), Path("/run/helper"))
    )

    assert conf["host"]["name"] == "h1"
    assert conf["host"]["gpu_matrix"] == "/lab/gpus/minsky.txt"
    assert conf["host"]["gpu_products"] == "1b36:0005,10de:20b5"
    assert conf["agent"]["state_dir"].startswith(str(h1.state))
    assert conf["helper"] == {"socket": "/run/helper.sock", "state_dir": "/run/helper"}
    assert conf["placement"]["username"] == "numa-ext-host-h1"


def test_the_agent_reads_every_key_that_it_is_told(
    settings: Settings, h1: HostConfig, tmp_path: Path
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(
        configuration.agent_conf(settings, h1, tmp_path / "nova.conf", tmp_path / "helper")
    )
    assert (
        agent_configuration.unknown_keys(agent_configuration.load([f"--config-file={file}"])) == []
    )


def test_the_supervisor_understands_what_it_is_told(settings: Settings, tmp_path: Path) -> None:
    """A round of an emulated host, which is killed in vain before, gets its time.

    The program is a file: the fork server of an emulated host runs files, no modules by name.
    """
    program, *words = configuration.supervisor(settings, tmp_path / "agent.conf")
    assert program == f"{settings.venv}/bin/numa-host-agent-supervisor"
    (script,) = entry_points(group="console_scripts", name=Path(program).name)
    assert script.load() is supervisor.main
    told = supervisor._parser().parse_args(words)
    assert told.config_file == [str(tmp_path / "agent.conf")]
    usual = supervisor.Patience()
    assert (told.max_silence, told.watchdog, told.start) > (
        usual.silence_s,
        usual.round_s,
        usual.first_round_s,
    )


def test_credentials_are_exported_with_a_microversion_that_checks_extra_specs(
    settings: Settings,
) -> None:
    text = configuration.openrc(settings)

    assert f"export OS_PASSWORD={settings.passwords().admin}\n" in text
    version = next(line for line in text.splitlines() if "OS_COMPUTE_API_VERSION" in line)
    assert tuple(map(int, version.partition("=")[2].split("."))) >= (2, 86)


def write_controller(settings: Settings) -> None:
    """Write it beside an environment with nothing in what it copies."""
    for name in ("nova/api-paste.ini", "glance/glance-api-paste.ini"):
        (settings.venv / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (settings.venv / "etc" / name).write_text("")
    configuration.write_controller(settings)


def test_a_plain_cloud_is_told_nothing_of_this_project(settings: Settings, h1: HostConfig) -> None:
    plain = settings.become_plain()
    write_controller(plain)
    told = {
        str(file.relative_to(plain.etc)): file.read_text()
        for file in plain.etc.rglob("*.conf")
        if file.parent.name != "gunicorn"
    }
    told |= {"compute": configuration.nova_compute_conf(plain, h1)}
    assert {"nova/nova.conf", "placement/placement.conf"} <= told.keys()
    ours = ("numa_ext", "NumaExt", "policy_file", "allocation_candidates", "pcpu_query")
    assert {(name, word) for name, text in told.items() for word in ours if word in text} == set()
    filters = parsed(told["nova/nova.conf"])["filter_scheduler"]["enabled_filters"]
    assert filters.endswith("Filter,NUMATopologyFilter,PciPassthroughFilter")
    assert not any("jobs" in str(file.relative_to(plain.etc)) for file in plain.etc.rglob("*"))
    assert {user["role"] for user in configuration.users_of_one_role(plain)} == {"service"}


def test_a_cloud_that_is_not_plain_is_told_all_of_it(settings: Settings) -> None:
    write_controller(settings)
    placement = (settings.etc / "placement" / "placement.conf").read_text()
    assert str(settings.checkout / "etc/placement/policy.yaml") in placement
    nova = parsed((settings.etc / "nova" / "nova.conf").read_text())
    assert nova["numa_ext"]["metrics_port"] == str(settings.ports.scheduler_metrics)


def test_nova_lets_the_lab_be_filled(settings: Settings) -> None:
    """Its default of 10 servers per project would come before the hosts are full."""
    write_controller(settings)
    quota = parsed((settings.etc / "nova" / "nova.conf").read_text())["quota"]
    assert [quota[key] for key in ("instances", "cores", "ram")] == ["-1", "-1", "-1"]


def test_no_host_has_a_password_of_the_administrator_a_service_or_another_host(
    settings: Settings, h1: HostConfig
) -> None:
    passwords = settings.passwords()
    h2 = replace(h1, name="h2")
    texts = [
        configuration.agent_conf(settings, h1, Path("/etc/nova.conf"), Path("/h")),
        configuration.nova_compute_conf(settings, h1),
    ]
    foreign = [
        parsed(configuration.agent_conf(settings, h2, Path("/"), Path("/h")))["placement"][
            "password"
        ],
        parsed(configuration.nova_compute_conf(settings, h2))["placement"]["password"],
        passwords.admin,
        passwords.service,
    ]
    assert len(set(foreign)) == 4
    assert not any(secret in text for secret in foreign for text in texts)


def test_each_host_has_users_of_its_own_with_one_role_each(
    settings: Settings, h1: HostConfig
) -> None:
    users = {user["name"]: user for user in configuration.users_of_one_role(settings)}
    users.pop("numa-ext-jobs")
    assert len(users) == 2 * len(settings.compute_names)
    agent = parsed(configuration.agent_conf(settings, h1, Path("/etc/nova.conf"), Path("/h")))[
        "placement"
    ]
    compute = parsed(configuration.nova_compute_conf(settings, h1))["placement"]
    for conf, role, project in (
        (agent, "numa_ext_host", "numa-ext-hosts"),
        (compute, "service", "service"),
    ):
        user = users[conf["username"]]
        assert (user["role"], user["project"]) == (role, project)
        assert (conf["password"], conf["project_name"]) == (user["password"], project)


def test_the_job_service_has_a_user_of_its_own_and_reads_all_that_it_is_told(
    settings: Settings,
) -> None:
    write_controller(settings)
    file = settings.etc / "numa-ext-jobs" / "numa-ext-jobs.conf"
    conf = startup.configured([str(file)])
    served = Client(assembled(conf))
    assert served.get("/healthcheck").status_code == 200
    own = {user["name"]: user for user in configuration.users_of_one_role(settings)}
    user = own[conf.placement.username]
    assert (user["role"], user["project"]) == ("service", conf.placement.project_name)
    assert conf.placement.password == user["password"] == settings.password_of("numa-ext-jobs")
    assert conf.database.connection.endswith("/numa_ext?charset=utf8mb4")
    assert [json.loads(each) for each in conf.numa_ext_jobs.pci_alias] == [configuration.PCI_ALIAS]
    assert {*parsed(file.read_text())["numa_ext_jobs"]} <= {*conf.numa_ext_jobs}


def test_nova_scheduler_and_engines_have_the_same_key_for_hints_of_jobs(
    settings: Settings,
) -> None:
    write_controller(settings)
    nova = parsed((settings.etc / "nova" / "nova.conf").read_text())["numa_ext"]["job_hint_keys"]
    jobs = parsed((settings.etc / "numa-ext-jobs" / "numa-ext-jobs.conf").read_text())
    assert jobs["numa_ext_jobs"]["job_hint_keys"] == nova
    assert hint_keys([nova], "numa_ext")


def test_each_engine_has_a_port_and_a_mark_of_its_own_that_ends_with_the_lab(
    settings: Settings,
) -> None:
    write_controller(settings)
    folder = settings.etc / "numa-ext-jobs"
    ports, marks, shared = [], set(), set()
    for engine in range(JOB_ENGINES):
        files = [folder / "numa-ext-jobs.conf", folder / f"numa-ext-engine-{engine}.conf"]
        conf = startup.configured([str(file) for file in files])
        ports.append(conf.numa_ext_jobs.metrics_port)
        marks.add(jobs_conf.read(conf).engine.mark_file)
        of_jobs = conf.numa_ext_jobs
        shared.add((of_jobs.scaling_traces, of_jobs.scaling_hooks, of_jobs.scaling_prometheus))
    assert ports == [settings.ports.engine_metrics(engine) for engine in range(JOB_ENGINES)]
    assert len(marks) == JOB_ENGINES
    assert all(mark.is_relative_to(settings.state) for mark in marks)
    prometheus = f"http://127.0.0.1:{settings.ports.prometheus}"
    assert shared == {(f"{settings.state}/traces", f"{settings.state}/hooks", prometheus)}


def test_the_labs_placement_reads_the_policy_file_that_is_shipped(settings: Settings) -> None:
    template = Path(configuration.__file__).parents[1] / "templates" / "placement-policy.conf"
    assert "policy_file = $policy_file" in template.read_text()
    shipped = Path(__file__).parents[3] / "etc" / "placement" / "policy.yaml"
    values = configuration._common_values(replace(settings, checkout=shipped.parents[2]))
    assert values["policy_file"] == shipped
    assert shipped.is_file()
