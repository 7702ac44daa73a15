# SPDX-License-Identifier: Apache-2.0
"""Jobs on the lab: they wait in order, start whole or not at all, and outlive whatever stops what carries them on.

The cloud has one place for a job of :func:`gpus`: a server that takes more than half of the GPUs of the host with most
of them. Small jobs find a place at any time.
"""

import json
import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from tests.integration.cloud import LabCloud, eventually
from tests.integration.jobs import BOOTED_S, ENDED_S, FOLLOWED_S, LabJobs, part
from tests.support.jobs_database import backed_up, restored

SEED = int(os.environ.get("NUMA_EXT_SEED", str(time.time_ns() % 10_000)))
STATES = ("queued", "planned", "claimed", "building", "running", "ending")
# Two rounds, each with a look at all that runs (devstack/options/numa-ext-jobs.conf), and what they ask for.
TWO_ROUNDS_S = 15.0
PAUSED_S = 30.0
LATEST_KILL_S = 0.5
TOPO_P = {"numa_ext:tier": "BE", "numa_ext:gpu_policy": "topo_p", "numa_ext:gpu_comm": "4"}


@pytest.fixture
def gpus(cloud: LabCloud) -> str:
    """A flavor of which one server has a place in the whole cloud."""
    most = max(len(host.emulated.shape.gpu_nodes) for host in cloud.hosts.values())
    return cloud.flavor({"numa_ext:tier": "BE", "pci_passthrough:alias": f"gpu:{most // 2 + 1}"})


def nothing_is_left(jobs: LabJobs, *ended: str) -> None:
    """Two rounds after jobs have ended there is no server, group, trust or claim of them; fails with what there is.

    A trust stays for some minutes where a request was lost before nova had it: what would come of it is deleted by it.
    """
    for job in ended:
        eventually(f"job {job} ends", lambda job=job: jobs.shown(job)["ended_at"], ENDED_S)
    begun = jobs.rounds()

    def probe() -> bool:
        passed = jobs.rounds() - begun  # two whole ones at least, where more than two have ended
        left = jobs.left(*ended)
        assert not left or passed <= 2, f"{left} after {passed} rounds"
        return not left

    eventually("nothing is left", probe, 60, 0.2)
    sys.stdout.write(f"trusts kept for what nova did not answer: {len(jobs.kept())}\n")


def still_the_same(jobs: LabJobs, job: str, before: dict[str, tuple[str, ...]]) -> None:
    """Two rounds later the job's servers are those that they were, and run on as they did."""
    time.sleep(TWO_ROUNDS_S)
    assert jobs.untouched(job) == before
    assert jobs.shown(job)["state"] == "running"


@pytest.mark.long
def test_jobs_beyond_capacity_run_in_order_and_parts_all_or_none(
    cloud: LabCloud, jobs: LabJobs, gpus: str
) -> None:
    """The second one has a part that would find a place at once, and a part that has to wait: both wait."""
    words = ("--part", f"name=gpu,flavor={gpus},image=toucher,network=none")
    created = cloud.openstack("numa", "job", "create", "first", *words, "-f", "json")
    first = jobs.noted(json.loads(created.stdout)["id"])
    second = jobs.submit(part("gpu", gpus), part("cpu", "lab.tiny"), name="second")
    third = jobs.submit(part("gpu", gpus), name="third")

    jobs.reached(first, "running")
    jobs.waits(second, "no_room")
    jobs.waits(third, "behind", "no_room", "reserved")
    assert (jobs.servers(second), jobs.servers(third)) == ({}, {})

    jobs.cancel(first)
    jobs.reached(second, "running")
    assert sorted(jobs.servers(second).values()) == ["cpu", "gpu"]
    assert jobs.states(third) == ["queued"], "the third one has passed the second"
    assert jobs.servers(third) == {}

    jobs.cancel(second)
    jobs.reached(third, "running")
    assert sorted(jobs.servers(third).values()) == ["gpu"]
    jobs.cancel(third)
    nothing_is_left(jobs, first, second, third)
    assert {jobs.shown(job)["state"] for job in (first, second, third)} == {"cancelled"}


