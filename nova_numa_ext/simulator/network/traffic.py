# SPDX-License-Identifier: Apache-2.0
"""Jobs that slow each other on uplinks: how fast each runs while it shares them, by the fluid network.

A job computes and communicates in turns; with a share c of communication and a rate r of the network it runs at
1 / ((1 - c) + c / r). Rates are those of all jobs that use links together. No policy is known here: what it sees are
the places of jobs.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from nova_numa_ext.simulator.network.fluid import Pattern, capacities, demands, max_min
from placement_traits.fabric import Fabric


@dataclass(frozen=True, slots=True)
class JobTraffic:
    """What a job sends.

    :param pattern: who sends to whom
    :param communication: share of its run time while nothing slows it, in [0, 1]
    """

    pattern: Pattern
    communication: float

    def speed(self, rate: float) -> float:
        """Return how fast the job runs.

        :param rate: that the network gives it, in (0, 1]
        :return: 1: as fast as if nothing slowed it
        """
        return 1.0 / ((1.0 - self.communication) + self.communication / rate)


def drawn(seed: int, number: int) -> JobTraffic:
    """Return what a job of a log sends, by ``traffic.yaml``.

    :param seed: of the log
    :param number: of the job
    """
    found = _file()
    chance = random.Random(f"{seed} {number}")
    patterns: Mapping[str, float] = found["patterns"]
    (pattern,) = chance.choices([*patterns], [*patterns.values()])
    return JobTraffic(Pattern(pattern), chance.choice(found["communication"]))


class SharedLinks:
    """The uplinks of a fabric, and the jobs that use them.

    :param fabric: the plan
    :param oversubscription: of its leafs
    """

    def __init__(self, fabric: Fabric, oversubscription: float) -> None:
        self._fabric = fabric
        self._capacity = capacities(fabric, oversubscription)
        self._jobs: dict[int, tuple[JobTraffic, Mapping[str, float]]] = {}
        self._users: dict[str, set[int]] = {}
        self._changed: set[str] = set()

    def start(self, job: int, places: Mapping[str, int], traffic: JobTraffic) -> float:
        """A job begins to send.

        :param places: its hosts by leaf, in the order of the fabric
        :return: how fast it would run if it were alone; 1 where it uses no uplink
        """
        sent = demands(self._fabric, places, traffic.pattern)
        if not sent:
            return 1.0
        self._jobs[job] = traffic, sent
        for link in sent:
            self._users.setdefault(link, set()).add(job)
        self._changed.update(sent)
        return traffic.speed(float(max_min([sent], self._capacity)[0]))

    def end(self, job: int) -> None:
        """A job sends no more; nothing happens where it never did."""
        if job not in self._jobs:
            return
        _, sent = self._jobs.pop(job)
        for link in sent:
            self._users[link].discard(job)
        self._changed.update(sent)

    def speeds(self) -> dict[int, float]:
        """Return how fast jobs run now, of all that others may have slowed or freed since the last call.

        These are the jobs on links that have changed, those that share links with these, and so on.
        """
        found: list[int] = []
        links, seen = self._changed, set[str]()
        known = set[int]()
        while links:
            seen |= links
            new = {job for link in links for job in self._users.get(link, ())} - known
            known |= new
            found += sorted(new)
            links = {link for job in new for link in self._jobs[job][1]} - seen
        self._changed = set()
        rates = max_min([self._jobs[job][1] for job in found], self._capacity)
        return {
            job: self._jobs[job][0].speed(float(rate))
            for job, rate in zip(found, rates, strict=True)
        }


@cache
def _file() -> Mapping[str, Any]:
    text = resources.files("nova_numa_ext.simulator.network").joinpath("traffic.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found
