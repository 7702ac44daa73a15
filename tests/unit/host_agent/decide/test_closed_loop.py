# SPDX-License-Identifier: Apache-2.0
"""The controllers closed over the host model: search, page plans and mapping together, without a host."""

import random
from dataclasses import replace

import pytest

from benchmarks.bench_mapping import one_draw
from emulation.physics.model import Guest, HostModel, Signals
from emulation.physics.parameters import frozen
from emulation.physics.programs import MAPPING_MIX, WORKLOADS
from host_agent.conf.bwap import BwapOptions
from host_agent.decide.pages import bwap
from host_agent.decide.pages.weights import canonical_weights, dwp_weights, uniform
from host_agent.model.pages import Run, plan_moves, share_error
from placement_traits.presets import load
from tests.support.runs import resident_shares

OPTERON = load("opteron-6272-8-nodes").topology
MB2 = 2 * 1024 * 1024


class SpreadGuest:
    """A guest on node 0 whose 512 huge pages are really moved, one by one."""

    def __init__(self, program: str) -> None:
        self.model = HostModel(OPTERON, frozen())
        self.program = WORKLOADS[program]
        self.runs = [Run(0, MB2, 512, 0)]
        self.moved = 0

    def measure(self, pages: dict[int, float] | None = None) -> Signals:
        shares = pages or resident_shares(self.runs)
        guest = Guest("g", self.program, OPTERON.cpus_of_node(0), shares)
        return self.model.measure([guest])["g"]

    def move_to(self, shares: dict[int, float]) -> None:
        plan = plan_moves(self.runs, shares)
        node_of = {
            a: run.node for run in self.runs for a in range(run.start, run.start + run.bytes, MB2)
        }
        for move in plan.moves:
            node_of |= dict.fromkeys(move.addresses, move.target)
            self.moved += move.bytes
        self.runs = [Run(address, MB2, 1, node) for address, node in sorted(node_of.items())]

    def search(self, noise: float) -> bwap.BwapSearch:
        chance = random.Random(7)
        nodes = OPTERON.node_ids
        bandwidth = {
            n: {0: self.measure({**dict.fromkeys(nodes, 0.0), n: 1.0}).total_mbps} for n in nodes
        }
        state = bwap.BwapSearch(canonical_weights(bandwidth, [0]), frozenset({0}))
        settings = replace(BwapOptions(), samples=8, drop=2)
        for tick in range(600):
            if state.desired is not None:
                self.move_to(state.desired)
            seen = self.measure()
            placed = share_error(resident_shares(self.runs), state.desired or {}) < 0.01
            observation = bwap.SearchSample(
                0.2 * (tick + 1),
                placed=placed,
                stall_rate=seen.stall_rate * chance.gauss(1, noise),
                mapi=seen.mpi * chance.gauss(1, noise),
            )
            state, _ = bwap.decide(observation, state, settings)
            if state.phase is bwap.BwapPhase.FOUND and state.desired is not None:
                self.move_to(state.desired)
                return state
        raise AssertionError("the search did not end")


@pytest.mark.parametrize("program", ["oc", "sc"])
def test_f_004_19_modelled_bwap_is_near_the_best_of_its_family_and_beats_the_uniform_policies(
    program: str,
) -> None:
    guest = SpreadGuest(program)
    state = guest.search(noise=0.02)
    found = guest.measure().progress
    family = [dwp_weights(state.canonical, {0}, step / 20) for step in range(21)]
    assert found >= 0.93 * max(guest.measure(shares).progress for shares in family)
    assert found >= 1.15 * guest.measure({0: 1.0}).progress
    assert found >= 1.15 * guest.measure(uniform(OPTERON.node_ids)).progress


def test_f_001_11_mapping_beats_vanilla_for_all_programs_and_overbooks_nothing() -> None:
    draw = one_draw(0, 11, frozen())
    assert draw.overbooked == 0
    assert draw.overbooked_vanilla == 0, "a fair rival takes the idlest core"
    for variant in ("sm_ipc", "sm_mpi"):
        assert all(draw.ratios[variant][program] > 1.0 for program in MAPPING_MIX)
    assert draw.cv["sm_ipc"] < 0.01 < draw.cv["vanilla"]
