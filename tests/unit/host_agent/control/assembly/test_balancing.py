# SPDX-License-Identifier: Apache-2.0
"""NUMA balancing put together from the configuration; effective resource control, as the model of the host reads it."""

import time
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from emulation.counters import effective_partitions
from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import INTEL
from emulation.kernel.threads import ThreadTable
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf import configuration
from host_agent.conf.bwap import BwapOptions
from host_agent.conf.counters import CounterOptions
from host_agent.conf.mapping import MappingOptions, PerformanceMetric
from host_agent.control.assembly import agent as assembly
from host_agent.control.assembly import observer
from host_agent.control.assembly.balancing import build_balancing
from host_agent.machine.rdt.backend import tree
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.observe.counters import registry
from host_agent.observe.foreign_balancers import Guard
from host_agent.observe.latency.ipc_proxy import IpcProxy
from host_agent.observe.machine_files import MachineFiles
from host_agent.observe.snapshot import Observer
from placement_traits.errors import InvalidValueError
from placement_traits.oslo_options import ConfigurationError
from tests.support.balanced import BalancedAgent
from tests.support.fake_host import FakeHost


def load(folder: Path, text: str = "") -> configuration.Configuration:
    (folder / "agent.conf").write_text(f"[agent]\nstate_dir = {folder}\n{text}")
    return configuration.load([f"--config-file={folder}/agent.conf"])


def test_without_a_configuration_the_controllers_have_their_own_defaults(tmp_path: Path) -> None:
    found = load(tmp_path)
    assert found.mapping == MappingOptions()
    assert found.mapping.enabled
    assert found.bwap == BwapOptions()
    assert found.counters == CounterOptions()


def test_options_reach_the_controllers(tmp_path: Path) -> None:
    text = """
[mapping]
enabled = false
metric = mpi
threshold_percent = 20
use_siblings = true
reshuffle_moves = 1
reshuffle_operations = 10
vcpu_cost_mb = 7
[bwap]
stuck_s = 300
samples = 9
drop = 2
step_percent = 5
[counters]
sample_s = 4
model_programs = big-1:sc,big-2:oc
"""
    found = load(tmp_path, text)
    mapping, search = found.mapping, found.bwap
    assert (mapping.enabled, mapping.use_siblings, found.counters.sample_s) == (False, True, 4.0)
    assert mapping.metric is PerformanceMetric.MPI
    assert mapping.threshold == 0.2
    assert (mapping.reshuffle_moves, mapping.reshuffle_operations) == (1, 10)
    assert mapping.vcpu_cost_mb == 7
    assert (search.samples, search.step, search.stuck_s) == (9, 0.05, 300.0)
    programs = found.counters.model_programs
    assert programs == {"big-1": "sc", "big-2": "oc"}


def test_options_that_exclude_each_other_are_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidValueError, match=r"\[bwap\]drop in .*: 10 is not allowed; allowed: 0 to 9"
    ):
        load(tmp_path, "[bwap]\ndrop = 10\n")


@pytest.fixture
def emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points that the emulated hardware declares, installed or not."""
    text = (Path(__file__).parents[5] / "emulation/pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["entry-points"][registry.GROUP]
    points = EntryPoints(EntryPoint(name, at, registry.GROUP) for name, at in declared.items())
    monkeypatch.setattr(registry, "entry_points", points.select)


@pytest.mark.usefixtures("emulation")
@pytest.mark.parametrize("source", ["auto", "perf", "libvirt", "model", "none"])
def test_every_source_can_be_chosen_and_maps_servers(tmp_path: Path, source: str) -> None:
    bench = BalancedAgent(tmp_path, four_nodes())
    conf = load(tmp_path, f"[counters]\nsource = {source}\n[host]\nresctrl = {tmp_path}/none\n")
    balancing = build_balancing(conf, bench.host, bench.host, lambda _file: None)
    bench.refiner._counters = balancing._counters
    server = bench.host.boot(Server("a", BE_SPECS, vcpus=2, memory_mb=512, shared="0-7"))
    bench.run(5)
    assert len(set(bench.cpus(server))) == 2


def test_a_source_that_is_not_installed_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_wanted: EntryPoints())
    host = FakeHost(four_nodes())
    conf = load(tmp_path, f"[counters]\nsource = model\n[host]\nresctrl = {tmp_path}/none\n")
    with pytest.raises(ConfigurationError, match="model comes with nova-numa-ext-emulation"):
        build_balancing(conf, host, host, lambda _file: None)


def test_one_stack_of_counters_serves_balancing_and_the_guess_at_latencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two would open every performance counter twice and tell twice that there are none."""
    host = FakeHost(four_nodes())
    host.count_problem = "no PMU"
    host.boot(Server("silent", {**LC_SPECS, "numa_ext:slo_p99_us": "1000"}, cpus=(1,)))
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: host.topology)
    conf = load(
        tmp_path,
        f"[counters]\nsource = perf\n[host]\nresctrl = {tmp_path}/none\n[slo]\nipc_tolerance_percent = 25\n",
    )
    taken: list[float] = []
    monkeypatch.setattr(IpcProxy, "take", lambda _self, _found, now_s: taken.append(now_s))
    parts = assembly.build(conf, out=print, source=host, privileged=host)
    reads: list[object] = []
    count = host.count
    monkeypatch.setattr(host, "count", lambda *asked: reads.append(asked) or count(*asked))
    parts.agent.round(full=True, relist=True)
    assert not reads, "a round reads no counters"
    now_s = time.monotonic() + 1.0
    for turn in range(3):
        parts.agent._refiners.turn(now_s + 2.0 * turn)
    assert len(reads) == 3
    assert taken == [now_s, now_s + 2.0, now_s + 4.0]
    assert caplog.text.count("no performance counters") == 1


