# SPDX-License-Identifier: Apache-2.0
"""Everything that is read from outside: used, or refused in one sentence. What the helper is asked for is in
``tests/unit/host_agent/machine/test_hostile_agent.py``.

A new kind of input is one function here.
"""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
import requests

from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import Shape
from emulation.kernel.threads import ThreadTable
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf import configuration
from host_agent.conf.latency import PrometheusOptions
from host_agent.conf.paths import HostPaths
from host_agent.console import history
from host_agent.machine.privileged import guest_ram, libvirt_state, processes
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model import cpus, workload
from host_agent.observe.denied import DenyList
from host_agent.observe.latency import prometheus
from host_agent.observe.latency.channel import SloFeed
from host_agent.observe.topology.capture import restore
from host_agent.observe.topology.nvidia import parse_topo_matrix
from host_agent.observe.topology.rdt import read_rdt
from host_agent.observe.topology.sysfs import read_topology
from nova_numa_ext import gpu_files
from nova_numa_ext.cli import explain
from placement_traits import devices, journal, request
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.guest_topology import IMAGE_PROPERTIES
from placement_traits.snapshot_file import MappedSnapshot, SnapshotWriter
from placement_traits.topology import HostTopology
from tests.support import fleet, state_files
from tests.support.hostile_input import Kind, attack, cuts, inputs, seed

EACH, ALL = 120, 1_000_000
PATH_MAX = 4096
MOST_YAML = 512  # what is nested 1,000 deep takes PyYAML 0.8 s
DATA = Path(__file__).parents[1] / "host_agent"
KINDS: dict[str, Callable[[Path], Kind]] = {}

Make = Callable[[Path], Kind]


def kind(make: Make) -> Make:
    """Register a kind of input."""
    KINDS[make.__name__] = make
    return make


def text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def pairs(specs: dict[str, str]) -> bytes:
    return "\n".join(f"{key}={value}" for key, value in specs.items()).encode()


def numbered(contents: Iterable[str]) -> tuple[bytes, ...]:
    """Good inputs of a tree of files: the number of one, and what it holds."""
    return tuple(f"{number}\n{content}".encode() for number, content in enumerate(contents))


def chosen(data: bytes, paths: Sequence[str]) -> tuple[str, bytes]:
    """The file that an input is about, and its content."""
    number, _, content = data.partition(b"\n")
    return paths[int(number) % len(paths) if number.isdigit() and len(number) < 9 else 0], content


