# SPDX-License-Identifier: Apache-2.0
"""What people read of a decision: the host first, the figures that decided, no long lists of equals."""

from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from nova_numa_ext.cli import explain
from nova_numa_ext.cli import explain_command as command

HEAD = {"request": "req-1", "server": "a", "flavor": "lc", "asked": {}}


def weighed(**totals: float) -> dict[str, Any]:
    """An entry as the journal keeps it: best total first."""
    scores = [
        {
            "node": node,
            "score": 0.9,
            "before": total - 0.9,
            "total": total,
            "terms": {"ways": None},
        }
        for node, total in sorted(totals.items(), key=lambda item: -item[1])
    ]
    return {**HEAD, "kind": "weigh", "hosts": len(scores), "scores": scores}


def filtered(candidates: list[dict[str, Any]], kept: int) -> dict[str, Any]:
    host = {
        "node": "h1",
        "reasons": [],
        "nodes": [0],
        "candidates": candidates,
        "candidates_kept": kept,
    }
    view = {"state": "fresh", "age_s": 1.0, "hosts": 1}
    return {
        **HEAD,
        "kind": "filter",
        "alternates": False,
        "problems": [],
        "view": view,
        "hosts": 3,
        "passed": 1,
        "refused": [],
        "picks": [],
        "details": [host],
    }


def told(*entries: dict[str, Any]) -> str:
    [found] = explain.find(entries, "a")
    return explain.text(found)


def test_the_best_host_is_named_and_totals_tell_why() -> None:
    """Best, not chosen: a claim may fail, and nova draws among several with host_subset_size."""
    lines = told(weighed(h2=3.904, h1=4.552)).splitlines()

    assert "best     h1: the highest total of all weighers" in lines
    head, first, second = lines[-3:]
    assert head.split()[-3:] == ["score", "others", "total"]
    assert first.split() == ["h1", "-", "0.900", "3.652", "4.552"]
    assert second.split() == ["h2", "-", "0.900", "3.004", "3.904"]


def test_a_decision_of_an_older_release_without_totals_is_told_without_them() -> None:
    entry = weighed(h1=4.0)
    del entry["scores"][0]["total"]

    text = told(entry)

    assert "best     " not in text
    assert text.split()[-1] == "-"


def test_the_only_host_left_is_the_best_one() -> None:
    assert "best     h1: one host was left, the weigher was not asked" in told(filtered([], 0))


def test_equal_candidates_are_one_line_and_of_many_only_three_are_shown() -> None:
    pairs = [
        {"l3": [number], "loses": f"ways_free={number} (against 0)" if number else None}
        for number in range(8)
        for _ in range(2)
    ]

    lines = told(filtered(pairs, 24)).splitlines()

    assert "    1. L3 0: first (2 alike)" in lines
    assert "    3. L3 2: loses on ways_free=2 (against 0) (2 alike)" in lines
    assert lines[lines.index("    1. L3 0: first (2 alike)") + 3] == "    +18 more"


@pytest.mark.parametrize("words", [["lc1"], ["--flavor", "lc.small"]])
@pytest.mark.parametrize("given", [True, False])
def test_without_credentials_it_says_which_file_is_wanted(
    words: list[str],
    given: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cfg, "find_config_files", lambda *_, **__: [])
    (tmp_path / "nova.conf").write_text("[numa_ext]\n")
    file = [f"--config-file={tmp_path}/nova.conf"] if given else []

    assert command.main([*words, f"--journal={tmp_path}/none", *file]) == 1

    said = capsys.readouterr().err
    assert (f"{tmp_path}/nova.conf holds none" if given else "nova.conf is not there") in said
    assert said.endswith("with --config-file\n")
