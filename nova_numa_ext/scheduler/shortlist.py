# SPDX-License-Identifier: Apache-2.0
"""Which hosts of a request are judged, and which of them nova sees: those that are probably best, in the first pass.

Nova's own filters after ours are slow, so nova gets a list of hosts. The list is ordered by the total of all weighers:
nova's own over all hosts, and our coarse score (:mod:`nova_numa_ext.policy.numa.shortlist`). No filter is told that a
later one refused all that it let pass; so ours asks nova's own later filters itself, until enough hosts have passed
them all. A short list thus refuses nothing: where few hosts can take the server, all hosts are judged.
"""

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from nova.scheduler import filters, weights
from nova.weights import normalize
from oslo_config import cfg

from nova_numa_ext.policy.numa import shortlist
from nova_numa_ext.policy.numa.score import Floats
from nova_numa_ext.policy.numa.shortlist import Asked, Integers, Size
from nova_numa_ext.scheduler import compat, nova_objects
from nova_numa_ext.scheduler.aggregates import for_each
from nova_numa_ext.scheduler.decision import Judged, ParsedSpec, reorder
from nova_numa_ext.scheduler.judge import HostVerdict, Surroundings
from placement_traits.fleet_arrays import UNKNOWN
from placement_traits.snapshot import ViewState

_MOST_HOSTS_REMEMBERED: Final = 50_000
_NOVAS: Final = "nova.scheduler.filters."
_OURS: Final = "nova_numa_ext."


class Memory:
    """What earlier requests saw of the NUMA cells of hosts: for the order of hosts only, never for a verdict.

    A host is read again when the time of its last update or its usage is another one. Safe to use from several threads:
    what :meth:`cells` returns is a copy.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._row: dict[str, int] = {}
        self._stamps: list[object] = []
        self._cells = np.zeros((0, 0), shortlist.CELL)

    def cells(self, host_states: Sequence[Any]) -> npt.NDArray[Any]:
        """Return the cells of these hosts: :data:`.shortlist.CELL` records, hosts x cells."""
        with self._lock:
            if len(self._row) + len(host_states) > _MOST_HOSTS_REMEMBERED and any(
                state.uuid not in self._row for state in host_states
            ):
                self._forget()
            rows, changed = self._rows(host_states)
            self._write(changed)
            found: npt.NDArray[Any] = self._cells[rows]
            return found

    def _rows(self, host_states: Sequence[Any]) -> tuple[list[int], dict[int, Any]]:
        """Return the row of each host, and the hosts that have changed by row."""
        rows, changed = [], {}
        row_of, stamps = self._row, self._stamps
        for state, stamp in zip(host_states, map(_stamp, host_states), strict=True):
            row = row_of.get(state.uuid)
            if row is None:
                row = row_of[state.uuid] = len(stamps)
                stamps.append(None)
            rows.append(row)
            if stamps[row] != stamp or stamp[0] is None:
                stamps[row] = stamp
                changed[row] = state
        return rows, changed

    def _write(self, changed: Mapping[int, Any]) -> None:
        read = [_records(state) for state in changed.values()]
        height, width = self._cells.shape
        missing = len(self._stamps) - height, max(map(len, read), default=0) - width
        if max(missing) > 0:
            self._cells = np.pad(self._cells, [(0, max(0, each)) for each in missing])
        if read:
            absent = (np.zeros((), shortlist.CELL).item(),)
            filled = [[*each, *absent * (self._cells.shape[1] - len(each))] for each in read]
            self._cells[list(changed)] = np.array(filled, shortlist.CELL).reshape(len(read), -1)


_stamp = operator.attrgetter("updated", "num_instances", "vcpus_used", "free_ram_mb")


def _records(host_state: Any) -> list[tuple[Any, ...]]:
    free = nova_objects.pci_free(host_state) or {}
    return [(*cell, free.get(cell[0], 0), True) for cell in nova_objects.cell_counts(host_state)]


class NovaWeighers:
    """The weighers that nova is configured with, ours left out.

    :param conf: nova's configuration
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        handler = weights.HostWeightHandler()
        classes = handler.get_matching_classes(conf.filter_scheduler.weight_classes)
        self._weighers = [each() for each in classes if not each.__module__.startswith(_OURS)]

    def weigh(self, host_states: Sequence[Any], spec: Any) -> tuple[list[Floats], Floats]:
        """Return what each weigher says that counts on any host, and the total of all, one number per host."""
        weighed = [weights.WeighedHost(state, 0.0) for state in host_states]
        multipliers = for_each(
            host_states, lambda state: [each.weight_multiplier(state) for each in self._weighers]
        )
        total, said = np.zeros(len(weighed)), []
        for number, weigher in enumerate(self._weighers):
            if multipliers[:, number].any():
                raw = weigher.weigh_objects(weighed, spec)
                stretched = normalize(raw, minval=weigher.minval, maxval=weigher.maxval)
                total += multipliers[:, number] * np.fromiter(stretched, float, len(weighed))
                said.append(np.array(raw, float))
        return said, total


