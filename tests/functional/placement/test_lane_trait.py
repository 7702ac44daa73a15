# SPDX-License-Identifier: Apache-2.0
"""The trait of a host whose uplinks have lanes, in the real Placement: beside the agent's, and gone with the lanes."""

import pytest

from host_agent.report.lanes import LOOK_S, LaneTrait
from host_agent.util.background import BackgroundTasks
from placement_traits import names
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import TierTrait
from placement_traits.reporter import Reporter

H1 = "h1"


def traits(cloud):
    return set(cloud.client.get(f"/resource_providers/{cloud.root}/traits")["traits"])


class Shown:
    """The trait at a time that goes on by itself alone.

    :param writer: returns what writes it
    """

    def __init__(self, writer):
        self.now_s = 0.0
        self._tasks = BackgroundTasks("test")
        self._trait = LaneTrait(writer, lambda: H1, self._tasks, lambda: self.now_s)

    def show(self, *, has_lanes):
        self._trait.show(has_lanes=has_lanes)
        assert self._tasks.finish(30.0) == 0


def test_it_is_there_as_long_as_lanes_are(reported_compute) -> None:
    cloud = reported_compute
    before = traits(cloud)
    shown = Shown(lambda: Reporter(cloud.connect()))
    shown.show(has_lanes=False)
    assert traits(cloud) == before
    shown.show(has_lanes=True)
    assert traits(cloud) == before | {names.LANES}
    cloud.reporter.sync(cloud.tree)
    assert set(TierTrait) | {names.LANES} <= traits(cloud), "the agent leaves it alone"
    shown.show(has_lanes=False)
    assert traits(cloud) == before


@pytest.mark.parametrize("has_lanes", [True, False])
def test_what_others_make_of_it_is_undone_within_a_minute(reported_compute, has_lanes) -> None:
    """As an agent of an earlier release, for which it is a trait of its own that it does not publish."""
    cloud = reported_compute
    shown = Shown(lambda: Reporter(cloud.connect()))
    shown.show(has_lanes=has_lanes)
    expected = traits(cloud)
    Reporter(cloud.connect()).laned(H1, has_lanes=not has_lanes)
    assert traits(cloud) != expected
    shown.show(has_lanes=has_lanes)
    assert traits(cloud) != expected, "it is not asked for in each turn"
    shown.now_s = LOOK_S
    shown.show(has_lanes=has_lanes)
    assert traits(cloud) == expected


def test_a_look_at_a_trait_that_nobody_has_touched_is_one_request(reported_compute) -> None:
    cloud = reported_compute
    clients = []

    def writer():
        clients.append(cloud.connect())
        return Reporter(clients[-1])

    shown = Shown(writer)
    shown.show(has_lanes=True)
    before = clients[0].counters.requests
    for minute in (1, 2, 3):
        shown.now_s = minute * LOOK_S
        shown.show(has_lanes=True)
    assert [client.counters.requests for client in clients] == [before + 3]


def test_what_placement_has_not_taken_is_tried_again(
    reported_compute, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = reported_compute
    silent = [ServiceUnavailableError("Placement is silent")] * 2

    def writer() -> Reporter:
        if silent:
            raise silent.pop()
        return Reporter(cloud.connect())

    shown = Shown(writer)
    for _ in range(2):
        shown.show(has_lanes=True)
    assert names.LANES not in traits(cloud)
    assert caplog.text.count("Placement is silent") == 1
    shown.show(has_lanes=True)
    assert names.LANES in traits(cloud)
    silent += [ServiceUnavailableError("it was asked without need")]
    shown.show(has_lanes=True)
    assert len(silent) == 1
