# SPDX-License-Identifier: Apache-2.0
"""The short way to a bandwidth level, on the resctrl model (F-004-33: written for the right domain, read back)."""

import pytest

from emulation.kernel.resctrl import ResctrlModel
from host_agent.conf.paths import HostPaths
from host_agent.machine.privileged import partitions
from host_agent.machine.privileged.partitions import RdtOperations
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.process import GroupLevel

BE = "numa_ext-be-0"


@pytest.fixture
def resctrl(monkeypatch: pytest.MonkeyPatch) -> Resctrl:
    """A tree with one group of ours and one of somebody else."""
    model = ResctrlModel()
    found = Resctrl(model)
    found.create_group(BE)
    model.mkdir("stranger")
    monkeypatch.setattr(partitions, "tree", lambda _paths: found)
    return found


def throttle(*levels: GroupLevel) -> tuple[str, ...]:
    return RdtOperations(HostPaths()).throttle(levels)


def test_f_004_33_only_the_named_domain_is_throttled_and_nothing_else_changes(
    resctrl: Resctrl,
) -> None:
    before = resctrl.schemata(BE)
    domain = min(before["MB"])
    assert throttle(GroupLevel(BE, ((domain, 30),))) == ("",)
    after = resctrl.schemata(BE)
    assert after["MB"] == {**before["MB"], domain: 30}
    assert {name: after[name] for name in after if name != "MB"} == {
        name: before[name] for name in before if name != "MB"
    }


def test_a_level_between_two_legal_ones_is_the_higher_of_them(resctrl: Resctrl) -> None:
    domain = min(resctrl.schemata(BE)["MB"])
    assert throttle(GroupLevel(BE, ((domain, 33),))) == ("",)
    assert resctrl.schemata(BE)["MB"][domain] == 40


def test_each_group_answers_for_itself(resctrl: Resctrl) -> None:
    domain = min(resctrl.schemata(BE)["MB"])
    stranger, gone, ours = throttle(
        GroupLevel("stranger", ((domain, 10),)),
        GroupLevel("numa_ext-be-9", ((domain, 10),)),
        GroupLevel(BE, ((domain, 10),)),
    )
    assert "does not start with" in stranger
    assert "numa_ext-be-9" in gone
    assert ours == ""
    assert resctrl.schemata("stranger")["MB"][domain] == 100


def test_what_stands_already_is_not_written_again(
    resctrl: Resctrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = min(resctrl.schemata(BE)["MB"])
    throttle(GroupLevel(BE, ((domain, 20),)))
    monkeypatch.setattr(resctrl, "write_schemata", lambda *_: pytest.fail("it was written again"))
    assert throttle(GroupLevel(BE, ((domain, 20),))) == ("",)
