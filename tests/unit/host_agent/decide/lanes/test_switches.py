# SPDX-License-Identifier: Apache-2.0
"""The lanes of a host as files for switches: what is in them, and what an operator's file has otherwise."""

import json

import pytest

from host_agent.decide.lanes.planning import LanePlan, LaneSettings, planned
from host_agent.decide.lanes.switches import differences, opensm, sonic
from host_agent.model.lanes import LaneQueue, UplinkFacts
from placement_traits.errors import InvalidValueError


def plan(best_effort_share: float = 0.75) -> LanePlan:
    facts = UplinkFacts("eth0", 10_000, "fq_codel")
    found = planned(facts, [LaneQueue.HTB], LaneSettings(best_effort_share=best_effort_share))
    assert isinstance(found, LanePlan)
    return found


def test_opensm_has_lc_in_the_high_list_and_the_others_by_weight() -> None:
    """Weights are 0 to 255, of service levels three are used, and 15 drops."""
    assert opensm(plan()).splitlines() == [
        "qos TRUE",
        "qos_max_vls 4",
        "qos_high_limit 1",
        "qos_vlarb_high 1:64",
        "qos_vlarb_low 0:85,2:255",
        "qos_sl2vl 0,1,2,0,0,0,0,0,0,0,0,0,0,0,0,15",
    ]


def test_sonic_has_a_queue_for_each_lane_and_a_class_for_each_code_point() -> None:
    tables = json.loads(sonic(plan(), ["Ethernet0", "Ethernet4"]))
    classes = tables["DSCP_TO_TC_MAP"]["numa_ext"]
    assert len(classes) == 64
    assert {point: tc for point, tc in classes.items() if tc != "1"} == {"46": "2", "8": "0"}
    assert tables["SCHEDULER"] == {
        "numa_ext_1": {"type": "STRICT", "meter_type": "bytes", "pir": "375000000"},
        "numa_ext_2": {"type": "DWRR", "weight": "25"},
        "numa_ext_3": {"type": "DWRR", "weight": "75"},
    }
    assert tables["QUEUE"]["Ethernet4|2"] == {"scheduler": "numa_ext_1"}
    assert set(tables["TC_TO_QUEUE_MAP"]["numa_ext"]) == set(classes.values())
    for queue in tables["QUEUE"].values():
        assert queue["scheduler"] in tables["SCHEDULER"]
    for names in tables["PORT_QOS_MAP"].values():
        assert names["dscp_to_tc_map"] in tables["DSCP_TO_TC_MAP"]
        assert names["tc_to_queue_map"] in tables["TC_TO_QUEUE_MAP"]


@pytest.mark.parametrize("ports", [[], [""], ["Ethernet0", "a|b"]])
def test_ports_of_a_switch_are_named(ports: list[str]) -> None:
    with pytest.raises(InvalidValueError, match="ports"):
        sonic(plan(), ports)


def test_a_file_that_has_it_all_and_more_differs_in_nothing() -> None:
    made = opensm(plan())
    assert differences(made, f"# ours\nguid 0x1\n{made}sm_priority 3\n") == ()
    tables = json.loads(sonic(plan(), ["Ethernet0"])) | {"VLAN": {"Vlan2": {"vlanid": "2"}}}
    assert differences(sonic(plan(), ["Ethernet0"]), json.dumps(tables)) == ()


def test_what_a_file_lacks_is_named() -> None:
    other = opensm(plan()).replace("2:255", "2:4").replace("qos TRUE\n", "")
    assert differences(opensm(plan()), other) == (
        "qos: nothing, not TRUE",
        "qos_vlarb_low: 0:85,2:4, not 0:85,2:255",
    )
    tables = json.loads(sonic(plan(), ["Ethernet0"]))
    tables["SCHEDULER"]["numa_ext_3"]["weight"] = "10"
    assert differences(sonic(plan(), ["Ethernet0"]), json.dumps(tables)) == (
        "SCHEDULER/numa_ext_3/weight: 10, not 75",
    )


def test_a_file_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="JSON"):
        differences(sonic(plan(), ["Ethernet0"]), "{")