class LaterFilters:
    """Nova's filters that stand after ours in ``enabled_filters``.

    :param conf: nova's configuration
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        handler = filters.HostFilterHandler()
        classes = handler.get_matching_classes(conf.filter_scheduler.available_filters)
        class_of = {each.__name__: each for each in classes}
        enabled = [class_of[name] for name in conf.filter_scheduler.enabled_filters]
        ours = [at for at, each in enumerate(enabled) if each.__module__.startswith(_OURS)]
        later = enabled[ours[-1] + 1 :] if ours else []
        self.foreign = tuple(
            each.__name__ for each in later if not each.__module__.startswith(_NOVAS)
        )
        self._filters = () if self.foreign else tuple(each() for each in later)

    def passed(self, host_states: Sequence[Any], spec: Any) -> list[Any]:
        """Return the hosts that pass all of them.

        A host passes if one of its candidates does. What nova asks of each candidate is expensive where devices are
        requested, so hosts show their best candidate first, and all only where that one is refused.
        """
        offered = {state.uuid: state.allocation_candidates for state in host_states}
        for state in host_states:
            state.allocation_candidates = offered[state.uuid][:1]
        through = self._through(host_states, spec)
        for state in host_states:
            state.allocation_candidates = offered[state.uuid]
        known = {state.uuid for state in through}
        others = [
            state
            for state in host_states
            if state.uuid not in known and len(state.allocation_candidates) > 1
        ]
        return [*through, *self._through(others, spec)]

    def _through(self, host_states: Sequence[Any], spec: Any) -> list[Any]:
        left = list(host_states)
        for each in self._filters:
            if left and each.run_filter_for_index(0):
                left = list(each.filter_all(left, spec))
        return left


@dataclass(frozen=True, slots=True)
class Question:
    """The first pass of a request.

    :param spec: nova's RequestSpec
    :param parsed: what we read from it
    :param around: what the decision knows besides
    :param host_states: all hosts
    """

    spec: Any
    parsed: ParsedSpec
    around: Surroundings
    host_states: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Listed:
    """In which order hosts are judged: positions among the hosts.

    :param first: judged in any case
    :param rest: judged only while too few hosts have passed
    """

    first: Integers
    rest: Integers


class ListMaker(Protocol):
    """A way to make the list; the first of :class:`Shortlist` that answers decides."""

    def __call__(self, question: Question, size: Size) -> Listed | None:
        """Return the order, None for requests that are others' to order."""


class ByScore:
    """Orders hosts by the total of all weighers: nova's own, and ours by a coarse score.

    :param conf: nova's configuration
    :param multipliers: returns those of our weigher and of its terms for each host
    """

    def __init__(
        self, conf: cfg.ConfigOpts, multipliers: Callable[[Sequence[Any]], Floats]
    ) -> None:
        self._memory = Memory()
        self._weighers = NovaWeighers(conf)
        self._multipliers = multipliers

    def __call__(self, question: Question, size: Size) -> Listed | None:
        """Return the best hosts and those that nova's way of choosing needs, then the others."""
        request, host_states = question.parsed.request, question.host_states
        if request is None:
            return None
        snapshot = question.around.snapshot
        row_of = snapshot.arrays.rows.get
        rows = np.array([row_of(state.uuid, UNKNOWN) for state in host_states], np.int64)
        multipliers = self._multipliers(host_states)
        wants_devices = bool(nova_objects.pci_requests(question.spec))
        asked = Asked(
            request,
            question.parsed.guest,
            fresh=snapshot.state is ViewState.FRESH,
            pack=question.around.pack,
            device_order=compat.device_order(requested=wants_devices),
        )
        guess = shortlist.coarse(
            asked, snapshot.arrays, rows, self._memory.cells(host_states), multipliers[:, 1:]
        )
        said, novas = self._weighers.weigh(host_states, question.spec)
        ordered = shortlist.order(novas + multipliers[:, 0] * guess.scores, guess.possible)
        cells = [state.cell_uuid for state in host_states]
        first = shortlist.chosen(ordered, guess.possible, said, cells, size)
        return Listed(first, ordered[~np.isin(ordered, first)])


