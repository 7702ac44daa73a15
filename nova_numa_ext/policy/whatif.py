# SPDX-License-Identifier: Apache-2.0
"""Where could a flavor go now, and what does each other host lack?

When Placement offers no host, nova never asks a filter, so no decision is noted anywhere. This asks the same
requirements of the whole fleet, amounts included, from the view.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nova_numa_ext.policy import admission
from nova_numa_ext.policy.gpu_sets import DEFAULT_RULES, GpuRules, GpuSet, GpuWish, best_of_host
from nova_numa_ext.policy.reason import Reason
from nova_numa_ext.policy.terms import Term
from nova_numa_ext.request import WorkloadRequest
from placement_traits.fleet import FleetSnapshot, HostView


@dataclass(frozen=True, slots=True)
class Answer:
    """What one host says to a flavor.

    :param host: the host
    :param reasons: what it lacks, empty when it could take the server
    :param gpus: the best GPUs that are free there; None without
    """

    host: HostView
    reasons: tuple[Reason, ...]
    gpus: GpuSet | None = None


def ask(
    request: WorkloadRequest,
    fleet: FleetSnapshot,
    free: Mapping[str, Mapping[str, int]] | None = None,
    *,
    flavor: str = "",
    rules: GpuRules = DEFAULT_RULES,
) -> tuple[Answer, ...]:
    """Ask every host of the view, those that could take the server first, then by name.

    :param free: free amounts of nova's own resource classes by root provider, where they are known
    :param flavor: name of the flavor, which may have a GPU profile of its own
    :param rules: how GPUs are judged
    """
    answers = []
    for host in fleet.hosts.values():
        reasons = lacking(request, host, (free or {}).get(host.root_uuid))
        gpus, more = _gpus(request, host, flavor, rules)
        answers.append(Answer(host, (*reasons, *more), gpus))
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


def _gpus(
    request: WorkloadRequest, host: HostView, flavor: str, rules: GpuRules
) -> tuple[GpuSet | None, tuple[Reason, ...]]:
    if not request.gpus:
        return None, ()
    return best_of_host(GpuWish.of(request, flavor, rules), rules, host, request.gpus)


def _own_resources(request: WorkloadRequest, free: Mapping[str, int]) -> tuple[Reason, ...]:
    cpus = (Term.DEDICATED_CPUS, "PCPU") if request.dedicated else (Term.SHARED_CPUS, "VCPU")
    wanted = ((*cpus, request.vcpus), (Term.MEMORY, "MEMORY_MB", request.memory_mb))
    return tuple(
        Reason(term, free.get(resource, 0), amount)
        for term, resource, amount in wanted
        if free.get(resource, 0) < amount
    )
