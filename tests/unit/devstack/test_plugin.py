# SPDX-License-Identifier: Apache-2.0
"""The DevStack plug-in, phase by phase: what it does on which node, done twice, and taken back."""

import json
import re
from pathlib import Path

import pytest

from nova_numa_ext.job_hint import hint_keys
from nova_numa_ext.orchestrator import manage
from tests.support.devstack import CHECKOUT, Machine, Run, options

CONTROLLER = "key,n-api,n-sch,n-cond,placement-api"
COMPUTE = "n-cpu,placement-client"
ALL_IN_ONE = f"{CONTROLLER},{COMPUTE}"
AGENT = {
    "numa-host-agent.service",
    "numa-host-agent-helper.service",
    "numa-host-agent-helper.socket",
}
HEAL = "devstack@numa-ext-heal.service"
JOBS = {"devstack@numa-ext-jobs-api.service", "devstack@numa-ext-engine.service"}
JOBS_CONF = "opt/stack/data/numa-ext/numa-ext-jobs.conf"
HINT_KEY = "opt/stack/data/numa-ext/job-hint-key"
AGENT_CONF = "etc/numa-host-agent/numa-host-agent.conf"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "machine")
    made.prepare()
    return made


def good(run: Run) -> Run:
    assert (run.status, run.mistakes) == (0, ()), run.trace[-2000:]
    return run


def flavors(machine: Machine) -> object:
    return json.loads((machine.root / "flavors").read_text())


def test_all_in_one_has_everything(machine: Machine) -> None:
    run = good(machine.run("stack", ALL_IN_ONE))
    assert machine.active() == AGENT | JOBS | {HEAL}
    assert machine.enabled() == {
        *("numa-host-agent.service", "numa-host-agent-helper.socket"),
        "numa-host-agent-withdraw.timer",
    }
    units = {file.name for file in (CHECKOUT / "etc/systemd").glob("numa-host-agent*")}
    for unit in units:
        shipped = (CHECKOUT / "etc/systemd" / unit).read_text()
        assert machine.files()[f"etc/systemd/system/{unit}"] == shipped
    assert flavors(machine) == json.loads((CHECKOUT / "devstack/lab/flavors.json").read_text())
    assert run.of("setup_develop") == [f"{CHECKOUT} jobs"] * 2
    assert (machine.root / "numa_balancing").read_text() == "0\n"


def test_a_second_stack_changes_nothing(machine: Machine) -> None:
    first = good(machine.run("stack", ALL_IN_ONE))
    files = machine.files()
    second = good(machine.run("stack", ALL_IN_ONE))
    assert machine.files() == files
    prepared = {
        "sudo mount -t resctrl resctrl /sys/fs/resctrl",
        "sudo sysctl -q kernel.numa_balancing=0",
    }
    assert [call for call in first.calls if call not in prepared] == list(second.calls)


def test_each_phase_repeated_leaves_one_of_each_option(machine: Machine) -> None:
    good(machine.run("stack", ALL_IN_ONE))
    for name in ("etc/nova/nova.conf", "etc/placement/placement.conf", AGENT_CONF, JOBS_CONF):
        found = options(machine.root / name)
        several = {key for key, values in found.items() if len(values) > 1}
        assert several <= {("filter_scheduler", "available_filters")}


@pytest.mark.parametrize("services", [ALL_IN_ONE, COMPUTE, CONTROLLER])
def test_unstack_stops_all_and_clean_leaves_nothing(machine: Machine, services: str) -> None:
    good(machine.run("clean", services))
    bare = machine.files()
    good(machine.run("stack", services))
    good(machine.run("unstack", services))
    assert (machine.active(), machine.enabled()) == (set(), set())
    assert (machine.root / "numa_balancing").read_text() == "1\n"
    assert (machine.root / "mounted").read_text().strip() == ""
    good(machine.run("unstack", services))
    good(machine.run("clean", services))
    left = machine.files()
    # DevStack's own, which clean.sh leaves and stack.sh writes again.
    left.pop("etc/placement/placement.conf")
    folders = {name for name in left if name.endswith("/")}
    assert left.keys() - folders == bare.keys() - {name for name in bare if name.endswith("/")}
    assert not any("numa" in name for name in left)
    good(machine.run("clean", services))
    assert machine.files().keys() - {"etc/placement/placement.conf"} == left.keys()