@contextmanager
def job_in(jobs: LabJobs, state: str) -> Iterator[str]:
    """A small job, just come into a state.

    It stays in ``queued`` while it is held, and in ``claimed`` while nova, of which it wants a server group then, does
    not answer. In the others it stays for a moment: planned until the next round, and then for nova.
    """
    job = jobs.submit(part("work", "lab.tiny", count=2, apart=True), held=True)
    submitted = jobs.shown(job)
    if state == "queued":
        yield job
        return
    with jobs.paused(jobs.service("nova-api").process) if state == "claimed" else nullcontext():
        jobs.api.change(submitted, "release")
        if state == "ending":
            jobs.reached(job, "running")
            jobs.cancel(job)
        eventually(f"job {job} is {state}", lambda: jobs.state(job) == state, BOOTED_S, 0.01)
        yield job


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_an_engine_killed_in_any_state_loses_nothing(jobs: LabJobs, state: str) -> None:
    """Whatever it was doing, the other one ends it as if nothing had been; ``NUMA_EXT_SEED`` repeats the moment.

    Servers that ran before the kill, of this job or of one beside it, run on as they did.
    """
    later_s = random.Random(f"{SEED} {state}").uniform(0.0, LATEST_KILL_S)
    sys.stdout.write(f"seed {SEED}: SIGKILL {later_s:.2f} s after a job is {state}\n")
    beside = jobs.submit(part("work", "lab.tiny"), name="beside")
    jobs.reached(beside, "running")
    ran = jobs.untouched(beside)
    assert [status for status, *_ in ran.values()] == ["ACTIVE"]
    term = jobs.term()
    with job_in(jobs, state) as job:
        before = jobs.untouched(job) if state == "running" else {}
        time.sleep(later_s)
        jobs.kill_leader()
    eventually("the other engine leads", lambda: jobs.term() > term, FOLLOWED_S, 0.5)
    jobs.leader()
    if state == "queued":
        jobs.api.change(jobs.shown(job), "release")
    if state != "ending":
        shown = jobs.reached(job, "running")
        counted = {each["id"] for each in shown["parts"][0]["servers"]}
        assert len(counted) == 2
        eventually("no duplicate is left", lambda: jobs.servers(job).keys() == counted, 60)
        still_the_same(jobs, job, before or jobs.untouched(job))
        jobs.cancel(job)
    nothing_is_left(jobs, job)
    assert jobs.shown(job)["state"] == "cancelled"
    still_the_same(jobs, beside, ran)
    jobs.cancel(beside)
    nothing_is_left(jobs, beside)


@pytest.mark.long
@pytest.mark.parametrize("state", STATES)
def test_a_job_is_cancelled_in_any_state(jobs: LabJobs, state: str) -> None:
    with job_in(jobs, state) as job:
        if state != "ending":
            jobs.cancel(job)
    nothing_is_left(jobs, job)
    assert jobs.shown(job)["state"] == "cancelled"


@pytest.mark.long
def test_topo_p_waits_for_a_better_place_and_starts_when_a_job_ends(
    cloud: LabCloud, jobs: LabJobs
) -> None:
    """F-000-15, F-000-16: J3 of table 7 waits while h1 has only GPUs of two sockets free, though these are two.

    h2 is filled, so that h1 is the whole cloud for it. J0 and J1 are servers that are made beside the queue; J2 is a
    job, whose end starts J3.
    """

    def of(gpus: int, min_utility: float, **more: str) -> str:
        specs = {"pci_passthrough:alias": f"gpu:{gpus}", "numa_ext:min_utility": str(min_utility)}
        return cloud.flavor({**TOPO_P, **specs, **more})

    if "h2" in cloud.hosts:
        quad = of(4, 0.1)
        for _ in range(2):
            cloud.placed(cloud.create(quad, "--host", "h2"))
    one, two = of(1, 0.3), of(2, 0.5)
    j0, j1 = (cloud.placed(cloud.create(one, "--host", "h1")) for _ in range(2))
    for server in (j0, j1):
        cloud.active(server)
    j2 = jobs.submit(part("train", one), name="j2")
    jobs.reached(j2, "running")
    [of_j2] = jobs.servers(j2)
    assert cloud.api.compute.get_server(of_j2).compute_host == "h1"
    cloud.delete([j0.id])

    j3 = jobs.submit(part("train", two), name="j3")
    shown = jobs.waits(j3, "postponed", timeout_s=60)
    assert shown["postponed"] >= 1
    jobs.cancel(j2)
    jobs.reached(j3, "running")
    [of_j3] = jobs.servers(j3)
    assert cloud.api.compute.get_server(of_j3).compute_host == "h1"
    assert jobs.shown(j3)["postponed"] < 10, "it took any place at last"


