# SPDX-License-Identifier: Apache-2.0
"""The units as they are shipped, started by a real systemd: users, sandboxes and sockets are executed, not only read.

systemd is process 1 of namespaces of its own, with a real libvirtd, real QEMU processes and resctrl by FUSE where the
kernel has it. Units are those of ``etc/systemd``, unchanged; a drop-in only has their output written to files, because
no journal runs. ``/etc``, ``/usr/bin`` and ``/var`` are this machine's, written to in memory.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from numa_lab import link_build

from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf.remote_gpus import RemoteGpuOptions
from host_agent.model import cpus
from host_agent.remote_gpu.answer import EndedLease, LeaseAnswer, ServedLease
from host_agent.remote_gpu.turns import answer_in
from placement_traits import names
from placement_traits.names import TierTrait
from placement_traits.pool_reporter import gpu_uuids
from tests.functional.host_agent.conftest import _l3_ids, wait_for
from tests.support.built_link import built_link
from tests.support.built_pocl import built_pocl
from tests.support.pocl_server import write_pocl

pytestmark = [pytest.mark.root, pytest.mark.long]

ROOT = Path(__file__).parents[3]
SYSTEMD = Path("/usr/lib/systemd/systemd")
NEEDED = (
    SYSTEMD,
    Path("/usr/sbin/libvirtd"),
    Path("/usr/bin/qemu-system-x86_64"),
    Path("/dev/fuse"),
)
QEMU_USER = "daemon"  # neither root nor the agent's, so that the kernel asks for capabilities
AGENT, HELPER = "numa-host-agent.service", "numa-host-agent-helper.service"
LEASES = "numa-host-agent-leases.service"
GUEST = "numa-ext-rgpu-guest.service"
LANES = "numa-host-agent-lanes.service"
WITHDRAW = "numa-host-agent-withdraw.service"
NET_ADMIN = 1 << 12
RIGHTS = 1 << 19 | 1 << 23 | 1 << 38  # CAP_SYS_PTRACE, CAP_SYS_NICE, CAP_PERFMON

SLO = {**LC_SPECS, "numa_ext:slo_p99_us": "1000"}

# As an agent that was root has left it; its standard input is a server.
LEFT_BY_ROOT = """
mkdir -m 750 /var/lib/numa-host-agent
printf '{"version": 1, "boot": "%s", "servers": ["%s"]}' \
  $(cat /proc/sys/kernel/random/boot_id) $(cat) > /var/lib/numa-host-agent/throttled.json
chmod 640 /var/lib/numa-host-agent/throttled.json
"""

_OUTSIDE = """
set -e
umount --recursive --lazy /sys/fs/cgroup
mount -t tmpfs -o mode=755 story /sys/fs
mkdir /sys/fs/cgroup /sys/fs/resctrl
mount -t cgroup2 story /sys/fs/cgroup
mkdir /sys/fs/cgroup/$NAME
echo $$ > /sys/fs/cgroup/$NAME/cgroup.procs
exec unshare --pid --fork --kill-child --cgroup --ipc --uts --net --mount-proc /bin/sh -c "$INSIDE"
"""

_INSIDE = """
set -e
umount /sys/fs/cgroup
mount -t cgroup2 story /sys/fs/cgroup
mkdir -p /mnt
mount -t tmpfs -o mode=755 story /mnt
mkdir /mnt/venv /mnt/source
mount --bind "$VENV" /mnt/venv
mount --bind "$SOURCE" /mnt/source
mount --bind "$FOLDER" /media
mount -t tmpfs -o mode=755 story /run
mkdir /run/story
mount --move /mnt /run/story
for place in etc usr/bin var; do
  mkdir -p /run/story/upper/$place /run/story/work/$place
  options=lowerdir=/$place,upperdir=/run/story/upper/$place,workdir=/run/story/work/$place
  mount -t overlay -o $options story /$place