class Shortlist:
    """Decides which hosts of a first pass are judged and returned.

    :param conf: nova's configuration
    :param option: returns ``[numa_ext]shortlist``; 0 for all hosts
    :param makers: ways to make the list, the most special first
    """

    def __init__(
        self, conf: cfg.ConfigOpts, option: Callable[[], int], makers: Sequence[ListMaker]
    ) -> None:
        self._conf = conf
        self._option = option
        self._makers = makers
        self._later = LaterFilters(conf)

    def applies(self, question: Question) -> bool:
        """Return whether hosts may be left out."""
        size = self._size(question)
        return (
            self._option() > 0
            and not self._later.foreign
            and question.parsed.request is not None
            and len(question.host_states) > size.hosts
        )

    def _size(self, question: Question) -> Size:
        return Size.of(self._option(), _servers(question.spec), self._conf.scheduler.max_attempts)

    def judge(
        self, question: Question, verdict: Callable[[Any], HostVerdict]
    ) -> tuple[Judged, list[Any]]:
        """Judge hosts until enough of them pass; returns what was decided, and the hosts for nova in its own order.

        Hosts that only their mode spares pass where all hosts had to be judged.

        :param verdict: judges one host
        """
        size, host_states = self._size(question), question.host_states
        listed = self._listed(question, size)
        verdicts: dict[str, HostVerdict] = {}
        through: list[Any] = []
        stopped: list[Any] = []
        spared: list[Any] = []
        least = shortlist.enough(_servers(question.spec))
        exhausted = False
        for chunk in _chunks(listed, size.hosts):
            passing: list[Any] = []
            for state in (host_states[at] for at in chunk):
                judged = verdicts[state.uuid] = verdict(state)
                if not judged.refused:
                    reorder(state, judged)
                    (spared if judged.spared else passing).append(state)
            while passing and len(through) < least:
                some = [passing.pop(0) for _ in range(min(len(passing), least - len(through)))]
                ahead = self._later.passed(some, question.spec)
                through += ahead
                stopped += [state for state in some if state not in ahead]
            if len(through) >= least:
                through += passing
                break
        else:
            exhausted = True
            through += spared
        # With nothing left, nova asks the later filter itself and can say which one it was.
        left = through or stopped[: size.hosts]
        wanted = {state.uuid for state in left}
        decided = Judged(question.parsed, verdicts, len(host_states), exhausted)
        return decided, [state for state in host_states if state.uuid in wanted]

    def observe(self, question: Question, verdict: Callable[[Any], HostVerdict]) -> Judged:
        """Judge hosts, for the record only, until enough would pass; neither they nor their candidates are touched."""
        size, host_states = self._size(question), question.host_states
        verdicts: dict[str, HostVerdict] = {}
        for chunk in _chunks(self._listed(question, size), size.hosts):
            verdicts |= {host_states[at].uuid: verdict(host_states[at]) for at in chunk}
            passing = sum(not each.reasons for each in verdicts.values())
            if passing >= shortlist.enough(_servers(question.spec)):
                break
        return Judged(question.parsed, verdicts, hosts=len(host_states))

    def _listed(self, question: Question, size: Size) -> Listed:
        return next(found for make in self._makers if (found := make(question, size)) is not None)


def _chunks(listed: Listed, size: int) -> Iterator[list[int]]:
    yield listed.first.tolist()
    rest = listed.rest.tolist()
    for begin in range(0, len(rest), size):
        yield rest[begin : begin + size]


def _servers(spec: Any) -> int:
    """Servers of a request; on moves nova keeps the number of the old create, which makes the list only longer."""
    return spec.num_instances if "num_instances" in spec and spec.num_instances else 1
