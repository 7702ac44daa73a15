# SPDX-License-Identifier: Apache-2.0
"""What a job has that is to be undone: its steps, and by which names what they make is found again."""

import uuid as uuids
from collections.abc import Sequence
from typing import Final

from nova_numa_ext.orchestrator.cloud.servers import TAG
from nova_numa_ext.orchestrator.store.stored_job import Step, StoredJob

CLAIM: Final = "claim"
GROUP: Final = "group"
SERVERS: Final = "servers"


def claim_consumer(job: str, version: int) -> str:
    """Return the uuid of the consumer that a job claims by: another one each time, and known to be the job's.

    :param job: its uuid
    :param version: the job's, before it claims
    """
    return str(uuids.uuid5(uuids.UUID(job), f"claim {version}"))


def group_name(job: str, part: str) -> str:
    """Return the name of the server group of a part.

    :param job: its uuid
    """
    return f"{TAG}{job}:{part}"


def step_of(job: StoredJob, name: str, about: str) -> Step:
    """Return a step as it is stored, a new one where it is not."""
    found = (each for each in job.steps if (each.name, each.about) == (name, about))
    return next(found, Step(name, about, asked=0))


def with_step(steps: Sequence[Step], step: Step) -> tuple[Step, ...]:
    """Return steps of which one is as it is given."""
    known = [(each.name, each.about) for each in steps]
    if (step.name, step.about) not in known:
        return (*steps, step)
    place = known.index((step.name, step.about))
    return (*steps[:place], step, *steps[place + 1 :])