done
mount -t tmpfs -o mode=755 story /var/lib/libvirt
mount -t tmpfs -o mode=1777 story /tmp
echo 0123456789abcdef0123456789abcdef > /etc/machine-id
cp -r /media/units /run/units
cp /media/bin/* /usr/bin/
cp /media/libvirt/* /etc/libvirt/
mkdir -p /etc/numa-host-agent
cp /media/numa-host-agent.conf /etc/numa-host-agent/
systemd-sysusers /run/story/source/etc/sysusers.d/numa-host-agent.conf
systemd-tmpfiles --create /run/story/source/etc/tmpfiles.d/numa-host-agent.conf
exec env container=story SYSTEMD_UNIT_PATH=/run/units SYSTEMD_LOG_TARGET=console \
  "$SYSTEMD" --system --unit=story.target --show-status=no
"""

_CREATE = "import libvirt, sys; libvirt.open('qemu:///system').createXML(sys.stdin.read(), 0)"

_OWN_UNITS = {
    **dict.fromkeys(
        (
            *("sysinit.target", "basic.target", "sockets.target", "timers.target"),
            *("multi-user.target", "shutdown.target", "network-online.target", "story.target"),
        ),
        "[Unit]\nDefaultDependencies=no\n",
    ),
    "service.d/output.conf": "[Service]\nStandardOutput=append:/media/%N.log\nStandardError=inherit\n",
    "libvirtd.service": "[Service]\nExecStart=/usr/sbin/libvirtd --config=/etc/libvirt/libvirtd.conf\n",
    "resctrl.service": "[Service]\nEnvironment=PYTHONPATH=/run/story/source\n"
    "ExecStart=/run/story/venv/bin/python -m emulation.kernel.fuse /sys/fs/resctrl --domains={domains}\n",
}

_CONFIG = """
[agent]
interval_s = 1
metrics_port = 0
takeover_interval_s = 0
[placement]
enabled = false
"""


# Neutron's paths answer with a document of the test's.
_PLACEMENT = """
import json, pathlib
from wsgiref.simple_server import make_server
from emulation.placement_service import PlacementInProcess
from tests.support.filled_placement import FilledPlacement
with PlacementInProcess() as placement:
    root = FilledPlacement(placement.adapter).compute("h1")

    def answered(environ, start_response):
        path = environ["PATH_INFO"]
        if not path.startswith("/v2.0/"):
            return placement.application(environ, start_response)
        noun = path.rpartition("/")[2]
        named = json.loads(pathlib.Path("/media/neutron.json").read_text())[noun]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({noun: named}).encode()]

    server = make_server("127.0.0.1", 8778, answered)
    open("/run/story/root", "w").write(root)
    server.serve_forever()
"""

_TRAITS = """
import json, urllib.request
root = open("/run/story/root").read()
headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.6"}
url = f"http://127.0.0.1:8778/resource_providers/{root}/traits"
print(json.dumps(json.load(urllib.request.urlopen(urllib.request.Request(url, headers=headers)))["traits"]))
"""

# Shorter times than the units', and a Placement beside them; nothing else is changed.
IMPATIENT = {
    "placement.service": "[Service]\nEnvironment=PYTHONPATH=/run/story/source\n"
    "ExecStart=/run/story/venv/bin/python /media/serve_placement.py\n",
    f"{AGENT}.d/times.conf": "[Service]\nWatchdogSec=6\n",
    "numa-host-agent-withdraw.timer.d/times.conf": "[Timer]\nOnActiveSec=\nOnActiveSec=3\n",
}
PUBLISHING = """
[agent]
interval_s = 1
metrics_port = 0
takeover_interval_s = 0
[host]
name = h1
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:8778
token = admin
interval_s = 1
backoff_max_s = 1
"""


# /sys is this machine's, whose devices are others.
_LANES = (
    PUBLISHING.replace("name = h1", "name = h1\nsys = /run/story/sys")
    + """
[lanes]
uplinks = up0
speeds_mbps = up0:100
interval_s = 0.5
ports_every_s = 5
"""
)


_LENDING = """
[host]
name = h1
[placement]
auth_type = admin_token
endpoint = http://127.0.0.1:8778
token = admin
[remote_gpus]
transport = fake
trying_out = true
gpus = a=500
nics = eth1=100
fabrics = main
"""

# As an operator would: the control socket is the supervisor's.
_CLIENT = """
import json, pathlib, socket
asked = socket.socket(socket.AF_UNIX)
(control,) = pathlib.Path("/var/lib/numa-host-agent/leases/run").glob("*.sock")
asked.connect(str(control))
asked.sendall(b"{}\\n")
found = json.loads(asked.makefile().readline())
host, _, port = found["address"].rpartition(":")
client = socket.create_connection((host, int(port)), 10)
"""

_ECHOED = f"""{_CLIENT}
client.sendall(f"{{found['epoch']}}\\nhere\\n".encode())
lines = client.makefile()
print(lines.readline().strip(), lines.readline().strip())
"""

# The same to a pocld: how many devices it offers, what the layer keeps it to and has counted.
_OFFERED = f"""{_CLIENT}
import sys
sys.path.insert(0, "/run/story/source")
from host_agent.transports import pocl_probe
client.sendall(f"{{found['epoch']}}\\n".encode())
assert client.recv(3) == b"ok\\n"
print(pocl_probe.offered(client), found["busy_s"], found["held_bytes"])
"""


class Booted:
    """A machine whose process 1 is systemd.

    :param units: units and drop-ins beside those that are shipped
    :param config: the agent's
    """

    def __init__(
        self, folder: Path, units: Mapping[str, str] = MappingProxyType({}), config: str = _CONFIG
    ) -> None:
        self.folder = folder
        self._units, self._config = {**_OWN_UNITS, **units}, config
        self._name = f"numa-ext-story-{os.getpid()}"
        self._write()
        environment = {
            **os.environ,
            "NAME": self._name,
            "INSIDE": _INSIDE,
            "FOLDER": str(folder),
            "SYSTEMD": str(SYSTEMD),
            "VENV": sys.prefix,
            "SOURCE": str(ROOT),
        }
        with (folder / "systemd.log").open("wb") as log:
            self._outer = subprocess.Popen(
                ["unshare", "--mount", "/bin/sh", "-c", _OUTSIDE],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: self._outer.poll() is not None or self._answers(), "systemd", 60)
        assert self._outer.poll() is None, self.logs()

    def _write(self) -> None:
        shutil.copytree(ROOT / "etc/systemd", self.folder / "units")
        domains = ",".join(sorted(_l3_ids()))
        for name, text in self._units.items():
            file = self.folder / "units" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text.replace("{domains}", domains))
        for folder in ("bin", "libvirt"):
            (self.folder / folder).mkdir()
        for program, module in (
            ("numa-host-agent", "agent"),
            ("numa-host-agent-helper", "helper"),
            ("numa-host-agent-ctl", "ctl"),
            ("numa-host-agent-leases", "leases"),
            ("numa-host-agent-lanes", "lanes"),
        ):
            script = self.folder / "bin" / program
            script.write_text(
                "#!/bin/sh\nPYTHONPATH=/run/story/source "
                f'exec /run/story/venv/bin/python -m host_agent.cmd.{module} "$@"\n'
            )
            script.chmod(0o755)
        (self.folder / "numa-host-agent.conf").write_text(self._config)
        (self.folder / "serve_placement.py").write_text(_PLACEMENT)
        (self.folder / "libvirt/qemu.conf").write_text(
            f'user = "{QEMU_USER}"\ngroup = "{QEMU_USER}"\nsecurity_driver = "none"\nremember_owner = 0\n'
            'namespaces = []\nstdio_handler = "file"\n'
        )
        (self.folder / "libvirt/libvirtd.conf").write_text(
            'auth_unix_rw = "none"\nauth_unix_ro = "none"\nunix_sock_rw_perms = "0700"\n'
        )

    def _first(self) -> str:
        """Pid of systemd, as this machine counts."""
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        return children.read_text().strip()

    def run(self, *command: str, given: str = "", check: bool = True) -> str:
        """Run a command inside; return its output."""
        first = self._first()
        enter = [
            "nsenter",
            f"--target={first}",
            *("--mount", "--pid", "--cgroup", "--net", "--ipc"),
        ]
        done = subprocess.run(
            [*enter, "--", *command], input=given, capture_output=True, text=True, check=False
        )
        said = f"{done.stdout}\n{done.stderr}"
        assert not check or done.returncode == 0, f"{command}: {said}\n{self.logs()}"
        return done.stdout.strip()

    def _answers(self) -> bool:
        return bool(self._first()) and "story.target" in self.run(
            "systemctl", "list-units", "--no-legend", "--type=target", check=False
        )

    def start_host(self) -> None:
        """Start libvirtd, and mount resctrl."""
        self.run("systemctl", "start", "libvirtd.service", "resctrl.service")
        wait_for(lambda: self.run("ls", "/sys/fs/resctrl"), "resctrl", 30)
        wait_for(lambda: self.run("ls", "/run/libvirt/libvirt-sock", check=False), "libvirtd", 30)

    def boot(self, server: Server) -> int:
        """Start a server; return the pid of its QEMU, as systemd counts."""
        self.run("/run/story/venv/bin/python", "-c", _CREATE, given=server.xml)
        return int(self.run("cat", f"/run/libvirt/qemu/instance-{server.uuid[:8]}.pid"))

    def main_pid(self, unit: str) -> int:
        """Pid of the main process of a service, 0 when it has none."""
        return int(self.run("systemctl", "show", "--property=MainPID", "--value", unit))

    def state(self, unit: str) -> str:
        """``active``, ``inactive``, ``failed``."""
        return self.run("systemctl", "is-active", unit, check=False)

    def tiers(self) -> frozenset[str]:
        """Tiers that Placement offers of this host."""
        traits = json.loads(self.run("/run/story/venv/bin/python", "-c", _TRAITS))
        return frozenset(TierTrait) & frozenset(traits)

    def has_lanes(self) -> bool:
        """Whether Placement says so."""
        traits = json.loads(self.run("/run/story/venv/bin/python", "-c", _TRAITS))
        return names.LANES in traits

    def status(self, unit: str) -> dict[str, str]:
        """``/proc/PID/status`` of the main process of a service."""
        pid = self.main_pid(unit)
        lines = self.run("cat", f"/proc/{pid}/status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def journal(self, action: str) -> list[dict[str, Any]]:
        """Entries of one kind in the agent's journal."""
        lines = self.run("cat", "/var/lib/numa-host-agent/journal.jsonl").splitlines()
        return [entry for line in lines if (entry := json.loads(line))["action"] == action]

    def group_of(self, tid: int) -> str:
        """The RDT group of a thread, "" for root's."""
        found = self.run(
            "grep", "-lx", str(tid), "-r", "/sys/fs/resctrl", "--include=tasks", check=False
        )
        groups = {line.split("/")[4] for line in found.splitlines()}
        return next((group for group in groups if group.startswith("numa_ext-")), "")

    def logs(self) -> str:
        """All output."""
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.folder.glob("*.log"))

    def stop(self) -> None:
        """End process 1, and all others with it."""
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(self._first()), 9)
        self._outer.wait(20)
        mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
        for _device, mount, kind in mounts:
            if kind == "cgroup2" and (left := Path(mount) / self._name).is_dir():
                for folder in sorted((left, *left.rglob("*/")), reverse=True):
                    with suppress(OSError):  # a process of it has not gone yet
                        folder.rmdir()


