# SPDX-License-Identifier: Apache-2.0
"""What adapters do with classes by themselves, from what ``dcb`` of iproute2 6.1 prints; no such adapter was here."""

from pathlib import Path

import pytest

from host_agent.machine import dcb
from host_agent.model.lanes import DcbState
from placement_traits.errors import CapabilityMissingError

PFC = '{"pfc_cap":8,"macsec_bypass":false,"delay":0,"prio_pfc":[false,false,false,true,false,false,false,false]}'
ETS = (
    '{"willing":true,"ets_cap":8,"cbs":false,"tc_bw":[70,30,0,0,0,0,0,0],"pg_bw":[0,0,0,0,0,0,0,0],'
    '"tc_tsa":["ets","ets","strict","strict","strict","strict","strict","strict"],"prio_tc":[0,0,0,1,0,2,0,0]}'
)
NOT_THERE = "echo 'Attribute read: Operation not supported' >&2; exit 1"


def program(folder: Path, flow: str, classes: str) -> Path:
    file = folder / "dcb"
    file.write_text(f'#!/bin/sh\ncase "$*" in *pfc*) {flow};; *) {classes};; esac\n')
    file.chmod(0o755)
    return file


def test_an_adapter_says_what_it_does(tmp_path: Path) -> None:
    found = dcb.read(program(tmp_path, f"echo '{PFC}'", f"echo '{ETS}'"), "eth0")
    assert found == DcbState(
        (3,),
        ("ets", "ets", *["strict"] * 6),
        (70, 30, *[0] * 6),
        (0, 0, 0, 1, 0, 2, 0, 0),
        is_willing=True,
    )
    assert found.sentence == (
        "PFC of priorities 3, class 0 ets 70 %, class 1 ets 30 %, class 2 strict, "
        "priorities in classes 0 0 0 1 0 2 0 0, as the switch says by LLDP"
    )


def test_an_adapter_may_know_a_part_of_it_or_nothing(tmp_path: Path) -> None:
    assert dcb.read(program(tmp_path, NOT_THERE, NOT_THERE), "eth0") is None
    found = dcb.read(program(tmp_path, f"echo '{PFC}'", NOT_THERE), "eth0")
    assert found is not None
    assert (found, found.sentence) == (DcbState((3,)), "PFC of priorities 3")
    none = dcb.read(program(tmp_path, NOT_THERE, f"echo '{ETS}'"), "eth0")
    assert none is not None
    assert none.sentence.startswith("no PFC, class 0 ets 70 %")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo denied >&2; exit 2", "dcb pfc: denied"),
        ("echo nothing", "prints no JSON"),
        ("echo '[]'", "prints no object"),
        ("echo '{}'", "prints something else"),
        ("echo '{\"prio_pfc\": 3}'", "prints something else"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(tmp_path: Path, script: str, why: str) -> None:
    with pytest.raises(CapabilityMissingError, match=why):
        dcb.read(program(tmp_path, script, NOT_THERE), "eth0")
    with pytest.raises(CapabilityMissingError, match="No such file"):
        dcb.read(tmp_path / "nosuch", "eth0")


def test_the_program_of_this_machine_says_that_loopback_knows_no_dcb() -> None:
    here = Path("/usr/sbin/dcb")
    if not here.exists():
        pytest.skip(f"needs {here}: apt-get install iproute2")
    assert dcb.read(here, "lo") is None
    with pytest.raises(CapabilityMissingError, match="dcb pfc: "):
        dcb.read(here, "nosuch0")
