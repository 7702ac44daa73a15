# SPDX-License-Identifier: Apache-2.0
"""Every state file of the agent: one bad value anywhere, and the agent starts without it instead of failing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host_agent.conf.paths import HostPaths
from host_agent.control import (
    balancing_store,
    calibration_store,
    home_nodes_store,
    slo_store,
    topology_store,
)
from host_agent.machine.privileged import vcpu_quota
from host_agent.machine.rdt.pqos import ClassNames
from host_agent.machine.rdt.root_masks import RootMemory
from placement_traits.interference import INITIAL_BENEFIT

BENEFIT = {
    domain.value: {kind.value: figure for kind, figure in row.items()}
    for domain, row in INITIAL_BENEFIT.items()
}
SEARCH = {
    "canonical": {"0": 0.25, "1": 0.75},
    "workers": [1],
    "co_scheduled": False,
    "found": True,
    "dwp": 0.5,
    "lower_bound": 0.0,
    "best": [0.5, 1e8, 1e6],
    "phase_mapi": 0.01,
}
FILES: dict[str, dict[str, Any]] = {
    "state.json": {"home_nodes": {"a": [0, 1]}},
    "balancing.json": {
        "mapping": {"benefit": BENEFIT, "expectations": {"a": 1.5}},
        "searches": {"a": SEARCH},
    },
    "slo.json": {
        "targets": {"be": {"level": 40, "shares": {"0": 1.0}}},
        "reporting": ["lc"],
        "report": {"lcs": {"lc": {}}, "actions": [{"time": "1", "action": "a", "server": "lc"}]},
    },
    "calibration.json": {
        "measured": "today",
        "distances": {"0": {"0": 10, "1": 21}, "1": {"0": 21, "1": 10}},
        "sets": [{"workers": [0], "bandwidth": {"0": {"0": 9.0}, "1": {"0": 3.0}}}],
        "pairs": {"0": {"0": 9.0, "1": 3.0}, "1": {"0": 3.0, "1": 9.0}},
    },
    "topology.json": {
        "topology": {
            "sockets": [{"id": 0}],
            "nodes": [{"id": 0, "socket": 0}],
            "l3_domains": [{"id": 3, "socket": 0, "nodes": [0], "size_kb": 512}],
            "cores": [{"id": 0, "node": 0, "socket": 0, "l3": 3, "cpus": [0, 1]}],
        }
    },
    "rdt-root.json": {"boot": "one", "root": {"L3": {"0": 2047, "1": 2047}}},
    "throttled.json": {"boot": "one", "servers": ["a"]},
    "pqos-classes.json": {"boot": "one", "lives": 4, "names": {"numa_a": [1, 4]}},
}


VERSIONS = dict.fromkeys(FILES, 1) | {"state.json": 2, "slo.json": 2}


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    boot = tmp_path / "proc/sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("one\n")
    (tmp_path / "state").mkdir()
    return HostPaths(
        proc=tmp_path / "proc", state=tmp_path / "state", helper_state=tmp_path / "state"
    )


def loaded(paths: HostPaths, name: str) -> object:
    """What the owner of a file reads from it; falsy for nothing."""
    file = paths.state / name
    readers: dict[str, Callable[[], object]] = {
        "state.json": lambda: home_nodes_store.store(file).load(),
        "balancing.json": lambda: balancing_store.store(file).load(),
        "slo.json": lambda: slo_store.load(file).targets,
        "calibration.json": lambda: (
            (found := calibration_store.store(file).load()) and found.weights()
        ),
        "topology.json": lambda: topology_store.store(file).load(),
        "rdt-root.json": lambda: RootMemory(paths.helper_state, paths.proc).recall(),
        "throttled.json": lambda: vcpu_quota.throttled_servers(paths).load(),
        "pqos-classes.json": lambda: ClassNames(paths.helper_state, paths.proc).recall(),
    }
    return readers[name]()


@pytest.mark.parametrize("name", FILES)
def test_a_good_file_is_used(paths: HostPaths, name: str) -> None:
    (paths.state / name).write_text(json.dumps({"version": VERSIONS[name], **FILES[name]}))
    assert loaded(paths, name)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("state.json", {"homes": {"a": [0, 1]}}),
        (
            "slo.json",
            {
                "wanted": {"be": {"level": 40, "shares": {"0": 1.0}}},
                "fed": ["lc"],
                "told": {"lcs": {"lc": {}}, "actions": []},
            },
        ),
    ],
)
def test_an_upgrade_reads_what_the_version_before_has_kept(
    paths: HostPaths, name: str, old: dict[str, Any]
) -> None:
    """Servers run on meanwhile: their home nodes and the targets of their levels stay as they are."""
    (paths.state / name).write_text(json.dumps({"version": VERSIONS[name], **FILES[name]}))
    now = loaded(paths, name)
    (paths.state / name).write_text(json.dumps({"version": VERSIONS[name] - 1, **old}))
    assert loaded(paths, name) == now != {}


HOSTILE = (
    "[" * 100_000,
    "Infinity",
    "NaN",
    "1e999",
    "-1",
    "null",
    "[[]]",
    '{"a": {}}',
    '"x"',
    "1" + "0" * 5000,
)


@pytest.mark.parametrize("name", FILES)
def test_any_value_replaced_by_a_hostile_one_never_raises(paths: HostPaths, name: str) -> None:
    """D6: Infinity, nesting, parts that are missing or of another kind, at every place of every file."""
    good = {"version": VERSIONS[name], **FILES[name]}
    for place in _places(good):
        for hostile in (*HOSTILE, None):
            text = json.dumps(_changed(good, place, hostile)).replace('"@"', hostile or "")
            (paths.state / name).write_text(text)
            loaded(paths, name)


@pytest.mark.parametrize(
    ("name", "place", "hostile"),
    [
        ("state.json", ("home_nodes", "a", 0), "Infinity"),
        ("balancing.json", ("mapping", "expectations", "a"), "Infinity"),
        ("balancing.json", ("searches", "a", "canonical", "0"), "0.5"),
        ("balancing.json", ("searches", "a", "phase_mapi"), '"x"'),
        ("slo.json", ("report",), "7"),
        ("calibration.json", ("sets", 0, "bandwidth", "1"), "{}"),
        ("calibration.json", ("distances", "1"), "{}"),
        ("rdt-root.json", ("root", "L3", "0"), "Infinity"),
        ("throttled.json", ("servers", 0), "[]"),
        ("pqos-classes.json", ("names", "numa_a"), "[1]"),
    ],
)
def test_a_wrong_value_is_refused(
    paths: HostPaths, name: str, place: tuple[Any, ...], hostile: str
) -> None:
    good = {"version": VERSIONS[name], **FILES[name]}
    text = json.dumps(_changed(good, place, hostile)).replace('"@"', hostile)
    (paths.state / name).write_text(text)
    assert not loaded(paths, name)


@given(st.binary(max_size=200), st.sampled_from(sorted(FILES)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_bytes_ever_raise(paths: HostPaths, data: bytes, name: str) -> None:
    (paths.state / name).write_bytes(data)
    assert not loaded(paths, name)


def _places(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of every part of a value, its own () included."""
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    return [(), *((key, *below) for key, inner in parts for below in _places(inner))]


def _changed(value: Any, place: tuple[Any, ...], hostile: str | None) -> Any:
    """Return a copy with a mark at one place, or without that part."""
    if not place:
        return "@" if hostile else None
    copy = value.copy()
    if hostile is None and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = _changed(value[place[0]], place[1:], hostile)
    return copy
