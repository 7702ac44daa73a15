# SPDX-License-Identifier: Apache-2.0
"""Jobs that slow each other on uplinks: how fast each runs while it shares them, by the fluid network.

A job computes and communicates in turns; with a share c of communication and a rate r of the network it runs at
1 / ((1 - c) + c / r). Rates are those of all jobs that use links together. No policy is known here: what it sees are
the places of jobs.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from nova_numa_ext.simulator.network.fluid import (
    Pattern,
    Rates,
    alone,
    capacities,
    demands,
    filled,
)
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


@dataclass(frozen=True, slots=True)
class _Sender:
    """A job that uses uplinks.

    :param traffic: what it sends
    :param links: numbers of those that it uses
    :param loads: what it sends over all links at rate 1, in links of a host
    """

    traffic: JobTraffic
    links: Sequence[int]
    loads: Rates


class SharedLinks:
    """The uplinks of a fabric, and the jobs that use them.

    :param fabric: the plan
    :param oversubscription: of its leafs
    """

    def __init__(self, fabric: Fabric, oversubscription: float) -> None:
        self._fabric = fabric
        self._capacity = capacities(fabric, oversubscription)
        links = sorted(self._capacity)
        self._at = {link: at for at, link in enumerate(links)}
        self._room: Rates = np.array([self._capacity[link] for link in links], np.float64)
        self._jobs: dict[int, _Sender] = {}
        self._users: list[set[int]] = [set() for _ in links]
        self._changed: set[int] = set()

    def start(self, job: int, places: Mapping[str, int], traffic: JobTraffic) -> float:
        """A job begins to send.

        :param places: its hosts by leaf, in the order of the fabric
        :return: how fast it would run if it were alone; 1 where it uses no uplink
        """
        sent = demands(self._fabric, places, traffic.pattern)
        if not sent:
            return 1.0
        links = [self._at[link] for link in sent]
        loads = np.zeros(len(self._room))
        loads[links] = [*sent.values()]
        self._jobs[job] = _Sender(traffic, links, loads)
        for link in links:
            self._users[link].add(job)
        self._changed.update(links)
        return traffic.speed(alone(sent, self._capacity))

    def end(self, job: int) -> None:
        """A job sends no more; nothing happens where it never did."""
        if job not in self._jobs:
            return
        links = self._jobs.pop(job).links
        for link in links:
            self._users[link].discard(job)
        self._changed.update(links)

    def speeds(self) -> dict[int, float]:
        """Return how fast jobs run now, of all that others may have slowed or freed since the last call.

        These are the jobs on links that have changed, those that share links with these, and so on.
        """
        found: list[int] = []
        links, seen = self._changed, set[int]()
        known = set[int]()
        while links:
            seen |= links
            new = set[int]().union(*(self._users[link] for link in links)) - known
            known |= new
            found += sorted(new)
            links = set[int]().union(*(self._jobs[job].links for job in new)) - seen
        self._changed = set()
        if not found:
            return {}
        senders = [self._jobs[job] for job in found]
        loads = np.array([sender.loads for sender in senders])
        used = loads.any(axis=0)
        rates = filled(loads[:, used], self._room[used])
        return {
            job: sender.traffic.speed(rate)
            for job, sender, rate in zip(found, senders, rates.tolist(), strict=True)
        }


@cache
def _file() -> Mapping[str, Any]:
    text = resources.files("nova_numa_ext.simulator.network").joinpath("traffic.yaml").read_text()
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found
