# SPDX-License-Identifier: Apache-2.0
"""The names of everything a decision of the agent looks at, each with the sentence that explains it to people."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class Term(StrEnum):
    """Rules and quantities; the journal shows the name, the console the sentence."""

    GPU = "gpu"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Term.GPU: "its GPU {value}; its home is {against}",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people."""
    return reasons.sentence(reason, SENTENCES)
