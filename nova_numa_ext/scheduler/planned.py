# SPDX-License-Identifier: Apache-2.0
"""What the plan of a job says about a server: by the scheduler hint of the job service (:mod:`nova_numa_ext.job_hint`).

Nova keeps the hints of a server as long as it lives. The hosts of the plan count when the server is made, not when it
is moved later; what the job's part requests counts then, too. A hint that does not count refuses a create with a
sentence, and no move.

A create is offered those hosts only that are among the candidates of Placement (``max_placement_results`` of them at
most) and pass nova's filters before ours. The planned hosts may all be absent, in a large fleet most of the time: then
the server may go to any host that is offered.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nova_numa_ext.job_hint import HINT, HintError, HintKeys
from nova_numa_ext.scheduler import moves

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Planned:
    """What counts of a job's plan.

    :param job: uuid of the job, '' where the hint does not count
    :param part: name of its part
    :param hosts: root providers of the planned hosts; None: the server may go to any host
    :param spare: of those that come after them
    :param extra_specs: of the part, beside the flavor's
    :param any_utility: GPUs below ``numa_ext:min_utility`` are good enough
    :param absent: number of planned and spare hosts of which nova offers none, so that they do not count
    :param problem: why the hint does not count, '' where it does
    """

    job: str = ""
    part: str = ""
    hosts: frozenset[str] | None = None
    spare: frozenset[str] = frozenset()
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    any_utility: bool = False
    absent: int = 0
    problem: str = ""

    def among(self, host_states: Sequence[Any]) -> Sequence[Any]:
        """Return those of nova's HostStates where the server may go."""
        if self.hosts is None:
            return host_states
        allowed = self.hosts | self.spare
        return [state for state in host_states if state.uuid in allowed]

    def offered(self, host_states: Sequence[Any]) -> "Planned":
        """Return the same, without its hosts where nova offers none of them."""
        if self.hosts is None or self.among(host_states):
            return self
        absent = len(self.hosts | self.spare)
        return replace(self, hosts=None, spare=frozenset(), absent=absent)


def has_hint(spec: Any) -> bool:
    """Return whether a RequestSpec has a hint of ours; nothing else may cost one that has none."""
    return HINT in _hints(spec)


def read(spec: Any, host_states: Sequence[Any], keys: HintKeys, now: float) -> Planned | None:
    """Return what a RequestSpec with a hint of ours is bound to, None for one without.

    :param host_states: the hosts among which nova looks for one
    :param now: seconds since 1970
    """
    given = _hints(spec).get(HINT)
    if given is None:
        return None
    moving = moves.is_move(spec, host_states)
    try:
        return _checked(spec, given, keys, None if moving else now).offered(host_states)
    except HintError as error:
        if moving:
            LOG.warning(
                "The hint %s of server %s does not count any more: %s",
                HINT,
                spec.instance_uuid,
                error,
            )
            return None
        return Planned(problem=str(error))


def _checked(spec: Any, given: Sequence[str], keys: HintKeys, now: float | None) -> Planned:
    if len(given) != 1:
        raise HintError("it is not one text")
    hint = keys.opened(given[0], now)
    if hint.project != spec.project_id:
        raise HintError("it was made for another project")
    found = Planned(hint.job, hint.part, None, frozenset(), hint.extra_specs, hint.any_utility)
    if now is None:
        return found
    if hint.flavor != spec.flavor.flavorid:
        raise HintError("it was made for another flavor")
    return Planned(
        hint.job,
        hint.part,
        frozenset(hint.hosts) or None,
        frozenset(hint.spare),
        hint.extra_specs,
        hint.any_utility,
    )


def _hints(spec: Any) -> Mapping[str, Sequence[str]]:
    return (spec.scheduler_hints if "scheduler_hints" in spec else None) or {}
