# SPDX-License-Identifier: Apache-2.0
"""The cloud of ``make bench-jobs``, a small one, through database and Placement."""

import random

import pytest

from benchmarks import jobs_api, jobs_claims
from benchmarks.jobs_service import Round, store
from benchmarks.placement_server import fill
from emulation.placement_service import PlacementInProcess
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from placement_traits.claim_store import ClaimStore
from placement_traits.client import PlacementClient

HOSTS, FREE, WAITING, RUNNING = 20, 4, 15, 10


def test_jobs_that_are_planned_claim_and_so_does_placement_alone(placement, tmp_path):
    database = Database(f"sqlite:///{tmp_path}/jobs.db", sqlite_synchronous=False)
    database.sync()
    made = jobs_claims.providers(placement.adapter, WAITING)
    assert jobs_claims.floor_per_s(placement.adapter, made, WAITING) > 0
    draw = random.Random(16)
    assert jobs_claims.claims_per_s(database, placement.adapter, made, WAITING, draw) > 0
    claims = ClaimStore(PlacementClient(placement.adapter))
    assert len({each.consumer for one in made for each in claims.of_provider(one)}) == 2 * WAITING


@pytest.fixture
def placement():
    with PlacementInProcess() as placement:
        fill(placement.adapter, HOSTS, FREE)
        yield placement


def test_jobs_that_are_stored_are_decided_about_over_hosts_that_are_read(placement, tmp_path):
    database = Database(f"sqlite:///{tmp_path}/jobs.db", sqlite_synchronous=False)
    database.sync()
    assert store(database, HOSTS, FREE, waiting=WAITING, running=RUNNING, seed=16) > 0
    rounds = Round(database, placement.adapter, QueueSettings())
    found = rounds.do()
    assert found["running"] == RUNNING
    assert found["starts"] > 0
    assert found["starts"] + found["waits"] == WAITING
    assert 0 < found["jobs_cpu_s"] + found["hosts_cpu_s"] < found["cpu_s"]
    same = rounds.do(hosts=False)
    assert same["hosts_cpu_s"] < found["hosts_cpu_s"]
    assert (same["starts"], same["waits"]) == (found["starts"], found["waits"])


@pytest.mark.long
def test_jobs_are_submitted_to_the_api_and_listed_over_http(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    Database(url).sync()
    with jobs_api.served(url) as api:
        assert jobs_api.submit_per_s(api, 4) > 0
        took_ms, found = jobs_api.listed_ms(api)
    assert took_ms > 0
    assert found == len(Jobs(Database(url)).find()) == 4 + 2 * jobs_api.CLIENTS
