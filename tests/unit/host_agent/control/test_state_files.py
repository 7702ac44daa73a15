# SPDX-License-Identifier: Apache-2.0
"""Every state file: one bad value anywhere, and its reader starts without it instead of failing."""

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host_agent.conf.paths import HostPaths
from host_agent.model.modes import Feature
from host_agent.report import published_host
from tests.support.counted_host import Writes, counted_files
from tests.support.state_files import FILES, LEASE, OWNERS, VERSIONS, host_paths, loaded

ROOT = Path(__file__).parents[4]


@pytest.fixture
def paths(tmp_path: Path) -> HostPaths:
    return host_paths(tmp_path)


def test_no_state_file_is_left_out() -> None:
    """A store that is made anywhere in the product has its file here, and is attacked with it."""
    made = Counter(
        str(file.relative_to(ROOT))
        for wing in ("host_agent", "nova_numa_ext", "placement_traits")
        for file in sorted((ROOT / wing).rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and "JsonStore" in _words(call.func)
    )
    listed = Counter(str(Path(str(each.__file__)).relative_to(ROOT)) for each in OWNERS.values())
    assert made == listed
    assert FILES.keys() == VERSIONS.keys() == OWNERS.keys()


def _words(function: ast.expr) -> set[str]:
    """Names in what is called: ``JsonStore``, ``json_store.JsonStore``, ``JsonStore[int]``."""
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return names | {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize(
    "before", ["", '{"version": 1, "host": "old"}', "["], ids=["none", "old", "bad"]
)
def test_kill_9_at_any_write_of_a_file_leaves_what_was_there_or_the_new_content(
    tmp_path: Path, before: str
) -> None:
    """Of all files, also of those that no round of :mod:`tests.unit.host_agent.control.test_faults` writes."""
    writes, last, killed = Writes(), 0, True
    while killed:
        file = tmp_path / f"{last}.json"
        if before:
            file.write_text(before)
        store = published_host.store(file)
        found = store.load()
        with pytest.MonkeyPatch.context() as patch:
            counted_files(writes, patch)
            with writes.kill_after(last):
                store.save("new")
        killed = writes.done == last
        assert published_host.store(file).load() in ((found, "new") if killed else ("new",)), last
        last += 1
    assert last > 3


@pytest.mark.parametrize("name", FILES)
def test_a_good_file_is_used(paths: HostPaths, name: str) -> None:
    (paths.state / name).write_text(json.dumps({"version": VERSIONS[name], **FILES[name]}))
    assert loaded(paths, name)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("state.json", {"homes": {"a": [0, 1]}}),
        (
            "rollout.json",
            {
                "switch": "enforce",
                "modes": dict.fromkeys(map(str, Feature), "observe"),
                "waiting": ["a", "b"],
            },
        ),
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
        ("dead-man-switch.json", ("fired",), "-1"),
        ("epochs.json", ("epochs", LEASE), "0"),
        ("epochs.json", ("given", LEASE), "Infinity"),
        ("answer.json", ("serves", 0, "id"), '"../../x"'),
        ("answer.json", ("ends", 0, "epoch"), "0"),
        ("mark.json", ("mark",), "1.5"),
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
