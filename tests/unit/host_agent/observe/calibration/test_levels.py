# SPDX-License-Identifier: Apache-2.0
"""What 100 % of an AMD CPU's bandwidth is: measured over a model of its resctrl tree and of what its domains draw."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD, INTEL
from emulation.kernel.threads import ThreadTable
from host_agent.cmd import ctl
from host_agent.conf.paths import HostPaths
from host_agent.console import calibrate
from host_agent.machine.rdt.calibration import CalibrationGroups
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.traffic import NodeBandwidth
from host_agent.observe.calibration.levels import LevelBandwidth, calibrate_levels
from host_agent.observe.calibration.timing import TimingSettings
from host_agent.util.single_instance import single_instance
from placement_traits.errors import CapabilityMissingError

READER = 4711

_NOBODY = 65534


class Domains:
    """L3 domains that draw what their cores can, or what the limit of the readers' group lets through."""

    def __init__(
        self, resctrl: Resctrl, draws_mbps: Mapping[int, float], *, limited: bool = True
    ) -> None:
        self.resctrl, self.draws_mbps, self.limited = resctrl, draws_mbps, limited

    def profile(
        self,
        workers: Sequence[int],
        nodes: Sequence[int],
        watch: Callable[[Sequence[int], float], None],
    ) -> NodeBandwidth:
        ((l3,), (node,)) = workers, nodes
        watch([READER], 1.0)
        groups = self.resctrl.control_groups()
        (group,) = (each for each in groups if READER in self.resctrl.tasks(each))
        limit_mbps = self.resctrl.schemata(group)["MB"][l3] * 125
        mbps = self.draws_mbps[l3]
        return {node: {l3: min(mbps, limit_mbps) if self.limited else mbps}}


def measured(resctrl: Resctrl, load: Domains) -> tuple[int, tuple[LevelBandwidth, ...]]:
    return calibrate_levels(resctrl.bandwidth(), four_nodes(), load, CalibrationGroups(resctrl))


@pytest.fixture
def amd() -> ResctrlModel:
    return ResctrlModel(replace(AMD, domains=(0, 1, 2, 3)), threads=ThreadTable([READER]))


def test_a_level_is_a_share_of_what_the_weakest_domain_draws(amd: ResctrlModel) -> None:
    resctrl = Resctrl(amd)
    host = Domains(resctrl, {0: 41_000.0, 1: 40_000.0, 2: 42_000.0, 3: 43_000.0})
    full_mbps, found = measured(resctrl, host)
    assert full_mbps == 40_000
    assert [(each.l3, each.percent, each.mbps) for each in found[4:]] == [
        (1, 50, 20_000.0),
        (1, 20, 8_000.0),
    ]
    assert resctrl.control_groups() == ("",), "nothing is left behind"
    control = Resctrl(amd, full_mbps=full_mbps).bandwidth()
    assert control is not None
    assert [control.from_percent(percent) * 125 for percent in (20, 50)] == [8_000, 20_000]


def test_limits_that_do_not_limit_are_told_and_not_used(amd: ResctrlModel) -> None:
    resctrl = Resctrl(amd)
    host = Domains(resctrl, dict.fromkeys(range(4), 40_000.0), limited=False)
    with pytest.raises(CapabilityMissingError, match="drew 40000 MB/s under a limit of 20000"):
        measured(resctrl, host)
    assert resctrl.control_groups() == ("",)


def test_what_a_killed_calibration_has_left_is_made_again(amd: ResctrlModel) -> None:
    resctrl = Resctrl(amd)
    resctrl.create_group("numa_ext-calibrate")
    host = Domains(resctrl, dict.fromkeys(range(4), 40_000.0))
    assert measured(resctrl, host)[0] == 40_000
    assert resctrl.control_groups() == ("",)


def test_levels_that_are_shares_by_themselves_are_not_calibrated() -> None:
    resctrl = Resctrl(ResctrlModel(INTEL))
    with pytest.raises(CapabilityMissingError, match="nothing to calibrate"):
        measured(resctrl, Domains(resctrl, {}))