def test_latencies_are_guessed_from_ipc_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: a server that goes idle looks violated, and others are throttled for it."""
    host = FakeHost(four_nodes())
    host.boot(Server("silent", {**LC_SPECS, "numa_ext:slo_p99_us": "1000"}, cpus=(1,)))
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: host.topology)
    taken: list[str] = []
    monkeypatch.setattr(IpcProxy, "take", lambda *_: taken.append("guess"))
    for guess in ("", "[slo]\nipc_tolerance_percent = 25\n"):
        taken.append(guess)
        conf = load(
            tmp_path, f"[counters]\nsource = perf\n[host]\nresctrl = {tmp_path}/none\n{guess}"
        )
        parts = assembly.build(conf, out=print, source=host, privileged=host)
        parts.agent.round(full=True, relist=True)
        parts.agent._refiners.turn(time.monotonic() + 1.0)
    assert taken == ["", guess, "guess"]


def test_all_processes_are_looked_at_by_one_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(four_nodes())
    monkeypatch.setattr(observer, "topology_reader", lambda *_: lambda: host.topology)
    made: list[object] = []
    begin = Guard.__init__

    def counted(guard: Guard, *arguments: Any) -> None:
        made.append(guard)
        begin(guard, *arguments)

    monkeypatch.setattr(Guard, "__init__", counted)
    conf = load(tmp_path, f"[counters]\nsource = none\n[host]\nresctrl = {tmp_path}/none\n")
    assembly.build(conf, out=print, source=host, privileged=host)
    assert len(made) == 1


def test_the_model_sees_masks_and_levels_of_the_group_a_server_is_in(tmp_path: Path) -> None:
    host = FakeHost(four_nodes())
    limited = host.boot(Server("limited", BE_SPECS, memory_mb=64, shared="0-7"))
    free = host.boot(Server("free", BE_SPECS, memory_mb=64, shared="0-7"))
    observer = Observer(host, host, MachineFiles(lambda: host.topology, tmp_path))
    seen = observer.observe(full=True, relist=True)
    pid = host.running[limited.uuid].process.pid
    model = ResctrlModel(INTEL, threads=ThreadTable([pid]))
    model.mkdir("numa_ext-be-0")
    model.write("numa_ext-be-0/schemata", "L3:0=f\nMB:0=30\n")
    model.write("numa_ext-be-0/tasks", f"{pid}\n")
    found = effective_partitions(Resctrl(model), seen)
    assert (found[limited.uuid].ways[0], found[limited.uuid].mba[0]) == (0xF, 30)
    assert (found[free.uuid].ways[0], found[free.uuid].mba[0]) == ((1 << INTEL.cbm_len) - 1, 100)


def test_without_resctrl_nobody_is_limited(tmp_path: Path) -> None:
    host = FakeHost(four_nodes())
    observer = Observer(host, host, MachineFiles(lambda: host.topology, tmp_path))
    conf = load(tmp_path, f"[host]\nresctrl = {tmp_path}/none\n")

    seen = observer.observe(full=True, relist=True)
    assert effective_partitions(tree(conf.paths), seen) == {}
