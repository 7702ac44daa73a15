# SPDX-License-Identifier: Apache-2.0
"""The run-time loop of the mapping where programs change: the modelled study, and what it counts."""

import random

import pytest

from benchmarks import mapping_phases
from emulation.physics import parameters
from host_agent.conf.mapping import PerformanceMetric
from host_agent.decide.cores.slots import Slot


def test_the_loop_moves_and_gains_where_a_sheep_begins_to_disturb() -> None:
    constants = next(iter(parameters.draws(8, 1)))
    outcome = mapping_phases.one_draw(0, 1, constants)
    for metric in PerformanceMetric:
        assert outcome.moves[metric] > 0
        assert 0.0 < outcome.gain[metric] <= outcome.informed + 0.001


def test_programs_change_and_labels_stay() -> None:
    first, second, third = mapping_phases.draw_phases(random.Random(3))
    assert len(first.servers) - len(third.servers) == 2 * mapping_phases.ENDING
    assert all(first.servers[name] == server for name, server in third.servers.items())
    assert any(second.programs[name] != first.programs[name] for name in second.servers)


def test_pages_follow_at_the_agents_rate_and_none_is_lost() -> None:
    pages = mapping_phases.FollowingPages({"a": Slot((0,), {0: 300, 1: 200})}, budget_mb=100)
    wanted = {"a": Slot((8,), {2: 500})}
    shares = [pages.follow(wanted)["a"].memory_mb for _ in range(6)]
    assert [each.get(2, 0) for each in shares] == [100, 200, 300, 400, 500, 500]
    assert sum(shares[2].values()) == pytest.approx(500)
