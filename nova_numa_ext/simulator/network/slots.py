# SPDX-License-Identifier: Apache-2.0
"""Two applications that take turns on one channel, slot by slot (Jokanović, section 5.1.2, figures 5.3 to 5.5).

In a slot an application computes, sends one packet, or stalls because the other one sends. An iteration is some slots
of sending, then some of computing. Who may send is decided by a weighted round robin: it goes on with the same
application while that has credit left, else to the next one that wants to send, whose credit is its weight.
"""

from dataclasses import dataclass
from typing import Final

from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class SlotApplication:
    """An application in slots.

    :param sends: slots of sending in an iteration, >= 1
    :param computes: slots of computing after them, >= 1
    """

    sends: int
    computes: int


A: Final = SlotApplication(3, 4)
B: Final = SlotApplication(4, 2)
SLOTS: Final = 27


def progress(
    weights: tuple[int, int],
    first: int,
    applications: tuple[SlotApplication, SlotApplication] = (A, B),
    slots: int = SLOTS,
) -> tuple[int, int]:
    """Return in how many slots each application has not stalled.

    :param weights: packets that each may send in a row, >= 1
    :param first: which of the two sends first, 0 or 1; the thesis does not say, and the figures depend on it
    :raises InvalidValueError: a weight is below 1, or there is no such application
    """
    if min(weights) < 1 or first not in {0, 1}:
        raise InvalidValueError("weights and first", (weights, first), "weights >= 1, 0 or 1")
    left = [each.sends for each in applications]
    sending = [True, True]
    done = [0, 0]
    turn, credit = 1 - first, 0
    for _ in range(slots):
        if any(sending) and not (sending[turn] and credit):
            turn = 1 - turn if sending[1 - turn] else turn
            credit = weights[turn]
        for one, application in enumerate(applications):
            if sending[one] and one != turn:
                continue  # it stalls
            done[one] += 1
            credit -= sending[one]
            left[one] -= 1
            if not left[one]:
                sending[one] = not sending[one]
                left[one] = application.sends if sending[one] else application.computes
    return done[0], done[1]