class Command:
    """``numa-host-agent-ctl calibrate levels`` on a host of that model.

    :ivar cpus: by L3 domain, what the load was made of
    :ivar domains: that run here
    """

    def __init__(self, folder: Path, amd: ResctrlModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resctrl = Resctrl(amd)
        self.cpus: Mapping[int, Sequence[int]] = {}
        self.domains: tuple[str, ...] = ()
        for node in range(4):
            meminfo = folder / f"devices/system/node/node{node}/meminfo"
            meminfo.parent.mkdir(parents=True)
            meminfo.write_text(f"Node {node} MemFree: 99999999 kB\n")
        self.config = folder / "agent.conf"
        self.config.write_text(f"[agent]\nstate_dir = {folder}\n[host]\nsys = {folder}\n")
        libvirt = SimpleNamespace(domains=lambda: self.domains, close=lambda: None)
        monkeypatch.setattr(calibrate, "LibvirtSource", lambda _uri, _timeout_s: libvirt)
        monkeypatch.setattr(calibrate, "topology_reader", lambda _conf: four_nodes)
        monkeypatch.setattr(calibrate, "tree", lambda _paths: self.resctrl)
        monkeypatch.setattr(calibrate, "TimingProfiler", self._load)

    def _load(self, cpus: Mapping[int, Sequence[int]], settings: TimingSettings) -> Domains:
        self.cpus = cpus
        assert settings.megabytes >= 256, "more than the caches hold"
        return Domains(self.resctrl, {0: 41_000.0, 1: 40_000.0, 2: 42_000.0, 3: 43_000.0})

    def __call__(self, *words: str) -> int:
        return ctl.main([f"--config-file={self.config}", "calibrate", "levels", *words])


@pytest.fixture
def command(tmp_path: Path, amd: ResctrlModel, monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(tmp_path, amd, monkeypatch)


def test_the_command_loads_each_domain_by_its_own_cpus_and_says_what_to_configure(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("-f", "json") == 0
    shown = capsys.readouterr()
    rows = json.loads(shown.out)
    assert rows[1] == {"l3": 1, "percent": 100, "mbps": 40000}
    assert rows[-1] == {"l3": 1, "percent": 20, "mbps": 8000}
    assert shown.err.endswith("agent's configuration: [rdt] full_bandwidth_mbps = 40000\n")
    assert command.cpus == {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}
    assert command.resctrl.control_groups() == ("",)


def test_the_command_loads_no_host_on_which_servers_run(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.domains = ("a",)
    assert command() == 1
    assert capsys.readouterr().err.startswith(
        "The measurement shares the CPUs and memory bandwidth of this host with 1 server: "
    )
    assert command.cpus == {}
    assert command("--force") == 0


def test_the_command_measures_nothing_beside_an_agent(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent takes the measurement's groups for its own, which no server needs."""
    with single_instance(HostPaths(state=tmp_path).lock, ""):
        assert command("--force") == 1
    assert "controls this host already" in capsys.readouterr().err
    assert command.cpus == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_measures_as_root_and_what_it_makes_is_the_agents(
    amd: ResctrlModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root's rights were given up before: no limit could be set on a host whose agent has a user of its own."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to others
        folder = Path(name)
        command = Command(folder, amd, monkeypatch)
        os.chown(folder, _NOBODY, _NOBODY)
        users: list[int] = []
        create = command.resctrl.create_group

        def create_group(group: str) -> None:
            users.append(os.geteuid())
            create(group)

        monkeypatch.setattr(command.resctrl, "create_group", create_group)
        if not (child := os.fork()):  # whose rights are lost when the command gives them up
            status = command("--dry-run")
            os._exit(status or int(set(users) != {0} or os.geteuid() != 0))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert HostPaths(state=folder).lock.stat().st_uid == _NOBODY
