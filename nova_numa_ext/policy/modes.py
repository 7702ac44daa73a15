# SPDX-License-Identifier: Apache-2.0
"""How much of a decision counts on a host: a filter that refuses is not switched on for a whole cloud at once."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

AGGREGATE_KEY: Final = "numa_ext_mode"
"""Metadata key of a host aggregate that replaces ``[numa_ext]mode`` for its hosts."""


class Mode(StrEnum):
    """What is done with what was decided about a host, from the least to the most."""

    OBSERVE = "observe"
    RANK = "rank"
    ENFORCE = "enforce"

    @property
    def acts(self) -> bool:
        """The host's candidates are ordered, and it is scored."""
        return self is not Mode.OBSERVE

    @property
    def refuses(self) -> bool:
        """The host is refused where it cannot serve the request."""
        return self is Mode.ENFORCE


def known(value: str) -> bool:
    """Return whether this is the name of a mode."""
    return value in set(Mode)


def of_host(option: Mode, metadata: Iterable[str]) -> Mode:
    """Return the mode of a host.

    :param option: ``[numa_ext]mode``
    :param metadata: what the aggregates of the host have under :data:`AGGREGATE_KEY`. Of several the one that does the
        least counts; what is no mode does not
    """
    named = {*metadata}
    return next((mode for mode in Mode if mode in named), option)
