# SPDX-License-Identifier: Apache-2.0
"""From a cloud without this project to one with it and back, by the operator's guide alone.

It brings up a plain lab of its own beside the other, in a folder and on ports of its own. Emulated hosts have no
systemd: there it is done as the guide says for such hosts. In place of what pip would install, such a host has the
checkout's packages in a folder of its path.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from numa_lab.cloud_api import CloudApi
from numa_lab.controlplane import ControlPlane
from numa_lab.terminal import Progress

from tests.integration.cloud import CHECKOUT, Facts, LabCloud, LabHost, Server, eventually
from tests.support.pages import block, settings

LAB = str(CHECKOUT / "devstack" / "lab" / "lab")
PORT_BASE = 24000
OPERATOR = CHECKOUT / "doc" / "source" / "operator"
INSTALLATION = (OPERATOR / "installation.rst").read_text()
CREDENTIALS = (OPERATOR / "credentials.rst").read_text()
ROLLOUT = (OPERATOR / "rollout.rst").read_text()
CONF = "/etc/numa-host-agent/numa-host-agent.conf"
USER, PASSWORD, PROJECT, ROLE = "numa-ext-host-h1", "secret", "numa-ext-hosts", "numa_ext_host"
PATIENCE_S = 900.0  # a Python starts in a minute there
INTERVAL_S = 20
# What only an emulated host needs: bandwidth cannot be measured there, and a second is what others do in 50 ms.
OF_THE_LAB = """
[agent]
takeover_interval_s = 0
[host]
nova_conf = {nova_conf}
[placement]
bandwidth_mbps_per_node = 20000
interval_s = {interval_s}
timeout = 10
"""
FLAVORS = {
    one["name"]: one["extra_specs"]
    for one in json.loads((CHECKOUT / "devstack/lab/flavors.json").read_text())
}


@pytest.fixture
def plain() -> Iterator[LabCloud]:
    """A cloud with one emulated host, and nothing of ours."""
    folder = Path("/tmp") / f"numa-lab-plain-{os.getpid()}"
    environment = os.environ | {
        "NUMA_EXT_LAB": str(folder),
        "NUMA_EXT_VENV": sys.prefix,
        "NUMA_EXT_PORT_BASE": str(PORT_BASE),
    }
    try:
        subprocess.run([LAB, "up", "--plain", "--hosts", "1"], env=environment, check=True)
        yield LabCloud.connect(environment)
    finally:
        subprocess.run([LAB, "clean"], env=environment, check=True, timeout=600)


class Operator:
    """Who follows the guide, on the controller and on h1."""

    def __init__(self, cloud: LabCloud) -> None:
        self.cloud = cloud
        self.h1 = cloud.hosts["h1"]
        etc = cloud.settings.etc
        self.nova_conf = etc / "nova" / "nova.conf"
        self.placement_conf = etc / "placement" / "placement.conf"
        self.policy = etc / "placement" / "policy.yaml"

    def restart(self, *names: str) -> None:
        """Restart services of the controller whose files have changed."""
        since = time.time()
        for service in ControlPlane(self.cloud.settings, Progress()).services():
            if service.name in names:
                service.ensure(Progress())
        if "nova-scheduler" in names:
            api = CloudApi(self.cloud.settings)
            eventually(
                "nova-scheduler has reported",
                lambda: api.has_reported("nova-scheduler", "controller", since),
            )

    def on_h1(self, commands: str) -> str:
        """Run commands of the guide on the host, in the checkout."""
        return self.h1.run(f"set -e\ncd {CHECKOUT}\n{commands}", PATIENCE_S)

    # -- install

    def make_the_role(self) -> None:
        words = block(CREDENTIALS, "openstack role create")
        words += block(CREDENTIALS, "openstack user create").replace("HOST", "h1")
        for line in words.replace("--password-prompt", f"--password {PASSWORD}").splitlines():
            if line:
                self.cloud.command(*shlex.split(line))

    def configure_placement(self) -> None:
        self.policy.write_text((CHECKOUT / "etc/placement/policy.yaml").read_text())
        with self.placement_conf.open("a") as conf:
            conf.write(f"[oslo_policy]\npolicy_file = {self.policy}\n")
            conf.write(settings(INSTALLATION, "[placement]"))
        self.restart("placement")

    def install_the_agent(self) -> str:
        """Return the process id of its supervisor."""
        packages = "placement_traits nova_numa_ext host_agent"
        self.on_h1(f"cp -r {packages} /run/numa-lab/packages")
        # The lab's own way to the configuration of an agent that it starts.
        self.on_h1("test ! -L /etc/numa-host-agent || rm /etc/numa-host-agent")
        installed = block(INSTALLATION, "python3 -m venv /opt/numa-host-agent")
        installed = re.sub(r"(?m)^(python3 -m venv|\S*/pip|systemctl) .*$", ":", installed)
        self.on_h1(installed.replace("/opt/numa-host-agent/bin", f"{sys.prefix}/bin"))
        shown = settings(CREDENTIALS, "[placement]")
        told = {
            "auth_url": f"{self.cloud.settings.url(self.cloud.settings.ports.keystone)}/v3",
            "username": USER,
            "password": PASSWORD,
        }
        for key, value in told.items():
            shown, changed = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", shown)
            assert changed == 1, f"the guide does not say where {key} belongs"
        conf = OF_THE_LAB.format(nova_conf=self.h1.emulated.nova_conf, interval_s=INTERVAL_S)
        conf += shown
        self.on_h1(f"cat >> {CONF} <<'END'\n{conf}END\n")
        self.on_h1(re.sub(r"(?m)^(systemctl) .*$", ":", block(INSTALLATION, "cp etc/systemd/sys-")))
        looked = block(INSTALLATION, "numa-host-agent --config-file").replace(
            "doctor", "doctor ||:"
        )
        said = self.on_h1(f"( {looked} ) 2>&1")
        assert "Traceback" not in said, said
        kept, chown, started = block(INSTALLATION, "install -d -m 0750").strip().splitlines()
        patience = "--max-silence 600 --watchdog 600 --start 900"
        log = "/var/log/numa-host-agent.log"
        return self.on_h1(
            f"{kept}\n{chown}\n(nohup {started} {patience} >{log} 2>&1 </dev/null & echo $!)"
        ).strip()

    def configure_nova(self) -> None:
        with self.nova_conf.open("a") as conf:
            conf.write(settings(INSTALLATION, "[filter_scheduler]"))
        self.restart("nova-api", "nova-scheduler")

    # -- maintain

    def drain_and_undrain(self, flavor: str, runs: Server) -> Server:
        """Keep new servers of a flavor away from h1 for a while; return the one that comes after it."""
        lines = block(ROLLOUT, "openstack numa host drain").replace("compute1", "h1").splitlines()
        drain, undrain = (shlex.split(line, comments=True) for line in lines if line)
        self.cloud.command(*drain)
        refused = self.cloud.settled(self.cloud.create(flavor, "--host", "h1"))
        assert (refused.status, "No valid host" in refused.fault) == ("ERROR", True)
        self.cloud.delete([refused.id])
        time.sleep(3 * INTERVAL_S)  # the agent has compared its tree with Placement's meanwhile
        assert {hosts(self.cloud)["h1"][key] for key in ("Agent", "Tiers")} == {"drained", "-"}
        self.h1.enforced(runs.id)
        self.cloud.command(*undrain)
        eventually(
            "the tiers are offered",
            lambda: hosts(self.cloud)["h1"]["Tiers"] == "LC BE",
            PATIENCE_S,
            10,
        )
        return self.cloud.boot(flavor, "--host", "h1")

    # -- uninstall

    def unconfigure_nova(self, before: str) -> None:
        self.nova_conf.write_text(before)
        self.restart("nova-api", "nova-scheduler")

    def undo_on_h1(self, supervisor: str) -> None:
        lines = block(INSTALLATION, "numa-host-agent-ctl reset --all --dry-run").splitlines()
        dry_run, reset = (line for line in lines if line and not line.startswith("systemctl"))
        assert self.reset(dry_run) == {"would"}
        # In place of the lines with systemctl: reset starts a helper of its own then.
        self.on_h1(f"kill {supervisor}; while [ -d /proc/{supervisor} ]; do sleep 1; done")
        assert self.reset(reset) == {"done"}
        assert self.on_h1("ls -A /var/lib/numa-host-agent").split() == []

    def reset(self, command: str) -> set[str]:
        """Run a reset; return which results it tells."""
        return {str(row["result"]) for row in json.loads(self.on_h1(f"{command} -f json"))}

    def remove_from_placement(self) -> None:
        remove = block(INSTALLATION, "openstack numa host remove --all --dry-run").splitlines()
        for line in filter(None, remove):
            self.cloud.command(*shlex.split(line, comments=True))
        assert block(INSTALLATION, "systemctl restart nova-compute")
        self.cloud.restart_compute(self.h1)

    def remove_what_is_left(self, balancing: str) -> None:
        """What the guide says an operator made himself."""
        self.on_h1(
            "rm -rf /etc/numa-host-agent /var/lib/numa-host-agent /run/numa-host-agent-helper*\n"
            "rm -f /usr/bin/numa-host-agent* /etc/systemd/system/numa-host-agent*\n"
            "rm -f /etc/systemd/system/sys-fs-resctrl.mount /etc/*/*numa-host-agent.conf\n"
            f"sysctl -q kernel.numa_balancing={balancing}"
        )
        for words in (("user", USER), ("project", PROJECT), ("role", ROLE)):
            self.cloud.openstack(words[0], "delete", words[1])


def state(cloud: LabCloud, h1: LabHost) -> Facts:
    """All that the guide's promise is about."""
    back = h1.read_back()
    domains = {one["uuid"]: one for one in back["domains"]}
    etc = cloud.settings.etc
    placement = cloud.published()
    del placement["local"]["inventories"]  # a virtual machine's memory may grow and shrink
    files = (etc / "nova" / "nova.conf", etc / "placement" / "placement.conf")
    return {
        "placement": placement,
        "files": {str(file): file.read_text() for file in files},
        "novas file on h1": h1.run(f"cat {h1.emulated.nova_conf}"),
        "resctrl": {
            name: {key: group[key] for key in ("schemata", "monitors")}
            for name, group in back["resctrl"].items()
        },
        "libvirt": {uuid: h1.run(f"virsh dumpxml {uuid}") for uuid in domains},
        "pins": {
            uuid: {key: one[key] for key in ("vcpus", "groups", "monitors", "mem_policy")}
            for uuid, one in domains.items()
        },
        "balancing": h1.run("cat /proc/sys/kernel/numa_balancing").strip(),
        "ours": h1.run("ls -d /etc/*/*numa-host* /usr/bin/numa-host* /run/numa-host* || true"),
    }


