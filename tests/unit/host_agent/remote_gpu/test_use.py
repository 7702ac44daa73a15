# SPDX-License-Identifier: Apache-2.0
"""How busy leases keep their GPUs, by what a transport counts."""

from host_agent.remote_gpu.use import UseMeter


class Metered:
    """A meter of 30 s whose clock is the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.meter = UseMeter(30.0, lambda: self.now_s)

    def notes(self, *busy_s: float | None, every_s: float = 2.0) -> dict[str, float]:
        """Note what is counted, and let time pass before each."""
        for each in busy_s:
            self.now_s += every_s
            self.meter.note("lease", each)
        return {lease: round(share, 3) for lease, share in self.meter.shares().items()}


def test_nothing_is_said_before_a_whole_window_was_seen() -> None:
    metered = Metered()
    assert metered.notes(*(n * 1.0 for n in range(15))) == {}
    assert metered.notes(15.0) == {"lease": 0.5}


def test_the_last_window_counts_and_nothing_before_it() -> None:
    metered = Metered()
    metered.notes(*(n * 2.0 for n in range(100)))
    assert metered.meter.shares() == {"lease": 1.0}
    assert metered.notes(*[198.0] * 7)["lease"] < 0.6
    assert metered.notes(*[198.0] * 8) == {"lease": 0.0}


def test_a_server_that_was_started_again_begins_anew() -> None:
    metered = Metered()
    assert metered.notes(*(100.0 + n for n in range(20))) == {"lease": 0.5}
    assert metered.notes(0.5) == {}
    assert metered.notes(*(0.5 + n * 0.5 for n in range(1, 16))) == {"lease": 0.25}


def test_what_a_transport_cannot_tell_any_more_and_what_has_ended_is_not_known() -> None:
    metered = Metered()
    assert metered.notes(*range(20)) == {"lease": 0.5}
    assert metered.notes(None) == {}
    assert metered.notes(*range(20)) == {"lease": 0.5}
    metered.meter.forget("lease")
    assert metered.meter.shares() == {}


def test_more_than_all_of_the_time_is_all_of_it() -> None:
    """As of a server with several threads, each on a core."""
    assert Metered().notes(*(n * 8.0 for n in range(20))) == {"lease": 1.0}


def test_what_goes_over_a_link_is_counted_over_the_same_window_and_without_a_bound() -> None:
    metered = Metered()
    link = metered.meter.of_link()
    for number in range(30):
        metered.now_s += 2.0
        link.note("lease", number * 100.0)
    assert link.shares() == {"lease": 50.0}
    link.note("lease", None)
    assert link.shares() == {}
