# SPDX-License-Identifier: Apache-2.0
"""Where could a flavor go now, and what does each other host lack?

When Placement offers no host, nova never asks a filter, so no decision is noted anywhere. This asks the same
requirements of the whole fleet, amounts included, from the view.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nova_numa_ext.policy import admission
from nova_numa_ext.policy.reason import Reason
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.request import WorkloadRequest
from placement_traits.fleet import FleetSnapshot, HostView


@dataclass(frozen=True, slots=True)
class Answer:
    """What one host says to a flavor.

    :param host: the host
    :param reasons: what it lacks, empty when it could take the server
    """

    host: HostView
    reasons: tuple[Reason, ...]


def ask(
    request: WorkloadRequest,
    fleet: FleetSnapshot,
    free: Mapping[str, Mapping[str, int]] | None = None,
) -> tuple[Answer, ...]:
    """Ask every host of the view, those that could take the server first, then by name.

    :param free: free amounts of nova's own resource classes by root provider, where they are known
    """
    answers = [
        Answer(host, lacking(request, host, (free or {}).get(host.root_uuid)))
        for host in fleet.hosts.values()
    ]
    return tuple(sorted(answers, key=lambda answer: (bool(answer.reasons), answer.host.name)))


def lacking(
    request: WorkloadRequest, host: HostView, free: Mapping[str, int] | None
) -> tuple[Reason, ...]:
    """Return everything that one host lacks for a request."""
    return (
        *admission.capabilities(request, host),
        *admission.amounts(request, host),
        *admission.neighbours(request, host),
        *(() if free is None else _own_resources(request, free)),
    )


def _own_resources(request: WorkloadRequest, free: Mapping[str, int]) -> tuple[Reason, ...]:
    cpus = (Term.DEDICATED_CPUS, "PCPU") if request.dedicated else (Term.SHARED_CPUS, "VCPU")
    wanted = ((*cpus, request.vcpus), (Term.MEMORY, "MEMORY_MB", request.memory_mb))
    return tuple(
        Reason(term, free.get(resource, 0), amount)
        for term, resource, amount in wanted
        if free.get(resource, 0) < amount
    )
