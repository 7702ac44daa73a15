# SPDX-License-Identifier: Apache-2.0
"""What Placement holds for jobs that wait; which amounts, :mod:`nova_numa_ext.policy.jobs.reserving` decides.

Each job has a consumer of its own for it, whose uuid follows from the job's. What it may hold is stored before it is
claimed, and forgotten after it is released, so the next engine finds what one that died has left. Until Placement has
answered, a step of the job says that it may be held or not: it is asked for again.
"""

import uuid as uuids
from typing import Final

from nova_numa_ext.orchestrator.saga import Engaged
from nova_numa_ext.orchestrator.store.stored_job import Step, StoredJob
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from placement_traits.claim_store import NoRoomError
from placement_traits.claims import Claim
from placement_traits.names import RESERVATION_CONSUMER

RESERVATION: Final = "reservation"


def consumer(job: StoredJob) -> str:
    """Return the uuid of the consumer that holds amounts for a job while it waits."""
    return str(uuids.uuid5(uuids.UUID(job.uuid), RESERVATION))


def unanswered(job: StoredJob) -> bool:
    """Return whether it is not known what Placement holds for a job: what is stored, or what it held before."""
    return any(each.name == RESERVATION for each in job.steps)


def reserve(engaged: Engaged, job: StoredJob, amounts: tuple[ProviderAmount, ...]) -> StoredJob:
    """Hold amounts for a job instead of what was held for it; return the job as it is afterwards.

    Where others have taken some since these were planned, what was held stays.

    :param amounts: of :func:`~nova_numa_ext.policy.jobs.reserving.amounts`; (): nothing any more
    :raises NotLeaderError: the term is over
    :raises LostRaceError: the job has changed since it was read
    :raises ConflictError: others write to the same providers all the time
    :raises ServiceUnavailableError: Placement or the database does not answer
    """
    if amounts == job.reserved and not unanswered(job):
        return job
    held = engaged.claims.read(consumer(job))
    others = tuple(each for each in job.steps if each.name != RESERVATION)
    steps = (*others, Step(RESERVATION, consumer(job)))
    if amounts and amounts != job.reserved:
        job = engaged.jobs.set(job, engaged.actor, reserved=amounts, steps=steps)
    elif held and not unanswered(job):
        job = engaged.jobs.set_steps(job, steps, engaged.actor)
    by_provider: dict[str, dict[str, int]] = {}
    for each in amounts:
        by_provider.setdefault(each.provider, {})[each.resource_class] = each.amount
    generation = held.generation if held else None
    claim = Claim(
        consumer(job), RESERVATION_CONSUMER, job.project, job.user, by_provider, generation
    )
    if held or amounts:
        try:
            engaged.claims.write(claim, may=engaged.lead)
        except NoRoomError:
            amounts = _amounts(held)
    if amounts == job.reserved:
        return engaged.jobs.set_steps(job, others, engaged.actor)
    return engaged.jobs.set(job, engaged.actor, reserved=amounts, steps=others)


def _amounts(held: Claim | None) -> tuple[ProviderAmount, ...]:
    return tuple(
        ProviderAmount(provider, resource_class, amount)
        for provider, amounts in sorted(held.amounts.items() if held else ())
        for resource_class, amount in sorted(amounts.items())
    )