BESIDE = ("numa-host-agent-leases", "numa-host-agent-doorman", "numa-host-agent-lanes")


def with_doorman(machine: Machine) -> Machine:
    """The program of the link is there, as its package installs it."""
    (machine.root / "bin/numa-ext-rgpu").touch(mode=0o755)
    return machine


def test_leases_and_lanes_are_there_where_local_conf_enables_them(machine: Machine) -> None:
    run = good(with_doorman(machine).run("stack", ",".join((ALL_IN_ONE, *BESIDE))))
    units = {f"{service}.service" for service in BESIDE}
    assert machine.active() == AGENT | JOBS | {HEAL} | units | {f"processes of {BESIDE[0]}.service"}
    assert machine.enabled() >= units
    for unit in units:
        (program,) = re.findall(
            r"(?m)^ExecStart=/usr/bin/(\S+)", (CHECKOUT / "etc/systemd" / unit).read_text()
        )
        assert f"usr/bin/{program}" in machine.files() or program == "numa-ext-rgpu"
    assert run.of("install_package") == ["iproute2 nftables"] * 2
    steps = list(run.calls)
    engine = next(n for n, call in enumerate(steps) if "run_process numa-ext-engine" in call)
    asks = next(n for n, call in enumerate(steps) if f"restart {BESIDE[0]}" in call)
    assert engine < asks, "the job service is there before hosts ask it"


def test_nothing_enables_leases_and_lanes_by_itself(machine: Machine) -> None:
    run = good(machine.run("stack", ALL_IN_ONE))
    assert not any(service in unit for unit in machine.enabled() for service in BESIDE)
    assert not run.of("install_package")


@pytest.mark.parametrize("disabled", ["", f"numa-host-agent,{','.join(BESIDE)}"])
def test_unstack_and_clean_leave_nothing_of_leases_and_lanes(
    machine: Machine, disabled: str
) -> None:
    """Processes of leases, which their unit leaves behind, are ended, too."""
    services = ",".join((ALL_IN_ONE, *BESIDE))
    good(with_doorman(machine).run("stack", services))
    for _ in range(2):
        good(machine.run("unstack", services, DISABLED_SERVICES=disabled))
        assert not any("numa-host-agent" in unit for unit in machine.active() | machine.enabled())
    good(machine.run("clean", services, DISABLED_SERVICES=disabled))
    assert not any("numa-host-agent" in name for name in machine.files())


def test_a_unit_beside_the_agent_that_does_not_start_ends_stack_with_a_sentence(
    machine: Machine,
) -> None:
    run = machine.run("stack", f"{COMPUTE},{BESIDE[2]}", BAD_UNIT=f"{BESIDE[2]}.service")
    assert run.status == 1
    assert run.of("die") == [f"{BESIDE[2]} did not start: journalctl -u {BESIDE[2]}"]


def test_an_agent_that_was_disabled_meanwhile_leaves_nothing(machine: Machine) -> None:
    good(machine.run("stack", COMPUTE))
    for program in ("unstack", "clean"):
        good(machine.run(program, COMPUTE, DISABLED_SERVICES="numa-host-agent"))
    assert not any("numa" in name for name in machine.files())


