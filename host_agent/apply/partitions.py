# SPDX-License-Identifier: Apache-2.0
"""Give servers the resource control that they request: read what is there, plan, have the difference written.

Only reading and writing need rights, so they alone are the privileged side's, which checks each write. Planning is pure
(:mod:`host_agent.decide.partitions`). When other software changes the groups between reading and writing, the write is
refused as a whole and the plan is made again.

One group never stops the others: when the kernel refuses one, the plan is made again without its servers. What else
goes wrong while groups are written keeps no thread from a group that is as planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from host_agent.conf.rdt import RdtOptions
from host_agent.decide.partitions.changes import changes
from host_agent.decide.partitions.plan import PartitionPlan, plan
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.rdt.errors import (
    RdtChangedError,
    ResctrlExhaustedError,
    ResctrlRefusedError,
    ResctrlUnavailableError,
)
from host_agent.model.partition import (
    Joined,
    Membership,
    PartitionPlace,
    PartitionReport,
    PartitionRequest,
    RdtChange,
    RdtState,
    Write,
)
from host_agent.model.rdt import Actual, Schemata, is_bandwidth, schemata_difference
from placement_traits.errors import NumaExtError

_ATTEMPTS: Final = 3


class Partitions:
    """Partitions of this host.

    :param privileged: the seam
    :param options: the operator's
    """

    def __init__(self, privileged: Privileged, options: RdtOptions) -> None:
        self._privileged = privileged
        self._options = options
        self._groups: dict[str, str] = {}

    def partition(self, requests: Sequence[PartitionRequest], *, write: bool) -> PartitionReport:
        """Make groups, masks and membership of threads what is requested; a second call writes nothing.

        :param write: false: only say what would be written
        :returns: a problem instead of an error, so that one server's never hides another's
        """
        left_out: dict[str, str] = {}
        while True:
            served = [each for each in requests if each.uuid not in left_out]
            try:
                report = self._until_unchanged(served, write)
            except _GroupRefusedError as refused:
                left_out |= dict.fromkeys(refused.uuids, str(refused))
                continue
            except ResctrlUnavailableError as error:
                return PartitionReport() if not requests else _failed(requests, error)
            except RdtChangedError as error:
                return replace(_failed(requests, error), again=True)
            except (NumaExtError, OSError) as error:
                return _failed(requests, error)
            return _with_left_out(report, requests, left_out)

    def _until_unchanged(
        self, requests: Sequence[PartitionRequest], write: bool
    ) -> PartitionReport:
        for _attempt in range(_ATTEMPTS - 1):
            try:
                return self._once(requests, write)
            except RdtChangedError:
                continue
        return self._once(requests, write)

    def _once(self, requests: Sequence[PartitionRequest], write: bool) -> PartitionReport:
        state = self._privileged.rdt_state()
        decided = plan(
            state.capabilities,
            state.actual,
            requests,
            self._options,
            found=state.root_found,
            before=self._groups,
        )
        writes = changes(state.actual, decided)
        members = tuple(
            Membership(place.uuid, place.group, place.monitor)
            for request in requests
            if request.running and (place := decided.get(request.uuid))
        )
        change = RdtChange(state.actual, writes, members, decided.found)
        try:
            joined = self._privileged.apply_partitions(change, write)
        except (ResctrlUnavailableError, RdtChangedError):
            raise
        except (NumaExtError, OSError) as error:
            servers = _servers_of_refused(error, decided)
            if servers:
                raise _GroupRefusedError(servers, str(error)) from error
            return self._join_in_spite(requests, decided, members, error, write)
        self._remember(decided.places)
        return _report(requests, decided, writes, joined)

    def _join_in_spite(
        self,
        requests: Sequence[PartitionRequest],
        decided: PartitionPlan,
        members: Sequence[Membership],
        error: Exception,
        write: bool,
    ) -> PartitionReport:
        """Move threads into the groups that are as planned, although not everything could be written."""
        state = self._privileged.rdt_state()
        ready = _ready(members, decided, state.actual)
        change = RdtChange(state.actual, (), ready, _root_found(state, decided))
        joined = self._privileged.apply_partitions(change, write)
        came = {member.uuid: member for member in ready}

        def place(found: PartitionPlace) -> PartitionPlace:
            member = came.get(found.uuid)
            if member is None:
                return PartitionPlace(found.uuid, "", problem=found.problem or str(error))
            return replace(found, monitor=member.monitor)

        places = tuple(map(place, _report(requests, decided, (), joined).places))
        self._remember(places)
        return PartitionReport((), places, str(error))

    def _remember(self, places: Sequence[PartitionPlace]) -> None:
        self._groups = {place.uuid: place.group for place in places if place.group}


class _GroupRefusedError(NumaExtError):
    """The kernel refused something of one group; the others can be had without its servers."""

    def __init__(self, uuids: tuple[str, ...], sentence: str) -> None:
        super().__init__(uuids, sentence)
        self.uuids = uuids
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


def _servers_of_refused(error: Exception, decided: PartitionPlan) -> tuple[str, ...]:
    """Return the servers of the control group that the kernel refused; none for what else went wrong.

    Monitoring groups come last and are only missed, and what waits for an RMID gets one later.
    """
    if not isinstance(error, ResctrlRefusedError | ResctrlExhaustedError):
        return ()
    group, _, rest = error.path.partition("/")
    if rest.startswith("mon_groups"):
        return ()
    return tuple(place.uuid for place in decided.places if place.group == group)


def _ready(
    members: Sequence[Membership], decided: PartitionPlan, actual: Actual
) -> tuple[Membership, ...]:
    """Return who can be moved: the masks of its group are as planned; without a monitoring group that is missing."""
    planned = {group.name: group.schemata for group in decided.groups}
    ready = []
    for member in members:
        group = actual.get(member.group)
        if group is None:
            continue
        differs = schemata_difference(group.schemata, planned[member.group])
        if all(map(is_bandwidth, differs)):
            monitor = member.monitor if member.monitor in group.monitors else ""
            ready.append(replace(member, monitor=monitor))
    return tuple(ready)


def _root_found(state: RdtState, decided: PartitionPlan) -> Schemata:
    return decided.found if state.root_found is None else state.root_found


def _report(
    requests: Sequence[PartitionRequest],
    decided: PartitionPlan,
    writes: tuple[Write, ...],
    joined: Sequence[Joined],
) -> PartitionReport:
    refused = {refusal.uuid: refusal.sentence for refusal in decided.refused}
    came = {each.uuid: each for each in joined}

    def place(request: PartitionRequest) -> PartitionPlace:
        place = decided.get(request.uuid)
        if place is None:
            sentence = refused.get(request.uuid, "it has no place in the plan")
            return PartitionPlace(request.uuid, "", problem=sentence)
        moved = came.get(request.uuid, Joined(request.uuid, 0))
        return replace(place, moved=moved.moved, problem=moved.problem)

    return PartitionReport(writes, tuple(map(place, requests)))


def _with_left_out(
    report: PartitionReport, requests: Sequence[PartitionRequest], left_out: Mapping[str, str]
) -> PartitionReport:
    if not left_out:
        return report
    served = {place.uuid: place for place in report.places}
    places = (
        served.get(each.uuid)
        or PartitionPlace(
            each.uuid,
            "",
            problem=f"server {each.uuid} gets no RDT partition: {left_out[each.uuid]}",
        )
        for each in requests
    )
    problem = report.problem or next(iter(left_out.values()))
    return replace(report, places=tuple(places), problem=problem)


def _failed(requests: Sequence[PartitionRequest], error: Exception) -> PartitionReport:
    places = tuple(PartitionPlace(each.uuid, "", problem=str(error)) for each in requests)
    return PartitionReport((), places, str(error))
