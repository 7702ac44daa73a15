# SPDX-License-Identifier: Apache-2.0
"""Give servers the resource control that they request: read what is there, plan, have the difference written.

Only reading and writing need rights, so they alone are the privileged side's, which checks each write. Planning is pure
(:mod:`host_agent.decide.partitions`). When other software changes the groups between reading and writing, the write is
refused as a whole and the plan is made again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from host_agent.conf.rdt import RdtOptions
from host_agent.decide.partitions.changes import changes
from host_agent.decide.partitions.plan import PartitionPlan, plan
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.rdt.errors import RdtChangedError, ResctrlUnavailableError
from host_agent.model.partition import (
    Joined,
    Membership,
    PartitionPlace,
    PartitionReport,
    PartitionRequest,
    RdtChange,
    Write,
)
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

    def partition(self, requests: Sequence[PartitionRequest], *, write: bool) -> PartitionReport:
        """Make groups, masks and membership of threads what is requested; a second call writes nothing.

        :param write: false: only say what would be written
        :returns: a problem instead of an error, so that one server's never hides another's
        """
        try:
            return self._until_unchanged(requests, write)
        except ResctrlUnavailableError as error:
            return PartitionReport() if not requests else _failed(requests, error)
        except RdtChangedError as error:
            return replace(_failed(requests, error), again=True)
        except (NumaExtError, OSError) as error:
            return _failed(requests, error)

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
            state.capabilities, state.actual, requests, self._options, found=state.root_found
        )
        writes = changes(state.actual, decided)
        members = tuple(
            Membership(place.uuid, place.group, place.monitor)
            for request in requests
            if request.running and (place := decided.get(request.uuid))
        )
        change = RdtChange(state.actual, writes, members, decided.found)
        joined = self._privileged.apply_partitions(change, write)
        return _report(requests, decided, writes, joined)


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


def _failed(requests: Sequence[PartitionRequest], error: Exception) -> PartitionReport:
    places = tuple(PartitionPlace(each.uuid, "", problem=str(error)) for each in requests)
    return PartitionReport((), places, str(error))