def test_a_compute_node_has_the_agent_and_nothing_of_the_controller(machine: Machine) -> None:
    run = good(machine.run("stack", COMPUTE))
    assert machine.active() == AGENT
    assert run.of("setup_develop") == [f"{CHECKOUT}"] * 2
    assert not any(run.of(what) for what in ("service", "endpoint", "database"))
    assert not (machine.root / "flavors").exists()
    assert ("numa_ext", "journal_path") not in options(machine.root / "etc/nova/nova.conf")
    assert options(machine.root / "etc/placement/placement.conf").keys() == {
        ("DEFAULT", "debug"),
        ("api", "auth_strategy"),
    }
    assert "etc/placement/policy.d/numa-ext-host.yaml" not in machine.files()
    assert not run.of("openstack")


def test_a_controller_has_no_agent(machine: Machine) -> None:
    run = good(machine.run("stack", CONTROLLER))
    assert machine.active() == JOBS | {HEAL}
    assert not any("numa-host-agent" in name for name in machine.files())
    assert not any(run.of(what) for what in ("role", "pip_install", "sudo"))


@pytest.mark.parametrize(
    "variables", [{"VIRT_DRIVER": "fake"}, {"DISABLED_SERVICES": "numa-host-agent"}]
)
def test_without_libvirt_or_by_choice_there_is_no_agent(
    machine: Machine, variables: dict[str, str]
) -> None:
    run = good(machine.run("stack", COMPUTE, **variables))
    assert machine.active() == set()
    assert not run.of("sudo")


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"VIRT_DRIVER": "fake"},
            "numa-host-agent controls libvirt's domains, VIRT_DRIVER is fake",
        ),
        ({"DEST": "/home/stack"}, "numa-host-agent's units do not see /home/stack"),
        (
            {"DISABLED_SERVICES": "numa-host-agent", "BESIDE": "numa-host-agent-lanes"},
            "numa-host-agent-lanes has the user and the configuration of numa-host-agent",
        ),
        (
            {"BESIDE": "numa-host-agent-doorman"},
            "numa-host-agent-doorman needs numa-ext-rgpu in /usr/bin",
        ),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_done(
    machine: Machine, variables: dict[str, str], sentence: str
) -> None:
    disabled = variables.get("DISABLED_SERVICES", "")
    agent = "" if disabled else ",numa-host-agent"
    beside = variables.pop("BESIDE", "")
    run = machine.run("stack", f"{COMPUTE}{agent},{beside}", **variables)
    assert run.status == 1
    assert run.of("die")[0].startswith(sentence)
    assert not run.of("sudo")


def test_the_agent_has_a_user_of_its_host_with_one_role(machine: Machine) -> None:
    run = good(machine.run("stack", COMPUTE))
    user, project = "numa-ext-host-compute1", "numa-ext-hosts"
    assert set(run.of("user")) == {f"{user} secret Default"}
    assert set(run.of("project")) == {f"{project} Default"}
    assert set(run.of("role")) == {"numa_ext_host"}
    assert set(run.of("assignment")) == {f"numa_ext_host {user} {project} Default Default"}
    found = options(machine.root / AGENT_CONF)
    told = {key: found["placement", key] for key in ("username", "password", "project_name")}
    assert told == {"username": [user], "password": ["secret"], "project_name": [project]}
    assert ("placement", "cafile") not in found


def test_behind_a_tls_proxy_the_agent_knows_devstacks_authority(machine: Machine) -> None:
    good(machine.run("stack", f"{COMPUTE},tls-proxy"))
    (file,) = options(machine.root / AGENT_CONF)["placement", "cafile"]
    assert file.endswith("/ca-bundle.pem")


def test_the_password_is_the_agents_and_roots(machine: Machine) -> None:
    run = good(machine.run("stack", COMPUTE))
    draft = machine.root / "opt/stack/data/numa-ext/numa-host-agent.conf"
    for file, mode in ((draft, 0o600), (draft.parent, 0o700), (machine.root / AGENT_CONF, 0o640)):
        assert file.stat().st_mode & 0o777 == mode
    installed, owned = (
        next(n for n, call in enumerate(run.calls) if word in call)
        for word in ("0640", "systemd-tmpfiles --create numa-host-agent.conf")
    )
    assert installed < owned


