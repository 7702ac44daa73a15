# SPDX-License-Identifier: Apache-2.0
"""Why a decision came out as it did, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One term of a decision: what was looked at, what it was, what it was held against.

    :param term: name of the rule or quantity, a word or two in snake case
    :param value: what was found
    :param against: the limit, rival or wish it was compared with, '' when there is none
    """

    term: str
    value: str | float
    against: str | float = ""

    def __str__(self) -> str:
        return f"{self.term}={_text(self.value)}" + (
            f" (against {_text(self.against)})" if self.against != "" else ""
        )


def _text(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
