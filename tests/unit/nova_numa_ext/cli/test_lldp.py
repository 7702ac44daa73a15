# SPDX-License-Identifier: Apache-2.0
"""What lldpcli prints, in the forms of lldpd, and in any other."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.cli.fabric_sources.lldp import read, seen_on
from placement_traits.errors import InvalidValueError
from placement_traits.lldp import SwitchPort

MAC = {"type": "mac", "value": "52:54:00:12:34:56"}


def entry(interface: str, system: str, port: str) -> dict[str, Any]:
    """One neighbour as lldpcli -f json shows it."""
    return {
        interface: {
            "via": "LLDP",
            "rid": "1",
            "age": "0 day, 00:01:02",
            "chassis": {system: {"id": MAC, "descr": "SONiC", "capability": []}},
            "port": {"id": {"type": "ifname", "value": port}, "ttl": "120"},
        }
    }


def heard(*entries: dict[str, Any]) -> tuple[SwitchPort, ...]:
    """What is read of one host; lldpcli prints a list of one as the one."""
    shown = entries[0] if len(entries) == 1 else list(entries)
    return read(json.dumps({"cmp001": {"lldp": {"interface": shown}}}), "heard.json")["cmp001"]


def test_one_neighbour_and_several() -> None:
    one = heard(entry("ens1f0", "leaf-r01", "Ethernet7"))
    assert one == (SwitchPort("ens1f0", "leaf-r01", "Ethernet7"),)
    assert str(one[0]) == "leaf-r01 port Ethernet7"
    two = heard(entry("eth0", "mgmt", "3"), entry("ens1f0", "leaf-r01.example.org", "Ethernet7"))
    assert [each.system for each in two] == ["mgmt", "leaf-r01.example.org"]


def test_a_port_whose_id_is_an_address_is_called_by_its_description() -> None:
    """As lldpd itself announces ports, and switches that are Linux."""
    shown = entry("ens1f0", "leaf-r01", "Ethernet7")
    shown["ens1f0"]["port"] = {"id": MAC, "descr": "swp7", "ttl": "120"}
    assert heard(shown)[0].port == "swp7"
    del shown["ens1f0"]["port"]["descr"]
    assert heard(shown)[0].port == MAC["value"]


def test_a_neighbour_without_a_name_is_no_switch_of_a_plan() -> None:
    nameless = entry("eth0", "x", "1")
    nameless["eth0"]["chassis"] = {"id": MAC, "descr": "a phone"}
    assert heard(nameless) == ()
    assert read('{"cmp001": {"lldp": {}}, "cmp002": {}}', "f") == {"cmp001": (), "cmp002": ()}


def test_the_planned_leaf_among_others_is_enough_and_another_leaf_comes_before_strangers() -> None:
    leafs = ("leaf-r01", "leaf-r02")
    mgmt, own = SwitchPort("eth0", "mgmt", "3"), SwitchPort("ens1", "leaf-r01.example.org", "7")
    other = SwitchPort("ens2", "leaf-r02", "7")
    assert seen_on((mgmt, other, own), "leaf-r01", leafs) == own
    assert seen_on((mgmt, other), "leaf-r01", leafs) == other
    assert seen_on((mgmt,), "leaf-r01", leafs) == mgmt
    assert seen_on((), "leaf-r01", leafs) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"h": 1}',
        '{"h": {"lldp": []}}',
        "[" * 100_000,
        '{"h": {"lldp": {"interface": 3}}}',
    ],
)
def test_what_is_no_such_file_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read(text, "heard.json")
    assert len(str(refused.value)) < 500


anything = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["lldp", "interface", "chassis", "port", "id", "value", "leaf"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_any_answer_is_read_or_refused(said: Any) -> None:
    with contextlib.suppress(InvalidValueError):
        for neighbours in read(json.dumps({"h": said}), "heard.json").values():
            assert all(len(str(each)) < 1000 for each in neighbours)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidValueError):
        read(text, "heard.json")
