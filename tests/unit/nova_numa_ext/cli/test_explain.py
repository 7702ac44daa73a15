# SPDX-License-Identifier: Apache-2.0
"""What people read of a decision: the host first, the figures that decided, no long lists of equals."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from nova_numa_ext.cli import explain
from nova_numa_ext.cli import explain_command as command

HEAD = {
    "request": "req-1",
    "server": "a",
    "flavor": "lc",
    "asked": {},
    "time": 86400.0,
    "controller": "ctl1",
}


def weighed(**totals: float) -> dict[str, Any]:
    """An entry as the journal keeps it: best total first."""
    scores = [
        {
            "host": node,
            "node": node,
            "score": 0.9,
            "before": total - 0.9,
            "total": total,
            "terms": {"ways": None},
        }
        for node, total in sorted(totals.items(), key=lambda item: -item[1])
    ]
    return {**HEAD, "kind": "weigh", "hosts": len(scores), "scores": scores}


def filtered(
    candidates: list[dict[str, Any]], judged: int, left: int | None = None
) -> dict[str, Any]:
    host = {
        "host": "h1",
        "node": "h1",
        "reasons": [],
        "nodes": [0],
        "candidates": candidates,
        "candidates_judged": judged,
        "candidates_left": judged if left is None else left,
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


@pytest.mark.parametrize("kind", ["filter", "weigh", "fault"])
def test_an_entry_that_this_release_does_not_know_is_one_sentence(kind: str) -> None:
    with pytest.raises(explain.UnknownFormError) as caught:
        told({**HEAD, "kind": kind})
    sentence = str(caught.value)
    assert sentence.startswith("the decision about server a has a form that this release does not")
    assert sentence.isprintable()


@pytest.mark.parametrize("odd", [{"kind": 1}, {"request": ["req-1"]}, {"time": "1"}, {}])
def test_what_is_no_entry_of_a_decision_is_passed_over(odd: dict[str, Any]) -> None:
    entry = {**weighed(h1=4.0), **odd}
    if not odd:
        del entry["request"]
    assert explain.find([entry, {"server": "a"}], "a") == []


def test_the_only_host_left_is_the_best_one() -> None:
    assert "best     h1: one host was left, the weigher was not asked" in told(filtered([], 0))


def test_where_the_servers_of_a_group_go_and_why_there() -> None:
    group = {
        "id": "g1",
        "leafs": {"l000": 16, "l001": 16},
        "spares": 4,
        "claimed": True,
        "reasons": ["leafs chosen by vnb", "leafs: 2, at least needed: 2"],
    }
    lines = told({**filtered([], 0), "group": group}).splitlines()
    at = lines.index(
        "group    g1: servers by leaf: l000 16, l001 16; 4 spare hosts; its leafs are held for it from now on"
    )
    assert lines[at + 1] == "         leafs chosen by vnb; leafs: 2, at least needed: 2"
    last = {**group, "leafs": {}, "claimed": False, "reasons": []}
    text = told({**filtered([], 0), "group": last})
    assert "g1: servers by leaf: none; 4 spare hosts; nothing more is held for it" in text


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


def test_how_many_candidates_nova_was_left_with_is_told() -> None:
    assert "  h1: NUMA node 0 expected, 12 candidates" in told(filtered([], 12)).splitlines()
    cut = told(filtered([], 12, 1)).splitlines()
    assert "  h1: NUMA node 0 expected, 12 candidates, 1 left for nova" in cut


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


SERVER = "11111111-1111-1111-1111-111111111111"


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def decision(controller: str, at: float, best: str) -> list[dict[str, Any]]:
    """What one controller notes of one server."""
    who = {"controller": controller, "server": SERVER}
    return [
        {**filtered([], 0), **who, "time": at, "passed": 2},
        {**weighed(**{best: 4.0}), **who, "time": at + 0.01},
    ]


def explained(capsys: pytest.CaptureFixture[str], *sources: Path | str) -> list[str]:
    """First lines of the explanations that are printed."""
    words = [word for source in sources for word in ("--journal", str(source))]
    assert command.main([SERVER, *words, "--config-file", os.devnull]) == 0
    return [
        line.split(maxsplit=3)[3]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("decided")
    ]


def test_the_decisions_of_all_controllers_are_told_in_order_each_with_its_controller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nova sent the create to one scheduler and the resize to another; their journals were collected."""
    create, resize = decision("ctl2", 100.0, "h1"), decision("ctl1", 200.0, "h2")
    first = write(tmp_path / "all/ctl1/decisions.jsonl", *resize)
    # The older half of ctl2's journal was rotated between the two entries.
    second = write(tmp_path / "all/ctl2/decisions.jsonl", create[1])
    write(tmp_path / "all/ctl2/decisions.jsonl.1", create[0])
    both = ["UTC on controller ctl2", "UTC on controller ctl1"]

    assert explained(capsys, tmp_path / "all") == both
    assert explained(capsys, first, second) == both
    assert explained(capsys, tmp_path / "all", first) == both, "what is read twice counts once"
    piped = "".join(json.dumps(entry) + "\n" for entry in (*create, *resize))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped.encode())))
    assert explained(capsys, "-") == both


def test_two_controllers_that_decide_at_once_are_not_mixed_up() -> None:
    one, other = decision("ctl1", 100.0, "h1"), decision("ctl2", 100.001, "h2")
    found = explain.find([one[0], other[0], one[1], other[1]], SERVER)
    assert [(each.filter, each.weigh) for each in found] == [tuple(one), tuple(other)]


def test_a_folder_without_a_journal_and_a_file_that_may_not_be_read_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    unreadable = tmp_path / "a.jsonl" / "b"
    unreadable.parent.write_text("")
    for source, words in ((tmp_path / "empty", "there is no journal"), (unreadable, "b'")):
        assert command.main([SERVER, f"--journal={source}", f"--config-file={os.devnull}"]) == 1
        assert words in capsys.readouterr().err


def test_controllers_may_write_into_one_folder_each_a_file_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """nova fills in ``$host``; so does the command."""
    write(tmp_path / "ctl7/decisions.jsonl", *decision("ctl7", 100.0, "h1"))
    conf = tmp_path / "nova.conf"
    conf.write_text(
        f"[DEFAULT]\nhost = ctl7\n[numa_ext]\njournal_path = {tmp_path}/$host/decisions.jsonl\n"
    )
    assert command.main([SERVER, f"--config-file={conf}"]) == 0
    assert "on controller ctl7" in capsys.readouterr().out