def test_local_conf_adds_options_of_the_agent(machine: Machine) -> None:
    good(machine.run("stack", COMPUTE, LOCAL_CONF="$NUMA_EXT_AGENT_CONF agent mode observe"))
    assert options(machine.root / AGENT_CONF)["agent", "mode"] == ["observe"]


def test_filters_of_others_stay_and_stand_before_ours(machine: Machine) -> None:
    """After ours nova's two slow filters stand alone: any other there switches the short list off."""
    names = "PciPassthroughFilter, BlazarFilter,ComputeFilter,JsonFilter,NUMATopologyFilter"
    good(machine.run("stack", CONTROLLER, NOVA_FILTERS=names))
    found = options(machine.root / "etc/nova/nova.conf")
    (filters,) = found["filter_scheduler", "enabled_filters"]
    assert filters.split(",")[:2] == ["BlazarFilter", "JsonFilter"]
    assert filters.split(",")[-3:] == [
        "NumaExtFilter",
        "NUMATopologyFilter",
        "PciPassthroughFilter",
    ]
    assert len(set(filters.split(","))) == len(filters.split(",")) == 10
    assert found["filter_scheduler", "track_instance_changes"] == ["False"], "DevStack's"


def test_the_job_service_has_its_user_its_tables_and_its_endpoint(machine: Machine) -> None:
    run = good(machine.run("stack", CONTROLLER))
    assert set(run.of("user")) == {"numa-ext-jobs secret Default"}
    assert set(run.of("assignment")) == {"service numa-ext-jobs service Default Default"}
    assert set(run.of("service")) == {"numa-ext-jobs numa-ext Jobs that wait for places"}
    assert set(run.of("endpoint")) == {"numa-ext RegionOne http://192.0.2.1:8991"}
    steps = [call.split()[0] for call in run.calls if "jobs" in call or "numa_ext" in call]
    first = steps[steps.index("database") :]
    assert first[:2] == ["database", "python"], "tables before what needs them"
    assert first.index("run_process") > 1
    (words,) = {call for call in run.of("python") if "manage" in call}
    options_of_manage = words.split("nova_numa_ext.orchestrator.manage ")[1]
    parsed = manage._parser().parse_args(options_of_manage.split())
    assert parsed.config_file == [str(machine.root / JOBS_CONF)]
    found = options(machine.root / JOBS_CONF)
    told = {key: found["placement", key] for key in ("username", "password", "project_name")}
    assert told == {
        "username": ["numa-ext-jobs"],
        "password": ["secret"],
        "project_name": ["service"],
    }
    api, engine = (call for call in run.of("run_process")[:3] if "heal" not in call)
    assert f"--env NUMA_EXT_JOBS_CONFIG={machine.root / JOBS_CONF}" in api
    assert "--bind 0.0.0.0:8991" in api
    assert engine.endswith(f"/numa-ext-engine --config-file {machine.root / JOBS_CONF}")


def test_nova_scheduler_and_the_job_service_have_the_same_key(machine: Machine) -> None:
    """Made once, so that servers made with it can be moved after another stack.sh; only DevStack's user reads it."""
    good(machine.run("stack", CONTROLLER))
    for file in (HINT_KEY, JOBS_CONF):
        assert (machine.root / file).stat().st_mode & 0o777 == 0o600
    key = (machine.root / HINT_KEY).read_text().strip()
    assert hint_keys([key], "numa_ext")
    for again in (False, True):
        if again:
            good(machine.run("unstack", CONTROLLER))
            good(machine.run("stack", CONTROLLER))
        for file, section in (("etc/nova/nova.conf", "numa_ext"), (JOBS_CONF, "numa_ext_jobs")):
            assert options(machine.root / file)[section, "job_hint_keys"] == [key]


