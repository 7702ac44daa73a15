# SPDX-License-Identifier: Apache-2.0
"""Shares of the long tests: each test in one of them, none too long, all in turn."""

import itertools
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import budget, conftest, long
from tests.long import Long, commands, cut, fill, seconds

ROOT = Path(__file__).parents[2]
LIMITS = budget.load()["shares"]
tests_of = st.lists(st.integers(1, 300), min_size=1, max_size=30).map(
    lambda found: tuple(Long(f"test_{number}", took) for number, took in enumerate(found))
)


def joined(shares: tuple[long.Share, ...]) -> long.Share:
    return tuple(one for share in shares for one in share)


@given(tests_of, st.integers(1, 40))
def test_every_test_is_in_exactly_one_share_for_any_number_of_them(
    tests: long.Share, count: int
) -> None:
    shares = cut(tests, count)
    assert len(shares) == count
    assert joined(shares) == tests


@given(tests_of, st.integers(300, 900))
def test_shares_keep_within_a_limit_and_no_two_neighbours_would_fit_into_one(
    tests: long.Share, limit_s: int
) -> None:
    shares = fill(tests, limit_s)
    assert joined(shares) == tests
    assert max(map(seconds, shares)) <= limit_s
    assert all(seconds(a) + b[0].seconds > limit_s for a, b in itertools.pairwise(shares))


@given(tests_of.map(lambda tests: tests[:7]), st.integers(1, 4))
def test_the_longest_share_is_as_short_as_any_cut_into_consecutive_ones_allows(
    tests: long.Share, count: int
) -> None:
    inner = itertools.combinations_with_replacement(range(len(tests) + 1), count - 1)
    longest = [
        max(seconds(tests[a:b]) for a, b in itertools.pairwise((0, *ends, len(tests))))
        for ends in inner
    ]
    assert max(map(seconds, cut(tests, count))) == min(longest)


def test_a_test_over_the_limit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="test_b takes 61 s, a share 60 s"):
        fill((Long("test_a", 60), Long("test_b", 61)), 60)


@pytest.mark.parametrize(("rotating", "limit"), [(True, "rotating_s"), (False, "long_s")])
def test_shares_of_our_long_tests_keep_their_limit(rotating: bool, limit: str) -> None:
    """Issue 4: 75 minutes a share of ``make test-long``, 3 the share of ``make test``."""
    enough = len(fill(tuple(t for t in long.load() if t.seconds <= LIMITS[limit]), LIMITS[limit]))
    for number in range(1, enough + 1):
        _, share = long.chosen((number, enough), rotating=rotating)
        assert 0 < seconds(share) <= LIMITS[limit]
    assert LIMITS[limit] <= {True: 180, False: 75 * 60}[rotating]


def test_as_many_commits_as_there_are_shares_run_all_short_long_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = tuple(one for one in long.load() if one.seconds <= LIMITS["rotating_s"])
    count = len(fill(short, LIMITS["rotating_s"]))
    found = []
    for commit in range(479, 479 + count):
        monkeypatch.setattr(long, "commits", lambda commit=commit: commit)
        found += long.chosen(None, rotating=True)[1]
    assert sorted(found, key=str) == sorted(short, key=str)


def test_what_is_told_repeats_the_share_at_another_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long, "commits", lambda: 1)
    told, share = long.chosen(None, rotating=True)
    (again,) = re.findall(r"make test-rotating SHARD=(\S+)", told)
    monkeypatch.setattr(long, "commits", lambda: 2)
    assert long.chosen(None, rotating=True)[1] != share
    assert long.chosen(long.numbered(again), rotating=True)[1] == share


def test_shares_that_take_too_long_are_refused_with_a_number_that_does_not() -> None:
    with pytest.raises(ValueError, match="N must be") as refused:
        long.chosen((1, 2), rotating=False)
    enough = int(str(refused.value).split()[-3])
    long.chosen((1, enough), rotating=False)


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "a/b", "1/0", "-1/3"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(long.argparse.ArgumentTypeError, match="wanted: i/N"):
        long.numbered(text)


def test_nova_has_a_process_of_its_own_and_the_lab_comes_up_when_it_is_needed() -> None:
    nova, pure = Long("tests/in_nova/t.py::a", 60), Long("tests/unit/t.py::b", 300)
    lab = Long("tests/integration/t.py::c", 90)
    started = [words[-1] for words in commands((lab, nova, pure))]
    assert started == [pure.test, "up", lab.test, nova.test]
    assert [words[-1] for words in commands((pure,))] == [pure.test]
    assert "timeout=1200" in commands((pure,))[0]
    assert "timeout=600" in commands((nova,))[0]


def test_every_line_names_a_test_that_is_there() -> None:
    """The other way round pytest refuses a test marked long that has no line."""
    for one in long.load():
        path, *_, name = one.test.split("::")
        source = (ROOT / path).read_text()
        assert f"def {name.partition('[')[0]}(" in source, one.test
        assert "mark.long" in source


@pytest.mark.parametrize("asked", [False, True])
def test_a_test_marked_long_without_a_line_is_refused(asked: bool) -> None:
    config = SimpleNamespace(getoption=lambda _name: asked)
    new = SimpleNamespace(nodeid="tests/unit/t.py::new", get_closest_marker=lambda _name: True)
    with pytest.raises(pytest.UsageError, match=r"does not say how long .*tests/unit/t.py::new"):
        conftest.pytest_collection_modifyitems(config, [new])


def test_commits_are_counted_in_a_shallow_clone_and_outside_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path / "whole")]
    subprocess.run(["git", "init", "-q", str(tmp_path / "whole")], check=True)
    for _ in range(3):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    shallow = ["git", "clone", "-q", "--depth", "1", f"file://{tmp_path}/whole", f"{tmp_path}/one"]
    subprocess.run(shallow, check=True)
    counts = {}
    for name in ("whole", "one", ""):
        monkeypatch.setattr(long, "ROOT", tmp_path / name)
        counts[name] = long.commits()
    assert counts == {"whole": 3, "one": 1, "": 0}