@contextmanager
def machine(
    folder: Path, units: Mapping[str, str] = MappingProxyType({}), config: str = _CONFIG
) -> Iterator[Booted]:
    if os.geteuid() != 0:
        pytest.skip("needs root: namespaces")
    for needed in NEEDED:
        if not needed.exists():
            pytest.skip(
                f"needs {needed}: apt-get install systemd libvirt-daemon-system qemu-system-x86 fuse3"
            )
    pytest.importorskip("libvirt")
    found = Booted(folder, units, config)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def booted(tmp_path: Path) -> Iterator[Booted]:
    with machine(tmp_path) as found:
        yield found


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Booted]:
    with machine(tmp_path, IMPATIENT, PUBLISHING) as found:
        yield found


def test_both_units_do_a_round_without_root_and_with_three_capabilities(booted: Booted) -> None:
    booted.start_host()
    lc = Server("lc", SLO, cpus=(1,), devices="<controller type='virtio-serial' index='0'/>")
    be = Server("be", BE_SPECS)
    pid, other = booted.boot(lc), booted.boot(be)
    booted.run("/bin/sh", "-c", LEFT_BY_ROOT, given=be.uuid)

    begun = time.monotonic()
    booted.run("systemctl", "start", AGENT)  # returns when the first round is finished
    assert time.monotonic() - begun < 120

    agent, helper = booted.status(AGENT), booted.status(HELPER)
    user = booted.run("id", "-u", "numa-host-agent")
    assert set(agent["Uid"].split()) == {user}
    assert {int(agent[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert set(helper["Uid"].split()) == {"0"}
    assert {int(helper[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {RIGHTS}
    for status in (agent, helper):
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    wait_for(lambda: booted.group_of(pid).startswith("numa_ext-"), "the group of lc", 30)
    wait_for(lambda: booted.group_of(other).startswith("numa_ext-"), "the group of be", 30)
    assert booted.group_of(pid) != booted.group_of(other)
    pinned = booted.run("grep", "Cpus_allowed_list", f"/proc/{pid}/status").split()[1]
    assert cpus.parse(pinned) == {1}
    owners = booted.run("stat", "--format=%U", "/var/lib/numa-host-agent/throttled.json")
    assert owners == "numa-host-agent", "an upgrade gives the agent what was root's"
    wait_for(lambda: booted.journal("plug"), "the latency port", 30)
    assert [entry.get("problem", "") for entry in booted.journal("plug")] == [""]
    assert "throttled.json is taken over" in booted.logs()

    assert set(booted.run("stat", "--format=%U", f"/proc/{pid}").split()) == {QEMU_USER}
    rows = json.loads(booted.run("numa-host-agent-ctl", "status", "-f", "json"))
    (row,) = [row for row in rows if row["uuid"] == lc.uuid]
    assert row["memory"], f"its page tables are read: {row['problem']}"

    group = booted.group_of(pid)
    booted.run("systemctl", "stop", AGENT)
    assert booted.group_of(pid) == group, "a stop changes nothing for servers"
    waits = booted.run("systemctl", "is-active", "numa-host-agent-withdraw.timer", check=False)
    assert waits == "active"
    booted.run("numa-host-agent-ctl", "reset")  # root's, as the agent's user, through the helper
    assert booted.group_of(pid) == ""


def test_an_agent_that_hangs_is_replaced_and_one_that_is_gone_is_no_longer_offered(
    impatient: Booted,
) -> None:
    """systemd's watchdog, and the timer with what it starts, in their sandboxes; only times are shorter."""
    impatient.run("ip", "link", "set", "lo", "up")
    impatient.start_host()
    impatient.run("systemctl", "start", "placement.service")
    wait_for(lambda: impatient.run("cat", "/run/story/root", check=False).strip(), "Placement", 60)
    impatient.run("systemctl", "start", AGENT)
    wait_for(impatient.tiers, "tiers", 60)

    hung = impatient.main_pid(AGENT)
    impatient.run("kill", "-STOP", str(hung))
    wait_for(lambda: impatient.main_pid(AGENT) not in (0, hung), "another agent", 60)
    wait_for(lambda: impatient.state(AGENT) == "active", "its first round", 60)
    wait_for(impatient.tiers, "tiers of the new agent", 60)

    impatient.run("systemctl", "stop", AGENT)
    wait_for(lambda: not impatient.tiers(), "the withdrawal", 60)
    wait_for(lambda: impatient.state(WITHDRAW) == "inactive", "its end", 30)
    assert impatient.run("systemctl", "show", "--property=Result", "--value", WITHDRAW) == "success"


@pytest.fixture
def lending(tmp_path: Path) -> Iterator[Booted]:
    with machine(tmp_path, config=_LENDING) as found:
        yield found


def asked(booted: Booted, answer: LeaseAnswer) -> None:
    """What the job service has last answered; it does not answer any more."""
    answer_in(booted.folder / "answer.json").save(answer)
    folder = "/var/lib/numa-host-agent"
    own = ("install", "--owner=numa-host-agent", "--group=numa-host-agent")
    booted.run(*own, "--directory", folder, f"{folder}/leases")
    booted.run(*own, "/media/answer.json", f"{folder}/leases/answer.json")


def test_leases_are_kept_apart_by_a_unit_without_any_right(lending: Booted) -> None:
    """The supervisor is killed, started again and stopped: its lease runs on, and ends with all that it was."""
    lending.run("ip", "link", "set", "lo", "up")
    options = RemoteGpuOptions(("a=500",), "fake", nics=("e=1",), fabrics=("f",), trying_out=True)
    (gpu,) = gpu_uuids(options.lent("h1"))
    lease = ServedLease("lease-1", 1, gpu, 500, "silver", "cuda", 0)
    asked(lending, LeaseAnswer(serves=(lease,)))
    lending.run("systemctl", "start", LEASES)
    user = lending.run("id", "-u", "numa-host-agent")
    status = lending.status(LEASES)
    assert set(status["Uid"].split()) == {user}
    assert {int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    group = lending.run("systemctl", "show", "--property=ControlGroup", "--value", LEASES)
    listed = f"cat /sys/fs/cgroup{group}/lease-*/cgroup.procs"

    def processes() -> list[str]:
        return lending.run("/bin/sh", "-c", listed, check=False).split()

    wait_for(lambda: len(processes()) == 4, "the processes of the lease", 30)
    before = processes()
    echoed = ("/run/story/venv/bin/python", "-c", _ECHOED)
    assert lending.run(*echoed) == "ok here"
    killed = lending.main_pid(LEASES)
    lending.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", LEASES)
    wait_for(lambda: lending.main_pid(LEASES) not in (0, killed), "another supervisor", 60)
    wait_for(lambda: lending.state(LEASES) == "active", "its first turn", 60)
    for action in ("restart", "stop", "start"):
        lending.run("systemctl", action, LEASES)
        assert (processes(), lending.run(*echoed)) == (before, "ok here"), action
    lending.run("systemctl", "stop", LEASES)
    asked(lending, LeaseAnswer(ends=(EndedLease("lease-1", 2),)))
    lending.run("systemctl", "start", LEASES)
    wait_for(lambda: not processes(), "the end of the lease", 30)
    left = f"ls -d /sys/fs/cgroup{group}/lease-* /var/lib/numa-host-agent/leases/run/*"
    assert lending.run("/bin/sh", "-c", left, check=False) == ""


@pytest.fixture
def computing(tmp_path: Path) -> Iterator[Booted]:
    """As ``lending``, with transport ``pocl``, whose parts are in ``/usr/bin``, and the processor for a GPU."""
    pocl = built_pocl()
    with machine(
        tmp_path, config=_LENDING.replace("transport = fake", "transport = pocl")
    ) as found:
        places = [f"/usr/bin/{file.name}" for file in (pocl.server, pocl.layer)]
        for file, place in zip((pocl.server, pocl.layer), places, strict=True):
            shutil.copy(file, tmp_path)
            found.run("install", f"/media/{file.name}", place)
        write_pocl(tmp_path, *map(Path, places))
        transports = "/etc/numa-host-agent/transports/pocl.toml"
        found.run("install", "-D", "--mode=644", "/media/pocl.toml", transports)
        yield found


def test_pocld_serves_a_lease_below_the_unit_and_is_kept_to_its_slice(computing: Booted) -> None:
    """As the unit's user, in its sandbox, with a device in the namespaces of the lease; it outlives its supervisor."""
    computing.run("ip", "link", "set", "lo", "up")
    options = RemoteGpuOptions(("a=500",), "pocl", nics=("e=1",), fabrics=("f",))
    (gpu,) = gpu_uuids(options.lent("h1"))
    lease = ServedLease("lease-1", 1, gpu, 500, "silver", "opencl", 0)
    asked(computing, LeaseAnswer(serves=(lease,)))
    computing.run("systemctl", "start", LEASES)
    group = computing.run("systemctl", "show", "--property=ControlGroup", "--value", LEASES)
    listed = f"cat /sys/fs/cgroup{group}/lease-*/cgroup.procs"

    def server() -> str:
        """Number of pocld in the group of the lease."""
        for pid in computing.run("/bin/sh", "-c", listed, check=False).split():
            words = computing.run("cat", f"/proc/{pid}/cmdline", check=False)
            if words.startswith("/usr/bin/pocld"):
                return pid
        return ""

    offered = ("/run/story/venv/bin/python", "-c", _OFFERED)
    wait_for(lambda: computing.run(*offered, check=False).startswith("1 "), "a device", 60)
    assert computing.run(*offered) == "1 0.0 0"
    pid = server()
    lines = computing.run("cat", f"/proc/{pid}/status").splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    user = computing.run("id", "-u", "numa-host-agent")
    assert (set(status["Uid"]), status["NoNewPrivs"]) == ({user}, ["1"])
    assert {int(status[kind][0], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {0}
    environment = computing.run("cat", f"/proc/{pid}/environ").split("\0")
    assert f"NUMA_EXT_SLICE_BYTES={500 << 20}" in environment

    killed = computing.main_pid(LEASES)
    computing.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", LEASES)
    wait_for(lambda: computing.main_pid(LEASES) not in (0, killed), "another supervisor", 60)
    wait_for(lambda: computing.state(LEASES) == "active", "its first turn", 60)
    assert (server(), computing.run(*offered)) == (pid, "1 0.0 0")
    computing.run("systemctl", "stop", LEASES)
    asked(computing, LeaseAnswer(ends=(EndedLease("lease-1", 2),)))
    computing.run("systemctl", "start", LEASES)
    wait_for(lambda: not server(), "the end of the lease", 30)
    left = f"ls -d /sys/fs/cgroup{group}/lease-* /var/lib/numa-host-agent/leases/run/*"
    assert computing.run("/bin/sh", "-c", left, check=False) == ""


@pytest.fixture
def leased(lending: Booted) -> Callable[[], list[str]]:
    """A unit that serves one lease; returns the processes of the lease."""
    options = RemoteGpuOptions(("a=500",), "fake", nics=("e=1",), fabrics=("f",), trying_out=True)
    (gpu,) = gpu_uuids(options.lent("h1"))
    asked(lending, LeaseAnswer(serves=(ServedLease("lease-1", 1, gpu, 500, "silver", "cuda", 0),)))
    lending.run("systemctl", "start", LEASES)
    group = lending.run("systemctl", "show", "--property=ControlGroup", "--value", LEASES)
    listed = f"cat /sys/fs/cgroup{group}/lease-*/cgroup.procs"

    def processes() -> list[str]:
        return lending.run("/bin/sh", "-c", listed, check=False).split()

    wait_for(lambda: len(processes()) == 4, "the processes of the lease", 30)
    return processes


def gone_for_good(booted: Booted, processes: Callable[[], list[str]]) -> None:
    wait_for(lambda: not processes(), "the end of the lease", 30)
    time.sleep(5)  # twice what the unit waits before it starts again
    assert (booted.state(LEASES), processes()) == ("inactive", [])


def test_the_operators_guide_ends_leases(lending: Booted, leased: Callable[[], list[str]]) -> None:
    guide = (ROOT / "doc/source/operator/installation.rst").read_text()
    commands = re.findall(r"(?m)^    (systemctl .*--?\S+ numa-host-agent-leases)$", guide)
    assert len(commands) == 2
    for command in commands:
        lending.run(*command.split())
    gone_for_good(lending, leased)


@pytest.mark.parametrize("stopped", [False, True])
def test_removing_the_package_ends_leases_whose_unit_was_stopped_or_not(
    lending: Booted, leased: Callable[[], list[str]], stopped: bool
) -> None:
    """While they run, a purge could not delete their user."""
    if stopped:
        lending.run("systemctl", "stop", LEASES)
        assert len(leased()) == 4, "they outlive their unit"
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():  # an image's, by which no package may stop anything
        lending.run("mount", "--bind", "/bin/true", str(policy))
    lending.run("/bin/sh", "/run/story/source/debian/numa-host-agent.prerm", "remove")
    gone_for_good(lending, leased)


def test_the_unit_of_a_guest_waits_for_a_device_without_any_right(tmp_path: Path) -> None:
    """As its package starts it in an image: no host has plugged a vsock device in here, and none will."""
    with machine(tmp_path) as found:
        found.run("ip", "link", "set", "lo", "up")
        shutil.copy(built_link() / link_build.PROGRAM, tmp_path)
        found.run("install", f"/media/{link_build.PROGRAM}", "/usr/bin/")
        found.run("systemctl", "start", GUEST)  # returns before the program is executed
        wait_for(lambda: found.status(GUEST)["Name"].startswith("numa-ext"), "its program", 30)
        status = found.status(GUEST)
        assert "0" not in status["Uid"].split()
        assert {int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {0}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        folder = "/run/numa-ext-rgpu"
        assert found.run("stat", "--dereference", "--format=%a", folder) == "755"
        before = found.main_pid(GUEST)
        time.sleep(5)  # it looks each second
        assert (found.state(GUEST), found.main_pid(GUEST)) == ("active", before)
        assert found.run("ls", "-d", folder) == folder
        listening = found.run("ss", "--listening", "--no-header", "--tcp", "--udp")
        assert listening == "", "it has no lease to open a port for"
        found.run("systemctl", "stop", GUEST)
        assert found.run("ls", "-d", folder, check=False) == "", "what it wrote has gone with it"
        users = found.run("getent", "passwd", "numa-ext-rgpu-guest", check=False)
        assert users == "", "so has its user"


@pytest.fixture
def laned(tmp_path: Path) -> Iterator[Booted]:
    units = {**IMPATIENT, f"{LANES}.d/times.conf": "[Service]\nWatchdogSec=6\n"}
    with machine(tmp_path, units, _LANES) as found:
        yield found


def test_lanes_are_a_unit_with_one_right_and_nothing_of_it_is_left(laned: Booted) -> None:
    """It is killed, hangs, and is stopped: it is started again twice, and each time takes off what is there."""
    port = "11111111-1111-4111-8111-111111111111"
    tap = f"tap{port}"[:14]
    (laned.folder / "neutron.json").write_text(
        json.dumps(
            {
                "ports": [{"id": port, "network_id": "n", "binding:vif_type": "ovs"}],
                "networks": [{"id": "n", "provider:network_type": "flat"}],
            }
        )
    )
    for command in (
        "ip link set lo up",
        "ip link add up0 type veth peer name far0",
        "ip link set up0 up",
        "ip link set far0 up",
        f"ip tuntap add dev {tap} mode tap",
        f"ip link set {tap} up",
        "mkdir /run/story/sys",
        "mount -t sysfs sysfs /run/story/sys",
    ):
        laned.run(*command.split())
    laned.start_host()
    interface = (
        f"<interface type='ethernet'><target dev='{tap}' managed='no'/><model type='virtio'/>"
        "<rom enabled='no'/></interface>"
    )
    laned.boot(Server("lc", LC_SPECS, devices=interface))
    laned.run("systemctl", "start", "placement.service")
    wait_for(lambda: laned.run("cat", "/run/story/root", check=False).strip(), "Placement", 60)

    def root() -> str:
        return laned.run("tc", "qdisc", "show", "dev", "up0", "root").split()[1:3][-1]

    def tables() -> str:
        return laned.run("nft", "list", "tables")

    def is_whole() -> bool:
        shown = laned.run("nft", "list", "table", "netdev", "numa_ext", check=False)
        return root() == "4e:" and f"tap_{tap}" in shown

    assert (root(), tables(), laned.has_lanes()) == ("0:", "", False)
    laned.run("systemctl", "start", LANES)  # returns when its first turn is finished
    status = laned.status(LANES)
    user = laned.run("id", "-u", "numa-host-agent")
    assert set(status["Uid"].split()) == {user}
    assert {int(status[kind], 16) for kind in ("CapEff", "CapPrm", "CapBnd")} == {NET_ADMIN}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    wait_for(is_whole, "lanes and the mark of lc", 60)
    wait_for(laned.has_lanes, "the trait", 60)

    for signal in ("KILL", "STOP"):
        before = laned.main_pid(LANES)
        laned.run("systemctl", "kill", f"--signal={signal}", "--kill-who=main", LANES)
        wait_for(
            lambda was=before: laned.main_pid(LANES) not in (0, was),
            f"another one after {signal}",
            240,
        )
        wait_for(is_whole, "lanes and the mark of lc again", 60)
    assert laned.logs().count("no lanes and no marks of ours are left") == 2, (
        "each was followed by a reset"
    )

    laned.run("systemctl", "stop", LANES)
    assert (laned.state(LANES), root(), tables()) == ("inactive", "0:", "")
    wait_for(lambda: not laned.has_lanes(), "the end of the trait", 30)

    conf = laned.folder / "numa-host-agent.conf"
    without = conf.read_text().replace("uplinks = up0\n", "")
    laned.run("cp", "/dev/stdin", "/etc/numa-host-agent/numa-host-agent.conf", given=without)
    laned.run("systemctl", "start", LANES)
    wait_for(lambda: laned.state(LANES) == "inactive", "the end of a unit that is off", 30)
    ended = laned.run("systemctl", "show", "--property=Result", "--property=NRestarts", LANES)
    assert set(ended.split()) == {"Result=success", "NRestarts=0"}, "it is not started again"