def test_the_key_can_be_given_to_nodes_that_share_the_work(machine: Machine) -> None:
    key = "zKk8gP0c0n3hJp2mJt1uR0oQ3mXy1v5w7q9s2d4f6g8="
    good(machine.run("stack", CONTROLLER, NUMA_EXT_JOB_HINT_KEY=key))
    assert options(machine.root / JOBS_CONF)["numa_ext_jobs", "job_hint_keys"] == [key]
    assert options(machine.root / "etc/nova/nova.conf")["numa_ext", "job_hint_keys"] == [key]
    assert not (machine.root / HINT_KEY).exists()


def test_behind_a_tls_proxy_the_jobs_api_listens_on_loopback(machine: Machine) -> None:
    run = good(machine.run("stack", f"{CONTROLLER},tls-proxy"))
    assert set(run.of("endpoint")) == {"numa-ext RegionOne https://192.0.2.1:8991"}
    assert set(run.of("tls_proxy")) == {"numa-ext-jobs * 8991 127.0.0.1 18991"}
    api = next(call for call in run.of("run_process") if "gunicorn" in call)
    assert "--bind 127.0.0.1:18991" in api
    found = options(machine.root / JOBS_CONF)
    assert found["oslo_middleware", "enable_proxy_headers_parsing"] == ["true"]
    assert ("placement", "cafile") in found


@pytest.mark.parametrize(
    ("left_out", "left"),
    [
        ("numa-ext-engine", {"devstack@numa-ext-jobs-api.service"}),
        ("numa-ext-jobs-api", {"devstack@numa-ext-engine.service"}),
    ],
)
def test_engines_and_api_can_be_on_nodes_of_their_own(
    machine: Machine, left_out: str, left: set[str]
) -> None:
    """Tables are made where the API is: by one node of them all."""
    run = good(machine.run("stack", CONTROLLER, DISABLED_SERVICES=left_out))
    assert machine.active() == left | {HEAL}
    assert bool(run.of("database")) == (left_out == "numa-ext-engine")
    assert (machine.root / JOBS_CONF).exists()


def test_without_the_job_service_there_is_nothing_of_it(machine: Machine) -> None:
    names = "numa-ext-jobs-api,numa-ext-engine"
    run = good(machine.run("stack", CONTROLLER, DISABLED_SERVICES=names))
    assert machine.active() == {HEAL}
    assert run.of("setup_develop") == [f"{CHECKOUT}"] * 2
    assert not any(run.of(what) for what in ("user", "service", "endpoint", "database"))
    assert not (machine.root / JOBS_CONF).exists()


def test_an_engine_takes_no_new_database_for_an_old_one(machine: Machine) -> None:
    """Each stack.sh makes the database anew: what the engine has seen of the one before is forgotten."""
    good(machine.run("stack", CONTROLLER))
    mark = Path(options(machine.root / JOBS_CONF)["numa_ext_jobs", "mark_file"][0])
    assert mark.parent == machine.root / Path(JOBS_CONF).parent
    mark.write_text("{}")
    good(machine.run("unstack", CONTROLLER))
    good(machine.run("stack", CONTROLLER))
    assert not mark.exists()


def test_local_conf_adds_options_of_the_job_service(machine: Machine) -> None:
    words = "$NUMA_EXT_JOBS_CONF numa_ext_jobs discipline fcfs"
    good(machine.run("stack", CONTROLLER, LOCAL_CONF=words))
    assert options(machine.root / JOBS_CONF)["numa_ext_jobs", "discipline"] == ["fcfs"]


def test_nova_scheduler_and_flavors_can_be_left_alone(machine: Machine) -> None:
    good(machine.run("stack", CONTROLLER, NUMA_EXT_SCHEDULER="False", NUMA_EXT_FLAVORS="no"))
    assert "NumaExt" not in (machine.root / "etc/nova/nova.conf").read_text()
    assert not (machine.root / "flavors").exists()


