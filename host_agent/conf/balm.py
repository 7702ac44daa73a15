# SPDX-License-Identifier: Apache-2.0
"""What the operator decides about the BALM controller, apart from it: reading a configuration loads no more."""

from dataclasses import dataclass, field

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where colours change, as shares of the objective.

    :param yellow: larger is more careful and raises more false alarms
    :param green: larger leaves bandwidth unused, smaller risks a configuration that soon violates again
    """

    yellow: float = 0.05
    green: float = 0.20

    def __post_init__(self) -> None:
        if not 0.0 <= self.yellow < self.green < 1.0:
            value = (self.yellow, self.green)
            raise InvalidValueError("thresholds (yellow, green)", value, "0 <= yellow < green < 1")


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of the controller; [G] marks values of the source.

    :param thresholds: [G] colours
    :param throttle_step: [G] per cent by which a throttle is released at a time
    :param page_step: [G] part of all pages per migration step
    :param max_retries: passes in a row that may end red; one more than this, plus the first, and it gives up
    :param settle_s: time an action needs to show in latencies, seconds
    :param judge_s: requests are collected at least so long after settling before an action is found good, seconds; a
        violation beyond chance is believed at once
    :param heal_s: an action that takes demand away is found insufficient only after so long: queues drain slowly, and
        the source's take up to 0.6 s
    :param throttle_while_moving: a step up that violated is taken back while pages move, and tried again when they have
        arrived; the source leaves the violating level in force for the whole move
    :param foresee: a step up is not taken when the last one, taken again, would violate: latency rises ever faster
    :param bar_s: pages of a server whose move did harm at another node are not moved away again for so long
    :param arrived: pages are where they should be when no node is off by more than this share
    :param stuck_s: a move that makes no progress for so long is given up
    :param noticeable: servers with less of the best-effort traffic at the violated nodes are left alone in the first
        pass, unless none is seen to have more
    :param green_hold_s: the system must be green for so long before bandwidth is given back
    :param green_hold_max_s: longest hold after attempts that had to be undone; each doubles it
    :param reclaim_step: part of all pages that returns at a time
    :param yellow_pause_s: no new search for yellow alone so soon after one that could do no better
    :param effect: an action that changes the worst latency by less than this part is without effect
    :param ignore_s: a server that nothing helped is ignored, or not tried again, for so long
    :param budget_s_per_hour: seconds per hour in which best-effort servers may be throttled while a server is red or
        silent all the same
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    throttle_step: int = 10
    page_step: float = 0.10
    max_retries: int = 3
    settle_s: float = 0.2
    judge_s: float = 0.3
    heal_s: float = 1.0
    throttle_while_moving: bool = True
    foresee: bool = True
    bar_s: float = 60.0
    arrived: float = 0.02
    stuck_s: float = 15.0
    noticeable: float = 0.05
    green_hold_s: float = 5.0
    green_hold_max_s: float = 320.0
    reclaim_step: float = 0.05
    yellow_pause_s: float = 30.0
    effect: float = 0.05
    ignore_s: float = 600.0
    budget_s_per_hour: float = 300.0

    def __post_init__(self) -> None:
        for name in ("page_step", "reclaim_step"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InvalidValueError(name, getattr(self, name), "above 0.0, up to 1.0")
        if self.throttle_step < 1:
            raise InvalidValueError("throttle_step", self.throttle_step, "1 to 100")
