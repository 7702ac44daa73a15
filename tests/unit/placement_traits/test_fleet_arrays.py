# SPDX-License-Identifier: Apache-2.0
"""The fleet as arrays holds exactly what the views of its hosts hold."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement_traits.errors import InvalidValueError
from placement_traits.fleet import Amount, DeviceView, GpuView, HostView, L3View, RdtView
from placement_traits.fleet_arrays import LAYOUT, NODE_BITS, FleetArrays
from placement_traits.names import GpuLink, NeighbourTrait
from tests.support.fleet import domain, host

NUMBERS = st.integers(0, 10**18 - 1)
SMALL = st.integers(0, 2 * NODE_BITS)
UUIDS = st.uuids().map(str)
TEXTS = st.text(max_size=20)
AMOUNTS = st.builds(Amount, st.integers(-(2**31), 2**62), st.integers(0, 2**62))
L3S = st.builds(
    L3View,
    UUIDS,
    NUMBERS,
    st.lists(st.one_of(SMALL, NUMBERS), max_size=5, unique=True).map(tuple),
    NUMBERS,
    NUMBERS,
    st.none() | AMOUNTS,
    st.none() | AMOUNTS,
    st.frozensets(st.sampled_from(NeighbourTrait)),
    st.none() | AMOUNTS,
    st.lists(st.tuples(NUMBERS, NUMBERS), max_size=3).map(tuple),
)
GPUS = st.builds(
    GpuView,
    UUIDS,
    TEXTS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.dictionaries(TEXTS, st.sampled_from(GpuLink), max_size=3),
)


def lists(what):
    return st.lists(what, max_size=3).map(tuple)


HOSTS = st.builds(
    HostView,
    UUIDS,
    TEXTS,
    st.frozensets(TEXTS, max_size=3),
    st.none() | st.builds(RdtView, UUIDS, st.none() | AMOUNTS),
    lists(L3S),
    lists(GPUS),
    lists(st.builds(DeviceView, UUIDS, TEXTS, AMOUNTS, TEXTS)),
)
FLEETS = st.lists(HOSTS, max_size=5, unique_by=lambda view: view.root_uuid)


@given(FLEETS)
def test_what_goes_in_comes_out(views):
    arrays = FleetArrays.of(views)
    assert list(arrays.views.values()) == views
    assert list(arrays.rows) == [view.root_uuid for view in views]
    for name, dtype in LAYOUT.items():
        array = getattr(arrays, name)
        assert array.dtype == dtype
        assert not array.dtype.hasobject
        assert not array.flags.writeable


@settings(max_examples=30)
@given(FLEETS, FLEETS, st.data())
def test_changes_are_as_if_all_had_been_written_anew(before, others, data):
    compare_with_written_anew(before, others, data)


@pytest.mark.long
@settings(max_examples=1000)
@given(FLEETS, FLEETS, st.data())
def test_a_thousand_changes_are_as_if_all_had_been_written_anew(before, others, data):
    compare_with_written_anew(before, others, data)


def compare_with_written_anew(before, others, data):
    arrays = FleetArrays.of(before, version=1)
    roots = [view.root_uuid for view in before]
    changed = {view.root_uuid: view for view in others}
    for view in data.draw(st.lists(HOSTS, max_size=len(roots))):
        root = data.draw(st.sampled_from(roots))
        changed[root] = dataclasses.replace(view, root_uuid=root)
    for root in data.draw(st.sets(st.sampled_from(roots))) if roots else ():
        changed[root] = None
    after = arrays.with_changes(changed, version=2)
    kept = {view.root_uuid: view for view in before} | changed
    assert dict(after.views) == {root: view for root, view in kept.items() if view is not None}
    assert [root for root in after.rows if root in roots] == [
        root for root in roots if kept[root] is not None
    ]
    versions = dict(zip(after.rows, after.hosts["changed"].tolist(), strict=True))
    assert versions == {root: 2 if root in changed else 1 for root in after.rows}
    for child, parent in (("l3", "host"), ("gpus", "host"), ("devices", "host")):
        held = [len(getattr(view, child)) for view in after.views.values()]
        assert getattr(after, child)[parent].tolist() == np.repeat(range(len(held)), held).tolist()


def test_nodes_have_bits_as_far_as_there_are_bits():
    near, far = domain(0, nodes=(0, 3)), domain(1, nodes=(1, NODE_BITS))
    arrays = FleetArrays.of([host(near, far)])
    assert arrays.l3["node_bits"].tolist() == [0b1001, 0b10]
    assert arrays.l3["bits_tell_all"].tolist() == [True, False]


def test_amounts_are_columns():
    arrays = FleetArrays.of(
        [host(domain(0, ways=(13, 4)), domain(1)), host(name="h2", clos=(6, 1))]
    )
    assert arrays.l3["ways_used"].tolist() == [4, 0]
    assert arrays.hosts["clos_used"].tolist() == [0, 1]
    assert arrays.l3["host"].tolist() == [0, 0]


def test_a_name_that_is_used_often_is_written_once():
    arrays = FleetArrays.of([host(name=f"h{number}") for number in range(100)])
    assert len(arrays.kinds) == 1
    assert len(arrays.all_texts()) == 100 + len(arrays.trait_sets[0])


@pytest.mark.parametrize("wrong", ["", "x" * 37, "ä", "a\0"])
def test_what_is_no_uuid_is_refused(wrong):
    with pytest.raises(InvalidValueError, match="36 characters"):
        FleetArrays.of([dataclasses.replace(host(), root_uuid=wrong)])


def test_an_unknown_host_is_a_key_error():
    with pytest.raises(KeyError):
        FleetArrays.of(()).views["f00"]