def test_a_host_without_rdt_or_balancing_is_stacked_all_the_same(machine: Machine) -> None:
    (machine.root / "numa_balancing").unlink()
    run = good(machine.run("stack", COMPUTE, RDT="no"))
    assert machine.active() == AGENT
    assert any("No resctrl on this host" in call for call in run.of("echo_summary"))
    run = good(machine.run("unstack", COMPUTE))
    assert not any("umount" in call or "sysctl" in call for call in run.calls)


def test_what_was_mounted_and_switched_off_before_stays_so(machine: Machine) -> None:
    (machine.root / "mounted").write_text("/sys/fs/resctrl\n")
    (machine.root / "numa_balancing").write_text("0\n")
    good(machine.run("stack", COMPUTE))
    good(machine.run("unstack", COMPUTE))
    assert (machine.root / "mounted").read_text() == "/sys/fs/resctrl\n"
    assert (machine.root / "numa_balancing").read_text() == "0\n"


def test_what_is_mounted_or_switched_on_after_unstack_stays_so(machine: Machine) -> None:
    good(machine.run("stack", COMPUTE))
    good(machine.run("unstack", COMPUTE))
    (machine.root / "mounted").write_text("/sys/fs/resctrl\n")
    (machine.root / "numa_balancing").write_text("2\n")
    good(machine.run("unstack", COMPUTE))
    assert (machine.root / "mounted").read_text() == "/sys/fs/resctrl\n"
    assert (machine.root / "numa_balancing").read_text() == "2\n"


def test_an_agent_that_does_not_start_ends_stack_with_a_sentence(machine: Machine) -> None:
    run = machine.run("stack", COMPUTE, AGENT="bad")
    assert run.status == 1
    assert "journalctl -u numa-host-agent" in run.of("die")[0]


def test_what_doctors_and_reset_say_is_told_and_ends_nothing(machine: Machine) -> None:
    run = good(machine.run("stack", ALL_IN_ONE, DOCTOR_STATUS="1"))
    assert len(run.of("warn")) == 4
    run = good(machine.run("unstack", ALL_IN_ONE, RESET_STATUS="1"))
    assert run.of("warn") == [
        "Pins and RDT groups were not taken back: numa-host-agent-ctl reset says why"
    ]
    assert machine.active() == set()


@pytest.mark.parametrize(
    ("code", "mistake"),
    [
        ("devstack_has_no_such_function || true", "devstack_has_no_such_function"),
        ("sudo reboot || true", "sudo reboot"),
        ("run_process numa-ext-heal numa-ext-heal || true", "run_process without an absolute path"),
        ("set +o xtrace", "xtrace is off"),
        ("set +o errexit", "errexit is off"),
    ],
)
def test_the_harness_finds_what_devstack_does_not_have(
    tmp_path: Path, code: str, mistake: str
) -> None:
    run = _another_plugin(tmp_path, code).run("stack", CONTROLLER + ",numa-ext-heal")
    assert mistake in run.mistakes[0]


@pytest.mark.parametrize("code", ['echo "$CINDER_CONF"', "false", "iniget /no/such/file a b"])
def test_the_harness_ends_at_unset_variables_and_errors(tmp_path: Path, code: str) -> None:
    run = _another_plugin(tmp_path, code).run("stack", CONTROLLER)
    assert run.status != 0
    assert run.of("phase") == ["stack pre-install"]


def _another_plugin(folder: Path, code: str) -> Machine:
    plugin = folder / "plugin/devstack"
    plugin.mkdir(parents=True)
    (plugin / "plugin.sh").write_text(f"{code}\n")
    for name in ("settings", "override-defaults"):
        (plugin / name).write_text("define_plugin another\n" if name == "settings" else "")
    machine = Machine(folder / "machine", plugin.parent)
    machine.prepare()
    return machine
