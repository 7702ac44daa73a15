# SPDX-License-Identifier: Apache-2.0
"""Decisions as metrics; whatever goes wrong with these, the decision stands."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from nova_numa_ext import metrics
from nova_numa_ext.scheduler.decision import Judged
from nova_numa_ext.scheduler.group_plan import GroupPlaces, NoPlan
from nova_numa_ext.scheduler.judge import HostVerdict

LOG = logging.getLogger(__name__)


class Measures:
    """Counts what a worker decides; nothing of it raises.

    :param kept: where, None for nowhere
    """

    def __init__(self, kept: metrics.WorkerMetrics | None = None) -> None:
        self._kept = kept
        self._failed = False

    def filtered(self, judged: Judged, left: int, *, settled: bool, seconds: float) -> None:
        """Count a decision of the filter.

        :param left: hosts that passed
        :param settled: nova looks for alternates only
        """
        with self._survived():
            if self._kept is None:
                return
            self._kept.time(metrics.SECONDS, "filter", seconds)
            if not settled:
                self._kept.count(metrics.DECISIONS, "passed" if left else "none")
                self._hosts(metrics.REFUSED, judged.refused)
                self._hosts(metrics.WOULD_REFUSE, judged.spared)
                self._add(metrics.WOULD_REORDER, "candidates", len(judged.left_as_they_came))
                if judged.exhausted is not None:
                    end = "exhausted" if judged.exhausted else "enough"
                    self._kept.count(metrics.SHORTLISTS, end)
            self._kept.save()

    def planned(self, found: GroupPlaces | NoPlan, *, seconds: float) -> None:
        """Count the plan of a server group, or that it has none; saved with the decision of which it is part."""
        with self._survived():
            if self._kept is None:
                return
            result = "none"
            if isinstance(found, GroupPlaces):
                result = "claimed" if found.claimed else "placed"
            self._kept.time(metrics.SECONDS, "group", seconds)
            self._kept.count(metrics.GROUP_PLANS, result)
            self._add(metrics.GROUP_CONFLICTS, "", found.lost)

    def weighed(self, *, other_first: bool, seconds: float) -> None:
        """Count a decision of the weigher.

        :param other_first: another host would be first if none were only observed
        """
        with self._survived():
            if self._kept is None:
                return
            self._kept.time(metrics.SECONDS, "weigher", seconds)
            self._add(metrics.WOULD_REORDER, "host", int(other_first))
            self._kept.save()

    def failed(self, where: str) -> None:
        """Count a fault of ours."""
        with self._survived():
            if self._kept is not None:
                self._kept.count(metrics.FAULTS, where)
                self._kept.save()

    def lost(self, _name: str) -> None:
        """Count an entry that the journal could not take; it is saved with its decision."""
        with self._survived():
            if self._kept is not None:
                self._kept.count(metrics.JOURNAL)

    def _hosts(self, name: str, verdicts: Iterable[HostVerdict]) -> None:
        for term, hosts in Counter(str(each.reasons[0].term) for each in verdicts).items():
            self._add(name, term, hosts)

    def _add(self, name: str, label: str, number: int) -> None:
        if number and self._kept is not None:
            self._kept.count(name, label, number)

    @contextmanager
    def _survived(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._failed:
                LOG.exception("A decision is not in the metrics; further ones are not logged.")
            self._failed = True