def of_tier(cloud: LabCloud, name: str) -> Server:
    """Boot a server of a flavor that is checked before, on h1."""
    flavor = cloud.flavor(FLAVORS[name], vcpus=2 if name.startswith("lc") else 1)
    cloud.openstack("numa", "flavor", "check", flavor)
    return cloud.boot(flavor, "--host", "h1")


def hosts(cloud: LabCloud) -> Mapping[str, Facts]:
    """Hosts with an agent, as an operator lists them."""
    listed = json.loads(cloud.openstack("numa", "host", "list", "-f", "json").stdout)
    return {row["Host"]: row for row in listed}


@pytest.mark.long
@pytest.mark.timeout(5400)
def test_installed_used_and_uninstalled_by_the_guide_a_plain_cloud_is_as_before(
    plain: LabCloud,
) -> None:
    operator = Operator(plain)
    h1 = operator.h1
    stays = [
        plain.boot(plain.flavor({}), "--host", "h1"),
        plain.boot(plain.flavor({"hw:cpu_policy": "dedicated"}), "--host", "h1"),
    ]
    eventually("both are resident", lambda: {one.id for one in stays} <= h1.domains().keys())
    before = state(plain, h1)
    assert "NUMA_EXT" not in json.dumps(before["placement"])
    assert (before["ours"], set(before["resctrl"])) == ("", {""})

    operator.make_the_role()
    operator.configure_placement()
    supervisor = operator.install_the_agent()
    eventually("h1 is published", lambda: "h1" in hosts(plain), PATIENCE_S, 10)
    operator.configure_nova()

    lc, be = of_tier(plain, "lc.small"), of_tier(plain, "be.small")
    used = h1.all_enforced([lc.id, be.id], PATIENCE_S)
    assert used[0].group != used[1].group
    assert "CUSTOM_LLC_WAY" in {name for held in plain.held(lc).values() for name in held}

    later = operator.drain_and_undrain(lc.flavor, lc)
    h1.all_enforced([later.id], PATIENCE_S)

    plain.delete([lc.id, be.id, later.id])
    plain.openstack("flavor", "delete", lc.flavor, be.flavor)
    operator.unconfigure_nova(before["files"][str(operator.nova_conf)])
    operator.undo_on_h1(supervisor)
    operator.remove_from_placement()
    assert hosts(plain) == {}
    operator.remove_what_is_left(before["balancing"])
    operator.placement_conf.write_text(before["files"][str(operator.placement_conf)])
    operator.policy.unlink()
    operator.restart("placement")

    assert state(plain, h1) == before
    plain.end()
