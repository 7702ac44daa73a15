# SPDX-License-Identifier: Apache-2.0
"""Logs that are drawn, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.simulator.network import mixes, swf
from nova_numa_ext.simulator.network.mixes import LoggedJob
from placement_traits.errors import InvalidValueError

HOSTS = 3096


@pytest.mark.parametrize("name", ["c1", "c2", "c3", "c4", "p0"])
def test_a_mix_draws_the_same_log_again_with_its_load_and_shares(name: str) -> None:
    mix = mixes.mixes()[name]
    jobs = mixes.draw(mix, 20_000, HOSTS, 1)
    assert jobs == mixes.draw(mix, 20_000, HOSTS, 1)
    assert jobs != mixes.draw(mix, 20_000, HOSTS, 2)
    assert [each.number for each in jobs] == [*range(1, 20_001)]
    times = [each.submitted_at for each in jobs]
    assert times == sorted(times)
    small = sum(each.hosts <= 18 for each in jobs) / len(jobs)
    assert small == pytest.approx(mix.small, abs=0.01)
    assert max(each.runs_s for each in jobs) <= mix.longest_s
    assert {each.hosts for each in jobs} <= {*range(1, 513)}
    busy = sum(each.hosts * each.runs_s for each in jobs) / (HOSTS * times[-1])
    assert 0.7 * mix.load < busy <= 1.02 * mix.load, "the longest jobs are cut"


def test_a_job_is_never_larger_than_the_fabric() -> None:
    jobs = mixes.draw(mixes.mixes()["p0"], 500, 20, 1)
    assert max(each.hosts for each in jobs) == 20
    for count, hosts in ((0, 20), (1, 17)):
        with pytest.raises(InvalidValueError, match="jobs and hosts"):
            mixes.draw(mixes.mixes()["p0"], count, hosts, 1)


LOG = """\
; Version: 2.2
; MaxProcs: 128

    3   60   10  100   16 -1 -1   16  200 -1 1 1 1 -1 1 -1 -1 -1
    1    0    0   50   -1 -1 -1    9   60 -1 1 1 1 -1 1 -1 -1 -1  ; had as many as it asked for
    2    5   -1   -1    8 -1 -1    8   60 -1 0 1 1 -1 1 -1 -1 -1
"""


def test_a_log_of_the_archive_is_read() -> None:
    jobs = swf.read(LOG, "log.swf", processors_per_host=4)
    assert jobs == (LoggedJob(1, 0.0, 50.0, 3), LoggedJob(3, 60.0, 100.0, 4))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 4096), st.integers(0, 99)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_is_written_is_read_again(drawn: list[tuple[int, int, int, int]]) -> None:
    jobs = [
        (
            LoggedJob(number, float(at), float(runs), hosts),
            float(at + waits),
            float(at + waits + runs),
        )
        for number, (at, runs, hosts, waits) in enumerate(drawn, start=1)
    ]
    text = "\n".join(swf.written(jobs, 4096))
    found = swf.read(text, "log.swf")
    assert found == tuple(
        sorted((job for job, *_ in jobs), key=lambda job: (job.submitted_at, job.number))
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 2 3", "line 1.*3 fields"),
        (" ".join(["x"] * 18), "line 1.*x"),
        (" ".join(["nan"] * 18), "numbers"),
        (" ".join(["1" * 30] * 18), "numbers of 18 signs"),
        ("; only a comment", "no job that ran"),
        ("\n".join([" ".join(["1"] * 18)] * 2), "each once"),
    ],
)
def test_another_form_is_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        swf.read(text, "log.swf")
