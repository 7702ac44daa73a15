# SPDX-License-Identifier: Apache-2.0
"""Why a decision came out as it did, as data; each wing names its terms and gives each of them a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """One term of a decision: what was looked at, what it was, what it was held against.

    :param term: name of the rule or quantity, a member of the wing's ``Term``
    :param value: what was found
    :param against: the limit, rival or request it was compared with, '' when there is none
    :param where: the place it is about, such as ``node 1`` or ``L3 0``; '' when the term says it all
    """

    term: str
    value: str | float
    against: str | float = ""
    where: str = ""

    def __str__(self) -> str:
        place = f"[{self.where}]" if self.where else ""
        rival = f" (against {_text(self.against)})" if self.against != "" else ""
        return f"{self.term}{place}={_text(self.value)}{rival}"


def sentence(reason: Reason, sentences: Mapping[str, str]) -> str:
    """Return what a reason means, for people; terms without a sentence show their figures.

    :param sentences: term -> template with ``{value}``, ``{against}`` and ``{where}``
    """
    template = sentences.get(reason.term)
    if template is None:
        return str(reason)
    return template.format(
        value=_text(reason.value), against=_text(reason.against), where=reason.where
    )


def _text(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
