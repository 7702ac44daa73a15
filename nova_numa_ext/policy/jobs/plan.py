# SPDX-License-Identifier: Apache-2.0
"""What a planner answers about a job: places for it, a reason to wait, or that it can never run here."""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Servers of one part on one host.

    :param part: name of the part
    :param host: root provider of the host
    :param count: servers of the part on it
    """

    part: str
    host: str
    count: int


@dataclass(frozen=True, slots=True)
class ProviderAmount:
    """What must be claimed of a provider of ours, under a consumer of ours, before servers are made.

    :param provider: its uuid
    :param resource_class: one of our own classes; nova claims its own
    :param amount: how much
    """

    provider: str
    resource_class: str
    amount: int


PlaceT = TypeVar("PlaceT")


@dataclass(frozen=True, slots=True)
class Plan(Generic[PlaceT]):
    """Places for all parts of a job.

    :param places: where its servers run; in the service :class:`HostPlace`, coarse: nova's filters decide
    :param utility: how good its GPUs are there, in [0, 1], of the worst part; 1 where it asks for none
    :param claims: what our own consumers hold for it; empty where nova claims all
    :param reasons: why these places
    :param spare: places that come after them where nova refuses one: nothing is held there
    """

    places: tuple[PlaceT, ...]
    utility: float = 1.0
    claims: tuple[ProviderAmount, ...] = ()
    reasons: tuple[Reason, ...] = ()
    spare: tuple[PlaceT, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """No place now.

    :param reasons: why; never empty
    :param until: when it may be worth while to ask again, even if nothing else changes; None when that is not known
    :param postponed: there is a place, but the job waits for a better one
    """

    reasons: tuple[Reason, ...]
    until: float | None = None
    postponed: bool = False


@dataclass(frozen=True, slots=True)
class Never:
    """No place, even if all other jobs and servers were gone.

    :param reasons: why; never empty
    """

    reasons: tuple[Reason, ...]


Outcome: TypeAlias = Plan[PlaceT] | Wait | Never