def file_in(folder: Path, name: str, data: bytes) -> Path:
    """Write a new file: to empty one that is there waits for the disk."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


@kind
def extra_specs(_folder: Path) -> Kind:
    strict = {
        **LC_SPECS,
        "numa_ext:interference_class": "rabbit",
        "numa_ext:slo_p99_us": "900",
        "numa_ext:slo_source": "channel",
        "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
        "resources_NODE:CUSTOM_MEMORY_BANDWIDTH_MBPS": "4000",
        "hw_cpu_realtime_mask": "^0-1",
    }
    gpus = {
        "pci_passthrough:alias": "a100:2, t4:1",
        "numa_ext:gpu_policy": "topo_p",
        "numa_ext:gpu_comm": "3",
        "numa_ext:min_utility": "0.5",
        "numa_ext:remote_gpu": "allowed",
        "numa_ext:managed": "false",
        "resources:VGPU": "1",
        "accel:device_profile": "gpu",
        "hw:cpu_dedicated_mask": "0-3,^1",
        "hw:cpu_policy": "mixed",
    }

    def read(data: bytes) -> None:
        specs = dict(line.partition("=")[::2] for line in text(data).split("\n"))
        image = {key: specs[key] for key in IMAGE_PROPERTIES if key in specs}
        request.parse(specs, vcpus=4, memory_mb=512, image_properties=image)

    return Kind("extra specs", (pairs(strict), pairs(gpus), pairs(BE_SPECS)), read)


@kind
def domain_xml(_folder: Path) -> Kind:
    servers = (
        Server("lc", LC_SPECS, cpus=(1, 2), vcpus=2, uuid="a", backing="<locked/>"),
        Server(
            "be", {**BE_SPECS, "hw:cpu_dedicated_mask": "^1", "hw:cpu_policy": "mixed"}, uuid="b"
        ),
        Server(
            "gpu",
            BE_SPECS,
            uuid="c",
            devices="<hostdev mode='subsystem' type='pci'><source><address domain='0' bus='0x81' slot='0' "
            "function='0'/></source></hostdev><channel type='unix'><source path='/run/a'/>"
            "<target type='virtio' name='org.numa_ext.slo.0'/></channel>",
        ),
    )

    def read(data: bytes) -> str:
        return workload.parse(text(data), workload.Activity.RUNNING).problem

    return Kind("domain XML", tuple(each.xml.encode() for each in servers), read)


@kind
def libvirt_status(_folder: Path) -> Kind:
    recorded = DATA / "machine/data"
    good = tuple((recorded / f"libvirt-{version}.xml").read_bytes() for version in ("9.0", "11.3"))
    return Kind("libvirt's status files", good, lambda data: libvirt_state.parse(data) and None)


@kind
def slo_messages(_folder: Path) -> Kind:
    good = b"numa-ext-slo 1\ns 812 640.5 1203\nh 500:120 1000:31 2000:2\n# alive\ns 1\n"

    def read(data: bytes) -> None:
        feed, half = SloFeed(900.0), len(data) // 2
        for second, part in enumerate((data[:half], data[half:], b"\ns 5\n"), 1):
            feed.received(part, float(second))
            feed.read(float(second))

    return Kind("SLO messages", (good,), read)


@kind
def prometheus_answers(_folder: Path) -> Kind:
    def answer(kind: str, result: object) -> bytes:
        return json.dumps({"data": {"resultType": kind, "result": result}}).encode()

    good = (
        answer("scalar", [1.0, "0.0009"]),
        answer("vector", [{"metric": {"a": "b"}, "value": [1.0, "0.0009"]}]),
    )

    def answered(data: bytes) -> requests.Response:
        response = requests.Response()
        response.status_code, response.raw = 200, io.BytesIO(data)
        return response

    def read(data: bytes) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(requests.adapters.HTTPAdapter, "send", lambda *_, **__: answered(data))
            prometheus.ask(PrometheusOptions(url="http://prometheus"), "up")

    return Kind("answers of Prometheus", good, read, (OSError,))


class Overlaid(ResctrlModel):
    """A tree in which one file holds something else."""

    path, content = "", ""

    def read(self, path: str) -> str:
        return self.content if path == self.path else super().read(path)


@kind
def resctrl_text(_folder: Path) -> Kind:
    tree = Overlaid(Shape(domains=(0, 1)), threads=ThreadTable([4711, 4712]))
    tree.mkdir("numa_ext-be-0")
    tree.mkdir("numa_ext-be-0/mon_groups/numa_ext-vm-a")
    tree.write("numa_ext-be-0/tasks", "4711")
    resctrl = Resctrl(tree)
    paths: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        known = ResctrlModel.read
        patch.setattr(Overlaid, "read", lambda tree, path: paths.append(path) or known(tree, path))
        _read_tree(resctrl)
    files = {path: tree.read(path) for path in paths}

    def read(data: bytes) -> None:
        tree.path, content = chosen(data, list(files))
        tree.content = text(content)
        _read_tree(resctrl)

    return Kind("resctrl text", numbered(files.values()), read)


def _read_tree(resctrl: Resctrl) -> None:
    read_rdt(resctrl)
    for group in resctrl.actual().groups:
        resctrl.tasks(group.name)
        for monitor in ("", *group.monitors):
            resctrl.counters(group.name, monitor)


@kind
def topology_json(_folder: Path) -> Kind:
    def read(data: bytes) -> None:
        HostTopology.from_json(text(data))

    return Kind("topology files", (four_nodes().to_json().encode(),), read, cost=10)


@kind
def sysfs(folder: Path) -> Kind:
    recorded = json.loads((DATA / "observe/topology/data/lab-4-nodes.json").read_text())
    root = folder / "sys"
    restore(recorded, root)
    found = (path for path in sorted((root / "devices/system").rglob("*")) if path.is_file())
    files = {str(path): path.read_text() for path in found if not path.is_symlink()}

    def read(data: bytes) -> None:
        path, content = chosen(data, list(files))
        file_in(root, path, content)
        try:
            read_topology(root)
        finally:
            file_in(root, path, files[path].encode())

    return Kind("sysfs", numbered(files.values()), read, cost=20)


@kind
def cpu_lists(_folder: Path) -> Kind:
    def read(data: bytes) -> None:
        cpus.parse(text(data))

    return Kind("CPU lists", (b"0,2,4-7,^5", b"0-127"), read)


@kind
def gpu_matrix(_folder: Path) -> Kind:
    good = (
        b"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV2\t0-7\nGPU1\tNV2\t X \t0-7\n"
        b"0, 0000000A:01:00.0\n1, 0000000B:01:00.0\n"
    )
    addresses = ["000a:01:00.0", "000b:01:00.0"]

    def read(data: bytes) -> None:
        parse_topo_matrix(text(data), addresses, "gpus.txt")

    return Kind("GPU matrices", (good,), read)


@kind
def gpu_measurements(folder: Path) -> Kind:
    profiles = (
        b"job:\n  pack_s: [118, 120, 119, 121, 120]\n  beside_s:\n    '*': [1, 2, 3.5, 4, 5]\n"
    )
    distances = b'dgx1: {gpus: ["0000:06:00.0", "0000:07:00.0"], distances: [[0, 21], [21, 0]]}\n'

    def read(data: bytes) -> None:
        path = file_in(folder, "measured.yaml", data[:MOST_YAML])
        (gpu_files.read_distances if b"gpus" in data else gpu_files.read_profiles)(
            path, "[numa_ext]x"
        )

    return Kind("GPU measurements", (profiles, distances), read, cost=10)


@kind
def pci_aliases(_folder: Path) -> Kind:
    good = b'{"name": "a100", "vendor_id": "10de", "product_id": "20b0", "resource_class": "CUSTOM_A100"}'

    def read(data: bytes) -> None:
        devices.classes_of_aliases([text(data)])

    return Kind("PCI aliases", (good,), read)


def state_file(name: str) -> Make:
    def make(folder: Path) -> Kind:
        paths: HostPaths = state_files.host_paths(folder)
        content = {"version": state_files.VERSIONS[name], **state_files.FILES[name]}

        def read(data: bytes) -> None:
            file_in(paths.state, name, data)
            state_files.loaded(paths, name)

        return Kind(
            name, (json.dumps(content).encode(),), read, cost=5 if name == "topology.json" else 1
        )

    return make


for _name in state_files.FILES:
    KINDS[_name] = state_file(_name)


@kind
def fleet_snapshot(folder: Path) -> Kind:
    path = folder / "view.fleet"
    SnapshotWriter(path).write(FleetArrays.of([fleet.host(fleet.domain(0))]), 7, 123.5)

    def read(data: bytes) -> None:
        MappedSnapshot(file_in(folder, "view.fleet", data))

    return Kind("snapshots of the fleet", (path.read_bytes(),), read)


@kind
def agents_journal(folder: Path) -> Kind:
    entry = {
        "time": "2026-11-20T12:00:00.000+00:00",
        "action": "decide",
        "result": "done",
        "server": "a",
        "title": "web",
        "what": {"cpus": "3", "gpus": [{"address": "0000:61:00.0", "node": 2}]},
        "reasons": ["why"],
        "problem": "it bites",
    }
    lines = (
        json.dumps(entry).encode() + b"\n" + json.dumps({**entry, "action": "pin"}).encode() + b"\n"
    )
    options = configuration.load(
        [f"--config-file={file_in(folder, 'agent.conf', conf_of(folder))}"]
    )

    def read(data: bytes) -> None:
        file_in(folder, "journal.jsonl", data)
        for found in history.entries(options):
            history.line(found)
        history.last_decisions(options)

    return Kind("the agent's journal", (lines,), read)


def conf_of(folder: Path) -> bytes:
    return f"[agent]\nstate_dir = {folder}\n".encode()


@kind
def decision_journal(folder: Path) -> Kind:
    head = {"request": "req-1", "server": "a", "flavor": "lc", "asked": {"k": "v"}, "time": 86400.0}
    candidates = [
        {"l3": [0], "loses": None},
        {"l3": [1], "loses": "ways_free=1 (against 0)", "count": 2},
    ]
    host = {"host": "h1", "node": "h1", "reasons": [], "nodes": [0], "candidates": candidates}
    host |= {"candidates_judged": 3, "candidates_left": 3}
    filtered = {
        **head,
        "kind": "filter",
        "problems": [],
        "view": {"state": "fresh", "age_s": 1.0, "hosts": 1},
        "hosts": 3,
        "passed": 1,
        "refused": [{"count": 2, "reason": "no way is free", "hosts": ["h2", "h3"]}],
        "picks": [],
        "details": [host],
    }
    score = {
        "host": "h1",
        "node": "h1",
        "score": 0.9,
        "before": 1.0,
        "total": 1.9,
        "terms": {"ways": None},
    }
    weighed = {**head, "kind": "weigh", "hosts": 1, "scores": [score]}
    fault = {**head, "kind": "fault", "where": "filter", "error": "it bites"}
    lines = b"".join(json.dumps(entry).encode() + b"\n" for entry in (filtered, weighed, fault))

    def read(data: bytes) -> None:
        found = journal.read(file_in(folder, "decisions.jsonl", data), "a")
        for one in explain.find(found, "a"):
            explain.text(one)

    return Kind("the decision journal", (lines,), read)


@kind
def configuration_file(folder: Path) -> Kind:
    good = (
        b"[DEFAULT]\ndebug = true\n[agent]\ninterval_s = 5\nmode = observe\ntakeover_interval_s = 5\n"
        b"[host]\nname = h1\nserver_node_of_socket = 0:0,1:1\ngpu_products = 10de:20b0\n",
        b"[rdt]\nbackend = resctrl\nverify_s = 1\n[bwap]\ndrop = 2\n[slo]\nat_risk_slack_percent = 4\n"
        b"[placement]\nauth_type = password\nusername = nova\n[memory]\ndead_band_percent = 10\n",
    )

    def read(data: bytes) -> str:
        path = file_in(folder, "agent.conf", data)
        found = configuration.load([f"--config-file={path}"])
        unknown = configuration.unknown_keys(found)
        return unknown[0] if unknown else ""

    return Kind("configuration", good, read, cost=20)


@kind
def deny_list(folder: Path) -> Kind:
    good = b"# left alone\n11111111-aaaa-4000-8000-000000000001\n22222222-aaaa-4000-8000-000000000002 # too\n"

    def read(data: bytes) -> None:
        DenyList(file_in(folder, "deny-servers", data)).check()

    return Kind("deny lists", (good,), read)


@kind
def names_of_processes(folder: Path) -> Kind:
    """What a process chooses in files of the kernel: its command line, names of its threads and of what it maps."""
    process, paths = folder / "7", HostPaths(proc=folder)
    (process / "task/7").mkdir(parents=True)
    command = b"qemu\0-uuid\0a\0-object\0memory-backend-ram,id=a,size=128M\0-m\00016\0"
    backend = (
        b'qemu\0-object\0{"qom-type": "memory-backend-ram", "id": "pc.ram", "size": 134217728}\0'
    )

    def read(data: bytes) -> None:
        escaped = b"".join(
            b"\\%03o" % each if each in b"\n\t\\ " else b"%c" % each for each in data[:PATH_MAX]
        )
        mapped = b"7f0050000000-7f0058000000 rw-p 00000000 00:00 0 /" + escaped
        file_in(process, "cmdline", data)
        file_in(process, "maps", mapped + b"\n")
        file_in(process, "smaps", mapped + b"\nAnonHugePages:    129024 kB\n")
        file_in(process, "numa_maps", b"7f0050000000 bind:2 file=/" + escaped + b" N0=256 N2=9\n")
        file_in(process, "status", b"Name:\t" + escaped[:64] + b"\nCpus_allowed_list:\t0\n")
        file_in(process, "stat", b"7 (" + data[:15] + b") S " + b"7 " * 40)
        guest_ram.read(process, with_thp=True)
        processes.read_process(paths, libvirt_state.RunningDomain("", 7))
        processes._started(process)

    return Kind("names of processes", (command, backend, b"CPU 0/KVM", b"vhost-7"), read, cost=3)


@pytest.fixture(params=KINDS, ids=str)
def one(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return KINDS[request.param](tmp_path)


def test_any_input_is_used_or_refused_in_a_sentence(one: Kind) -> None:
    attack(one, inputs(one, seed(), EACH // one.cost))


def test_what_is_cut_off_is_used_or_refused_in_a_sentence(one: Kind) -> None:
    """At every byte of a state file or a journal; of what is large or slow at as many places as there is time for."""
    every = 1 + one.cost * sum(map(len, one.good)) // EACH
    attack(one, (data for number, data in enumerate(cuts(one)) if number % every == 0))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_inputs_are_used_or_refused_in_a_sentence(tmp_path: Path) -> None:
    run = seed()
    made = []
    for name, make in KINDS.items():
        (tmp_path / name).mkdir()
        made.append(make(tmp_path / name))
    share = ALL / sum(1 / one.cost for one in made)
    for one in made:
        attack(one, cuts(one))
        attack(one, inputs(one, run, round(share / one.cost)))
