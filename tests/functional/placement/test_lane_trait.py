# SPDX-License-Identifier: Apache-2.0
"""The trait of a host whose uplinks have lanes, in the real Placement: beside the agent's, and gone with the lanes."""

import pytest

from host_agent.report.lanes import LaneTrait
from placement_traits import names
from placement_traits.errors import ServiceUnavailableError
from placement_traits.names import TierTrait
from placement_traits.reporter import Reporter

H1 = "h1"


def traits(cloud):
    return set(cloud.client.get(f"/resource_providers/{cloud.root}/traits")["traits"])


def test_it_is_there_as_long_as_lanes_are(reported_compute) -> None:
    cloud = reported_compute
    before = traits(cloud)
    trait = LaneTrait(lambda: Reporter(cloud.connect()), lambda: H1)
    trait.show(has_lanes=False)
    assert traits(cloud) == before
    trait.show(has_lanes=True)
    assert traits(cloud) == before | {names.LANES}
    cloud.reporter.sync(cloud.tree)
    assert set(TierTrait) | {names.LANES} <= traits(cloud), "the agent leaves it alone"
    trait.show(has_lanes=False)
    assert traits(cloud) == before


def test_what_placement_has_not_taken_is_tried_again(
    reported_compute, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = reported_compute
    silent = [ServiceUnavailableError("Placement is silent")] * 2

    def writer() -> Reporter:
        if silent:
            raise silent.pop()
        return Reporter(cloud.connect())

    trait = LaneTrait(writer, lambda: H1)
    for _ in range(2):
        trait.show(has_lanes=True)
    assert names.LANES not in traits(cloud)
    assert caplog.text.count("Placement is silent") == 1
    trait.show(has_lanes=True)
    assert names.LANES in traits(cloud)
    silent += [ServiceUnavailableError("it was asked without need")]
    trait.show(has_lanes=True)
    assert len(silent) == 1
