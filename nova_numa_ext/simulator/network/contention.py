# SPDX-License-Identifier: Apache-2.0
"""What it costs that applications share a network (Jokanović, equations 2.2 to 2.4, 3.1 and 5.1 to 5.4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from placement_traits.errors import InvalidValueError

_Configuration = TypeVar("_Configuration")


@dataclass(frozen=True, slots=True)
class SharedRun:
    """An application that ran beside others.

    :param hosts: it ran on, >= 1
    :param alone_s: how long it takes on the same hosts alone, above 0
    :param sharing_s: how long it took
    :raises InvalidValueError: a value has no meaning
    """

    hosts: int
    alone_s: float
    sharing_s: float

    def __post_init__(self) -> None:
        if not (self.hosts >= 1 and 0 < self.alone_s < float("inf") and self.sharing_s >= 0):
            raise InvalidValueError(
                "run", (self.hosts, self.alone_s, self.sharing_s), "1 host or more, times above 0"
            )

    @property
    def contention_s(self) -> float:
        """What others have cost it (Eq. 2.2 and 5.1), s; below 0 where it was faster beside them."""
        return self.sharing_s - self.alone_s


def wasted_host_s(runs: Iterable[SharedRun]) -> float:
    """Return what sharing has cost all together, in seconds of a host (Eq. 2.3, J_inter)."""
    return sum(run.hosts * run.contention_s for run in runs)


def effectiveness(without_s: float, with_s: float) -> float:
    """Return how many times less is wasted with a policy than without (Eq. 2.4); above 1 is better.

    :param without_s: what is wasted without it, >= 0
    :param with_s: what is wasted with it, >= 0
    :return: infinite where it leaves nothing; 1 where there was nothing before, either
    :raises InvalidValueError: one of them is below 0, of which a ratio says nothing
    """
    if not (without_s >= 0 and with_s >= 0):
        raise InvalidValueError("wasted host seconds", (without_s, with_s), "0 or more")
    if with_s == 0:
        return 1.0 if without_s == 0 else float("inf")
    return without_s / with_s


def normalised_time(base_s: float, intra_s: float, inter_s: float) -> float:
    """Return how many times as long an application runs as on a crossbar (Eq. 3.1).

    :param base_s: on a crossbar alone, above 0
    :param intra_s: what the network adds while it is alone
    :param inter_s: what others add
    :raises InvalidValueError: there is no base
    """
    if not base_s > 0:
        raise InvalidValueError("time on a crossbar", base_s, "above 0")
    return (base_s + intra_s + inter_s) / base_s


def total_contention_s(runs: Iterable[SharedRun]) -> float:
    """Return what sharing has cost all applications together, each counted once (Eq. 5.2)."""
    return sum(run.contention_s for run in runs)


def wasted_gflop(runs: Sequence[SharedRun], gflops_per_host: float) -> float:
    """Return what was not computed meanwhile (Eq. 5.3).

    The equation has as many hosts for each application; here each has its own.

    :param gflops_per_host: of a host
    """
    return gflops_per_host * wasted_host_s(runs)


def least_contention(found: Mapping[_Configuration, Sequence[SharedRun]]) -> _Configuration:
    """Return the configuration of the network under which sharing costs least (Eq. 5.4), of equal ones the first.

    :raises InvalidValueError: there is none
    """
    if not found:
        raise InvalidValueError("configurations", 0, "1 or more")
    return min(found, key=lambda each: total_contention_s(found[each]))
