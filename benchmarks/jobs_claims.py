# SPDX-License-Identifier: Apache-2.0
"""How many jobs a second come from PLANNED to CLAIMED, and how many allocations a second Placement writes by itself."""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from benchmarks.jobs_round import submitted
from nova_numa_ext.orchestrator.saga import Engaged, Saga
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import Election
from nova_numa_ext.orchestrator.store.stored_job import StoredJob
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan, ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from placement_traits.claim_store import ClaimStore
from placement_traits.client import HttpAdapter, PlacementClient, RetrySettings
from placement_traits.names import JOB_CONSUMER
from placement_traits.reason import Reason

SLOT: Final = "CUSTOM_BENCH_SLOT"
WORKERS: Final = 8  # as an engine has
_PROVIDERS: Final = 64  # so that two workers seldom write to one
_NO_SERVICE: Final[Any] = None  # a claim asks Placement only

ItemT = TypeVar("ItemT")


def providers(placement: HttpAdapter, jobs: int) -> list[str]:
    """Make providers with room for all claims of both measurements."""
    client = PlacementClient(placement)
    client.put(f"/resource_classes/{SLOT}")
    made = [str(uuid.uuid4()) for _ in range(_PROVIDERS)]
    for each in made:
        client.post("/resource_providers", {"uuid": each, "name": f"bench-{each}"})
        inventories = {SLOT: {"total": 2 * jobs}}
        body = {"resource_provider_generation": 0, "inventories": inventories}
        client.put(f"/resource_providers/{each}/inventories", body)
    return made


def claims_per_s(
    database: Database, placement: HttpAdapter, made: Sequence[str], jobs: int, draw: Any
) -> float:
    """Return how many jobs a second an engine's workers take from PLANNED to CLAIMED.

    :param made: of :func:`providers`
    :param draw: random numbers
    """
    stored, election = Jobs(database), Election(database, "bench")
    term = election.campaign()
    assert term is not None, "another engine leads"
    actor = Actor("bench", term)
    planned = []
    for number, new in enumerate(submitted(jobs, draw)):
        amount = ProviderAmount(made[number % len(made)], SLOT, 1)
        plan: Plan[HostPlace] = Plan((), claims=(amount,))
        why = (Reason(JobTerm.PLACED, "bench"),)
        planned.append(stored.move(stored.create(new), JobState.PLANNED, why, actor, plan=plan))
    claims = ClaimStore(PlacementClient(placement, RetrySettings(attempts=1)))
    lead = partial(election.check, term)
    engaged = Engaged(
        stored,
        _NO_SERVICE,
        claims,
        _NO_SERVICE,
        actor,
        lead,
        servers_per_round=1,
        build_timeout_s=3600.0,
        hint=lambda _job, _part: "",
    )
    saga = Saga(engaged, database.now())

    def claim(job: StoredJob) -> None:
        assert saga.carry_on(job).state is JobState.CLAIMED

    return _per_s(claim, planned)


def floor_per_s(placement: HttpAdapter, made: Sequence[str], jobs: int) -> float:
    """Return how many allocations of new consumers Placement writes in a second, for as many workers."""
    client = PlacementClient(placement)

    def allocate(number: int) -> None:
        body = {
            "allocations": {made[number % len(made)]: {"resources": {SLOT: 1}}},
            "project_id": "bench",
            "user_id": "bench",
            "consumer_generation": None,
            "consumer_type": JOB_CONSUMER,
        }
        client.put(f"/allocations/{uuid.uuid4()}", body)

    return _per_s(allocate, range(jobs))


def _per_s(work: Callable[[ItemT], None], items: Iterable[ItemT]) -> float:
    with ThreadPoolExecutor(WORKERS) as workers:
        began = time.perf_counter()
        done = sum(1 for _ in workers.map(work, items))
        return done / (time.perf_counter() - began)
