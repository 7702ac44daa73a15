# SPDX-License-Identifier: Apache-2.0
"""Sources made of others: the first that counts, one reading for several readers, a log of what changes."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from host_agent.model.assignment import Observation
from host_agent.model.counters import ServerCounters
from host_agent.observe.counters.source import CounterSource, Readings, measured

LOG = logging.getLogger(__name__)


class NoCounters:
    """``[counters]source = none``."""

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """Count nothing."""
        return Readings()


class FirstOf:
    """``[counters]source = auto``: the first source that counts anything.

    :param sources: best first
    """

    def __init__(self, *sources: CounterSource) -> None:
        self._sources = sources
        self._counts: CounterSource | None = None

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """See :class:`CounterSource`; a source that counts not all servers may count none of some."""
        if only is not None and self._counts is not None:
            return self._counts.read(observation, now_s, only)
        problems = []
        self._counts = None
        for source in self._sources:
            found = source.read(observation, now_s, only)
            if found.source:
                self._counts = source
                return found
            if found.problem:
                problems.append(found.problem)
        return Readings(problem="; ".join(problems))


class Shared:
    """One stack of counters for all who need them: each reading of its one reader is handed to the others, too.

    A second stack would open each performance counter twice, and a second reader of this one would halve the time
    between readings for both.

    :param inner: the source
    :param others: called with each reading and its time, in the reader's thread; must not block
    """

    def __init__(
        self,
        inner: CounterSource,
        others: Sequence[Callable[[Mapping[str, ServerCounters], float], None]],
    ) -> None:
        self._inner, self._others = inner, others

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """See :class:`CounterSource`."""
        found = self._inner.read(observation, now_s, only)
        for take in self._others:
            take(found.counters, now_s)
        return found


class LoggedOnce:
    """Logs when counters come, go, or come from elsewhere.

    :param inner: the source
    """

    def __init__(self, inner: CounterSource) -> None:
        self._inner = inner
        self._logged: tuple[str, str] | None = None

    def read(
        self, observation: Observation, now_s: float, only: Collection[str] | None = None
    ) -> Readings:
        """See :class:`CounterSource`."""
        found = self._inner.read(observation, now_s, only)
        state = (found.source, found.problem)
        if (
            only is None
            and state != self._logged
            and any(measured(guest) for guest in observation.guests)
        ):
            self._logged = state
            if found.source:
                LOG.info("performance counters: %s%s", found.source, _because(found.problem))
            else:
                LOG.warning(
                    "no performance counters, mapping goes by classes alone and BWAP does not search%s",
                    _because(found.problem),
                )
        return found


def _because(problem: str) -> str:
    return f": {problem}" if problem else ""
