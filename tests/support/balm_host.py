# SPDX-License-Identifier: Apache-2.0
"""A host for BALM that is only arithmetic: latencies follow from levels and shares at once, pages move at a rate."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from host_agent.conf.slo import BalmOptions
from host_agent.decide.slo import balm
from host_agent.decide.slo.shapes import BalmDecision, BalmState, BeServer, BeTarget, Event, SloView
from host_agent.model.latency import LatencyReading, LcServer
from host_agent.model.traffic import Traffic

SLO_US = 1000.0
OURS = BalmOptions()
LEVELS = tuple(range(10, 101, 10))

Shares = Mapping[int, float]
Ratios = Mapping[str, float | None]
"""LC server -> latency over objective; None: it says nothing."""

Plant = Callable[[Mapping[str, "Be"]], Ratios]


@dataclass(frozen=True)
class Be:
    """A best-effort server and what is in force for it."""

    node: int
    shares: Shares
    preferred: Shares
    level: int = 100
    mbps: float = 20_000.0
    movable: bool = True
    room: Shares = field(default_factory=dict)
    group: str = ""

    def local(self, node: int) -> float:
        """Share of its pages on a node."""
        return self.shares.get(node, 0.0)


def be(node: int, local: float, *, mbps: float = 20_000.0, **more: object) -> Be:
    """A server on one of two sockets with that share of its pages at home."""
    shares = {node: local, 1 - node: round(1.0 - local, 6)}
    shares = {n: s for n, s in shares.items() if s > 0}
    return replace(Be(node, shares, shares, mbps=mbps), **more)  # type: ignore[arg-type]


class Host:
    """Runs the controller against a plant.

    :param lcs: LC server -> its node
    :param bes: best-effort servers by name
    :param plant: latencies from what is in force
    :param pages_per_s: part of a server's pages that the mover moves per second
    :param declared_mbps: LC server -> bandwidth that its flavor declares, MB/s
    :param capacity_mbps: bandwidth of each node, MB/s; None: not known
    """

    def __init__(
        self,
        lcs: Mapping[str, int],
        bes: Mapping[str, Be],
        plant: Plant,
        options: BalmOptions = OURS,
        *,
        levels: tuple[int, ...] = LEVELS,
        nodes: tuple[int, ...] = (0, 1),
        pages_per_s: float = 0.5,
        poll_s: float = 0.1,
        declared_mbps: Mapping[str, float] | None = None,
        capacity_mbps: float | None = None,
    ) -> None:
        self.lcs, self.bes, self.plant, self.options = dict(lcs), dict(bes), plant, options
        self.levels, self.nodes = levels, nodes
        self.pages_per_s, self.poll_s = pages_per_s, poll_s
        self.declared_mbps = declared_mbps or {}
        self.capacity_mbps = {} if capacity_mbps is None else dict.fromkeys(nodes, capacity_mbps)
        self.state, self.now = BalmState(), 0.0
        self.events: list[Event] = []
        self.changes: list[tuple[str, BeTarget]] = []
        self.red_s = 0.0

    def spent_s(self, lc: str) -> float:
        """What is charged to a server's account."""
        return self.options.budget_s_per_hour * self.state.taken.spent(lc, self.now)

    @property
    def trace(self) -> list[tuple[int, float]]:
        """(level, share at home) after each change, of all servers."""
        return [
            (
                target.level,
                round((target.shares or self.bes[uuid].preferred).get(self.bes[uuid].node, 0.0), 3),
            )
            for uuid, target in self.changes
        ]

    def end(self, uuid: str) -> tuple[float, int]:
        """(share at home, level) in force."""
        found = self.bes[uuid]
        return round(found.local(found.node), 3), found.level

    def ratios(self) -> Ratios:
        """Latencies over objectives now."""
        return {lc: ratio for lc, ratio in self.plant(self.bes).items() if lc in self.lcs}

    def observe(self) -> SloView:
        """What the controller sees."""
        fresh = self.now > self.state.judge_from_s
        readings = {
            lc: LatencyReading(
                ratio * SLO_US if ratio is not None and fresh else None,
                1000,
                0 if ratio is None or ratio <= 1.0 else 1000,
                self.state.judge_from_s,
            )
            for lc, ratio in self.ratios().items()
        }
        return SloView(
            tuple(
                LcServer(
                    lc,
                    frozenset({node}),
                    SLO_US,
                    readings[lc],
                    declared_mbps=self.declared_mbps.get(lc, 0.0),
                )
                for lc, node in self.lcs.items()
            ),
            tuple(self._seen(uuid, found) for uuid, found in self.bes.items()),
            self.nodes,
            self.levels,
            self.capacity_mbps,
        )

    @staticmethod
    def _seen(uuid: str, found: Be) -> BeServer:
        total = found.mbps * found.level / 100
        traffic = Traffic(total * found.local(found.node), total)
        return BeServer(
            uuid,
            frozenset({found.node}),
            found.shares,
            found.preferred,
            found.level,
            traffic,
            found.movable,
            found.room,
            group=found.group,
        )

    def poll(self) -> BalmDecision:
        """One poll: pages move on, the controller decides, the actuators obey."""
        self.now = round(self.now + self.poll_s, 6)
        if any(ratio is not None and ratio > 1.0 for ratio in self.ratios().values()):
            self.red_s += self.poll_s
        decision = balm.decide(self.observe(), self.state, self.options, self.now)
        self.state = decision.state
        self.events.extend(decision.events)
        for uuid, target in decision.changes.items():
            self.changes.append((uuid, target))
            self.bes[uuid] = replace(self.bes[uuid], level=target.level)
        self._move_pages()
        return decision

    def _move_pages(self) -> None:
        for uuid, found in self.bes.items():
            target = self.state.targets[uuid].shares
            goal = found.preferred if target is None else target
            gap = {n: goal.get(n, 0.0) - found.local(n) for n in {*goal, *found.shares}}
            left = sum(value for value in gap.values() if value > 0)
            part = min(1.0, self.pages_per_s * self.poll_s / left) if left > 1e-9 else 1.0
            shares = {n: found.local(n) + part * value for n, value in gap.items()}
            kept = goal if part == 1.0 else {n: s for n, s in shares.items() if s > 0}
            self.bes[uuid] = replace(found, shares=dict(kept))

    def run(self, seconds: float) -> "Host":
        """Poll for so long."""
        for _ in range(round(seconds / self.poll_s)):
            self.poll()
        return self

    def settle(self, seconds: float = 300.0) -> "Host":
        """Poll until a search has begun and ended, at most so long."""
        begun = False
        for _ in range(round(seconds / self.poll_s)):
            self.poll()
            begun = begun or self.state.search is not None
            if begun and self.state.phase == "watch":
                return self
        raise AssertionError(f"no end after {seconds} s: {self.state}")
