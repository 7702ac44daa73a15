# SPDX-License-Identifier: Apache-2.0
"""What 100 % of an AMD CPU's bandwidth is: measured over a model of its resctrl tree and of what its domains draw."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from emulation.hosts import four_nodes
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD, INTEL
from emulation.kernel.threads import ThreadTable
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.traffic import NodeBandwidth
from host_agent.observe.calibration.levels import calibrate_levels
from placement_traits.errors import CapabilityMissingError

READER = 4711


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


@pytest.fixture
def amd() -> ResctrlModel:
    return ResctrlModel(replace(AMD, domains=(0, 1, 2, 3)), threads=ThreadTable([READER]))


def test_a_level_is_a_share_of_what_the_weakest_domain_draws(amd: ResctrlModel) -> None:
    resctrl = Resctrl(amd)
    host = Domains(resctrl, {0: 41_000.0, 1: 40_000.0, 2: 42_000.0, 3: 43_000.0})
    full_mbps, found = calibrate_levels(resctrl, four_nodes(), host)
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
        calibrate_levels(resctrl, four_nodes(), host)
    assert resctrl.control_groups() == ("",)


def test_what_a_killed_calibration_has_left_is_made_again(amd: ResctrlModel) -> None:
    resctrl = Resctrl(amd)
    resctrl.create_group("numa_ext-calibrate")
    host = Domains(resctrl, dict.fromkeys(range(4), 40_000.0))
    assert calibrate_levels(resctrl, four_nodes(), host)[0] == 40_000
    assert resctrl.control_groups() == ("",)


def test_levels_that_are_shares_by_themselves_are_not_calibrated() -> None:
    resctrl = Resctrl(ResctrlModel(INTEL))
    with pytest.raises(CapabilityMissingError, match="nothing to calibrate"):
        calibrate_levels(resctrl, four_nodes(), Domains(resctrl, {}))