@pytest.mark.long
def test_a_leader_that_was_paused_writes_nothing_when_it_goes_on(jobs: LabJobs) -> None:
    beside = jobs.submit(part("work", "lab.tiny"), name="beside")
    jobs.reached(beside, "running")
    ran = jobs.untouched(beside)
    job = jobs.submit(part("work", "lab.tiny", count=2, apart=True), held=True)
    leader, term = jobs.leader(), jobs.term()
    jobs.api.change(jobs.shown(job), "release")
    eventually(f"job {job} is building", lambda: jobs.state(job) == "building", BOOTED_S, 0.01)
    with jobs.paused(leader):
        time.sleep(PAUSED_S)
        follower = jobs.leader()
        assert follower.name != leader.name
        assert jobs.term() == term + 1
        shown = jobs.reached(job, "running")
        before = jobs.untouched(job)
    counted = {each["id"] for each in shown["parts"][0]["servers"]}
    still_the_same(jobs, job, before)
    still_the_same(jobs, beside, ran)
    assert jobs.servers(job).keys() == counted
    assert jobs.leader().name == follower.name
    assert jobs.term() == term + 1, "who was paused leads again"
    late = (
        "SELECT id FROM event WHERE term = %s AND id > (SELECT MIN(id) FROM event WHERE term > %s)"
    )
    assert jobs.ask(late, str(term), str(term)) == [], "written in a term that was over"
    jobs.cancel(job, beside)
    nothing_is_left(jobs, job, beside)


@pytest.mark.long
@pytest.mark.parametrize("name", ["mariadb", "placement", "keystone", "nova-api"])
def test_a_service_is_restarted_under_jobs(jobs: LabJobs, gpus: str, name: str) -> None:
    """What runs is not touched; what waits, and what is submitted after, starts in order."""
    first = jobs.submit(part("gpu", gpus), name="first")
    jobs.reached(first, "running")
    second = jobs.submit(part("gpu", gpus), name="second")
    jobs.waits(second, "no_room")
    before = jobs.untouched(first)
    jobs.restart(name)
    eventually("the API answers", lambda: jobs.answers(first), 120)
    still_the_same(jobs, first, before)
    third = jobs.submit(part("work", "lab.tiny"), name="third")
    jobs.cancel(first)
    jobs.reached(second, "running")
    jobs.reached(third, "running")
    jobs.cancel(second, third)
    nothing_is_left(jobs, first, second, third)


@pytest.mark.long
def test_an_old_database_is_restored_under_jobs_that_run(jobs: LabJobs) -> None:
    """The engines find it out and do nothing; of two jobs that run one is not known to it, until that is committed."""
    known = jobs.submit(part("work", "lab.tiny"), name="known")
    jobs.reached(known, "running")
    database = jobs.database()
    backup = backed_up(database)
    unknown = jobs.submit(part("work", "lab.tiny", count=2), name="unknown")
    jobs.reached(unknown, "running")
    before = {job: jobs.untouched(job) for job in (known, unknown)}
    restored(database, backup)

    def recovers() -> bool:
        [(since,)] = jobs.ask("SELECT recover_at FROM leader")
        return since is not None

    eventually("the database recovers", recovers, FOLLOWED_S, 0.5)
    time.sleep(TWO_ROUNDS_S)
    assert {job: jobs.untouched(job) for job in before} == before
    shown = jobs.recover()
    assert ["ADOPT", "job", unknown] in [line.split()[:3] for line in shown.splitlines()], shown
    assert "Nothing was changed" in shown
    assert "Done: engines go on." in jobs.recover("--commit")
    jobs.reached(unknown, "running")
    for job, as_it_was in before.items():
        still_the_same(jobs, job, as_it_was)
    jobs.cancel(known, unknown)
    nothing_is_left(jobs, known, unknown)


@pytest.mark.long
def test_two_processes_of_the_api_are_one(jobs: LabJobs) -> None:
    """A request that is sent to both is one job, and either shows and changes what the other has stored."""
    with jobs.another_api() as url:
        key, body = str(uuid.uuid4()), {"name": "it", "parts": [part("work", "lab.tiny")]}
        told = [
            each.post("/v1/jobs", json={"job": body}, headers={"Idempotency-Key": key}).json()[
                "job"
            ]
            for each in (jobs.adapter(), jobs.adapter(url))
        ]
        job = jobs.noted(str(told[0]["id"]))
        assert told[1]["id"] == job
        jobs.reached(job, "running")
        jobs.service("numa-ext-jobs-api").process.stop()
        other = jobs.client(url)
        assert other.find(job)["state"] == "running"
        other.change(other.find(job), "cancel")
        jobs.running_again()
    nothing_is_left(jobs, job)
