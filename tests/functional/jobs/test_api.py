# SPDX-License-Identifier: Apache-2.0
"""The API of jobs: who may do what, what a job may be, and a sentence for all else."""

import json
import random
from dataclasses import replace

import pytest
from oslo_config import cfg
from oslo_policy import policy

from nova_numa_ext.orchestrator.api import app, policies
from nova_numa_ext.orchestrator.api.intake import ProjectQuota, UserFlavor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Actor, Jobs, Sizes
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from placement_traits.reason import Reason
from tests.support.jobs_database import new_job

BODY = {
    "job": {
        "name": "train",
        "parts": [
            {
                "name": "gpu",
                "count": 2,
                "flavor": "big",
                "image": "image-1",
                "extra_specs": {"numa_ext:gpu_policy": "topo_p"},
                "wait_for": [{"scope": "host", "wait_s": 600}, {"scope": "fleet"}],
                "on_failure": "replace",
            },
            {"name": "cpu", "flavor": "big"},
        ],
        "walltime_s": 3600,
        "held": True,
    }
}


class FakeCloud:
    """What the user's token gives: one flavor, limits, trusts."""

    def __init__(self):
        self.limits = ProjectQuota()
        self.refuses = None
        self.trusts = 0

    def flavor(self, reference):
        if self.refuses:
            raise self.refuses
        sizes = Sizes(vcpus=4, memory_mb=1024, disk_gb=10)
        return (
            UserFlavor("flavor-1", sizes, {"hw:mem_page_size": "any"})
            if reference == "big"
            else None
        )

    def quota(self):
        return self.limits

    def trust(self):
        self.trusts += 1
        return f"trust-{self.trusts}"


def headers(*roles, project="project-1", user="user-1", **more):
    """What keystonemiddleware sets."""
    return {
        "X-Identity-Status": "Confirmed",
        "X-User-Id": user,
        "X-Project-Id": project,
        "X-Roles": ",".join(roles),
        **more,
    }


READER, MEMBER = headers("reader"), headers("reader", "member")
ADMIN = headers("reader", "member", "admin", project="project-of-admins", user="admin-1")
SERVICE = headers("service", project="services", user="agent-1")
OTHER = headers("reader", "member", project="project-2", user="user-2")
NO_ROLE = headers()
SYSTEM = {
    "X-Identity-Status": "Confirmed",
    "X-User-Id": "admin-2",
    "X-Roles": "admin,member,reader",
    "OpenStack-System-Scope": "all",
}


@pytest.fixture
def cloud():
    return FakeCloud()


@pytest.fixture
def jobs(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/jobs.db", sqlite_synchronous=False)
    database.sync()
    return Jobs(database)


@pytest.fixture
def client(jobs, cloud):
    conf = cfg.ConfigOpts()
    enforcer = policy.Enforcer(conf)
    conf([], default_config_files=[])
    enforcer.register_defaults(policies.RULES)
    return app.make(jobs, enforcer, lambda _environ: cloud).test_client()


def detail(response):
    (error,) = response.json["errors"]
    assert error["status"] == response.status_code
    return error["detail"]


def test_a_job_is_submitted_as_it_was_asked_for(client, jobs):
    response = client.post("/v1/jobs", json=BODY, headers=MEMBER)
    assert response.status_code == 201
    shown = response.json["job"]
    job = jobs.read(shown["id"])
    assert (job.project, job.user, job.trust, job.held) == ("project-1", "user-1", "trust-1", True)
    assert (shown["state"], shown["reasons"][0]["sentence"]) == ("queued", "submitted by user-1")
    gpu, cpu = shown["parts"]
    assert gpu["extra_specs"] == {"hw:mem_page_size": "any", "numa_ext:gpu_policy": "topo_p"}
    assert gpu["wait_for"] == [
        {"scope": "host", "wait_s": 600},
        {"scope": "fleet", "wait_s": None},
    ]
    assert (cpu["count"], cpu["on_failure"], cpu["servers"]) == (1, "fail", [])
    assert "trust" not in json.dumps(shown)
    assert client.get(f"/v1/jobs/{job.uuid}", headers=READER).json == {"job": shown}


def test_a_dry_run_stores_nothing(client, jobs, cloud):
    response = client.post("/v1/jobs?dry_run=true", json=BODY, headers=MEMBER)
    assert (response.status_code, response.json["job"]["name"]) == (200, "train")
    assert (jobs.find(), cloud.trusts) == ([], 0)


def test_lists_are_paged_and_by_state(client, jobs):
    mine = [jobs.create(new_job(f"job{number}")) for number in range(3)]
    theirs = jobs.create(new_job(project="project-2"))
    jobs.move(mine[0], JobState.CANCELLED, (Reason("cancelled", "user-1"),), Actor("user-1"))

    def listed(query, who=READER):
        response = client.get(f"/v1/jobs{query}", headers=who)
        return [each["id"] for each in response.json["jobs"]]

    uuids = [job.uuid for job in mine]
    assert listed("") == uuids
    assert listed("?limit=1") == uuids[:1]
    assert listed(f"?limit=5&marker={uuids[0]}") == uuids[1:]
    assert listed("?state=cancelled") == uuids[:1]
    assert listed("?state=queued&state=running") == uuids[1:]
    assert listed("?all_projects=true", ADMIN) == [*uuids, theirs.uuid]
    assert listed("", OTHER) == [theirs.uuid]


def test_hold_release_and_cancel_are_events_with_their_actor(client, jobs):
    job = jobs.create(new_job())
    for what in ("hold", "hold", "release", "cancel", "cancel"):
        assert client.post(f"/v1/jobs/{job.uuid}/{what}", headers=MEMBER).status_code == 202
    events = client.get(f"/v1/jobs/{job.uuid}/events", headers=READER).json["events"]
    assert [each["what"] for each in events] == ["state", "held", "held", "cancelled"]
    assert [each["reasons"][0]["sentence"] for each in events[1:]] == [
        "held by user-1 until it is released",
        "released by user-1",
        "cancelled by user-1",
    ]
    later = client.get(f"/v1/jobs/{job.uuid}/events?after={events[2]['id']}", headers=READER)
    assert later.json["events"] == events[3:]


def test_what_has_ended_stays_so(client, jobs):
    job = jobs.create(new_job())
    jobs.move(job, JobState.FAILED, (Reason("max_wait", 9, 8),), Actor("engine"))
    for what in ("hold", "cancel"):
        response = client.post(f"/v1/jobs/{job.uuid}/{what}", headers=MEMBER)
        assert response.status_code == 409
        assert "is failed" in detail(response)


def test_a_cancel_wins_against_an_engine_that_changes_the_job(client, jobs, monkeypatch):
    """The job changes between look and write, twice."""
    job = jobs.create(new_job())
    plain, left = jobs.set, [1, 2]

    def racing(read, *arguments, **changes):
        if left:
            plain(jobs.read(job.uuid), Actor("engine"), postponed=left.pop())
        return plain(read, *arguments, **changes)

    monkeypatch.setattr(jobs, "set", racing)
    assert client.post(f"/v1/jobs/{job.uuid}/cancel", headers=MEMBER).status_code == 202
    assert (jobs.read(job.uuid).cancelled, left) == (True, [])


ROUTES = {
    "create": ("POST", "/v1/jobs"),
    "first": ("POST", "/v1/jobs"),
    "list": ("GET", "/v1/jobs"),
    "list all": ("GET", "/v1/jobs?all_projects=true"),
    "show": ("GET", "/v1/jobs/{job}"),
    "events": ("GET", "/v1/jobs/{job}/events"),
    "hold": ("POST", "/v1/jobs/{job}/hold"),
    "release": ("POST", "/v1/jobs/{job}/release"),
    "cancel": ("POST", "/v1/jobs/{job}/cancel"),
    "not there": ("GET", "/v1/jobs/none"),
    "versions": ("GET", "/"),
}
#              route       reader member admin service other no role system no token
TABLE = """
               create      403    201    201   403     201   403     403    401
               first       403    403    201   403     403   403     403    401
               list        200    200    200   200     200   403     403    401
               list all    403    403    200   200     403   403     403    401
               show        200    200    200   200     404   403     403    401
               events      200    200    200   200     404   403     403    401
               hold        403    202    202   403     404   403     403    401
               release     403    202    202   403     404   403     403    401
               cancel      403    202    202   403     404   403     403    401
               not there   404    404    404   404     404   403     403    401
               versions    200    200    200   200     200   200     200    200
"""
WHO = (READER, MEMBER, ADMIN, SERVICE, OTHER, NO_ROLE, SYSTEM, {})
ROWS = [
    (line[:27].strip(), list(map(int, line[27:].split()))) for line in TABLE.split("\n") if line
]


@pytest.mark.parametrize(("route", "expected"), ROWS, ids=[name for name, _ in ROWS])
def test_who_may_do_what(client, jobs, route, expected):
    method, path = ROUTES[route]
    body = BODY if route != "first" else {"job": {**BODY["job"], "priority": 1}}
    found = []
    for who in WHO:
        job = jobs.create(new_job())
        sent = {"json": body} if path == "/v1/jobs" and method == "POST" else {}
        found.append(
            client.open(path.format(job=job.uuid), method=method, headers=who, **sent).status_code
        )
    assert found == expected
    assert set(ROUTES) == {name for name, _ in ROWS}


def changed(path, value):
    """The body with another value at a path."""
    body = json.loads(json.dumps(BODY))
    place = body
    *way, last = path
    for each in way:
        place = place[each]
    place[last] = value
    return body


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([], "$: [] is not allowed; allowed: type object"),
        ({}, "$: {} is not allowed; allowed: an object with job"),
        (changed(("job", "parts"), []), "$.job.parts: [] is not allowed; allowed: minItems 1"),
        (
            changed(("job", "parts", 0, "count"), 0),
            "$.job.parts[0].count: 0 is not allowed; allowed: minimum 1",
        ),
        (changed(("job", "walltime_s"), -1), "$.job.walltime_s: -1 is not allowed"),
        (changed(("job", "priority"), 10**9), "$.job.priority: 1000000000 is not allowed"),
        (changed(("job", "colour"), "red"), "allowed: only deadline_at, held, max_wait_s, name"),
        (changed(("job", "parts", 1, "name"), "gpu"), "allowed: parts with names of their own"),
        (changed(("job", "parts", 1, "name"), "a/b"), "$.job.parts[1].name: 'a/b' is not allowed"),
        (changed(("job", "parts", 1, "name"), "cpu\n"), "$.job.parts[1].name: 'cpu\\n' is not"),
        (changed(("job", "parts", 1, "flavor"), "big\n"), "$.job.parts[1].flavor: 'big\\n' is not"),
        (
            changed(("job", "parts", 1, "flavor"), "none"),
            "$.job.parts[1].flavor: 'none' is not allowed; allowed: name or id of a flavor that the project may use",
        ),
        (
            changed(("job", "parts", 0, "extra_specs"), {"numa_ext:tier": "GOLD"}),
            "numa_ext:tier",
        ),
        (
            changed(("job", "parts", 0, "apart"), True),
            "part gpu: wait_for",
        ),
    ],
)
def test_a_body_that_has_no_meaning_is_a_sentence(client, jobs, body, sentence):
    response = client.post("/v1/jobs", json=body, headers=MEMBER)
    assert response.status_code == 400
    assert sentence in detail(response)
    assert jobs.find() == []


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("?limit=0", "query limit: '0' is not allowed; allowed: a whole number from 1 to 1000"),
        ("?limit=²", "query limit"),
        ("?state=asleep", "query state: 'asleep' is not allowed; allowed: queued, planned"),
        ("?all_projects=perhaps", "query all_projects: 'perhaps' is not allowed"),
    ],
)
def test_a_query_that_has_no_meaning_is_a_sentence(client, path, sentence):
    response = client.get(f"/v1/jobs{path}", headers=READER)
    assert response.status_code == 400
    assert sentence in detail(response)


def test_what_is_no_json_or_too_long_is_a_sentence(client):
    response = client.post("/v1/jobs", data=b"{'job'", headers=MEMBER)
    assert (response.status_code, "allowed: JSON" in detail(response)) == (400, True)
    response = client.post("/v1/jobs", data=b"[" * 100_000, headers=MEMBER)
    assert response.status_code == 400
    response = client.post("/v1/jobs", data=b" " * (2**20 + 1), headers=MEMBER)
    assert response.status_code == 413
    assert client.delete("/v1/jobs", headers=MEMBER).status_code == 405
    assert "errors" in client.get("/v2", headers=MEMBER).json


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"instances": 2}, "needs 3 instances, and the project's quota in nova is 2"),
        ({"cores": 11}, "needs 12 cores"),
        ({"memory_mb": 3071}, "needs 3072 MiB of memory"),
        ({"groups": 0}, "needs 1 server groups"),
        ({"members": 1}, "needs 2 members of a server group"),
    ],
)
def test_a_job_that_no_quota_will_ever_hold_is_refused(client, cloud, limits, sentence):
    cloud.limits = replace(ProjectQuota(instances=3, cores=12, memory_mb=3072), **limits)
    response = client.post("/v1/jobs", json=BODY, headers=MEMBER)
    assert response.status_code == 403
    assert sentence in detail(response)
    assert cloud.trusts == 0
    cloud.limits = ProjectQuota(instances=3, cores=12, memory_mb=3072, groups=1, members=2)
    assert client.post("/v1/jobs", json=BODY, headers=MEMBER).status_code == 201


@pytest.mark.parametrize(
    ("error", "status"),
    [(ServiceUnavailableError("Nova is away."), 503), (CapabilityMissingError("No trust."), 409)],
)
def test_a_cloud_that_refuses_is_a_sentence(client, cloud, error, status):
    cloud.refuses = error
    response = client.post("/v1/jobs", json=BODY, headers=MEMBER)
    assert (response.status_code, detail(response)) == (status, str(error))


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("numa-ext 1.0", 200),
        ("numa-ext latest", 200),
        ("compute 2.96", 200),
        ("numa-ext 1.1", 406),
        ("numa-ext 0.9", 406),
        ("numa-ext one", 400),
        ("numa-ext 1.0.0", 400),
        ("", 200),
    ],
)
def test_the_version_is_asked_for_in_a_header(client, asked, status):
    response = client.get("/", headers={"OpenStack-API-Version": asked})
    assert response.status_code == status
    assert response.headers["OpenStack-API-Version"] == "numa-ext 1.0"
    assert "OpenStack-API-Version" in response.headers["Vary"]


_SCRAPS = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1e308, -0.5, "", "a", "big", "fleet"),
    *("numa_ext:tier", "LC", "\x00", "\ud800", "é" * 300, "9" * 5000, [], {}, [[]], [{}]),
)


def _scrambled(chance, value, depth=0):
    """A body of which parts are replaced, left out, doubled or made of nothing."""
    if chance.random() < 0.12 or depth > 6:
        return chance.choice(_SCRAPS)
    if isinstance(value, dict):
        made = {
            (chance.choice(_KEYS) if chance.random() < 0.05 else key): _scrambled(
                chance, each, depth + 1
            )
            for key, each in value.items()
            if chance.random() > 0.05
        }
        if chance.random() < 0.05:
            made[chance.choice(_KEYS)] = chance.choice(_SCRAPS)
        return made
    if isinstance(value, list):
        return [_scrambled(chance, each, depth + 1) for each in value * chance.choice((1, 1, 2))]
    return value


_KEYS = ("name", "parts", "count", "flavor", "wait_for", "scope", "job", "", "é", "\x00", "a" * 999)


@pytest.mark.parametrize(
    "count", [500, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_no_body_is_answered_with_a_fault_of_ours(client, count):
    chance = random.Random(count)
    seen = set()
    for _ in range(count):
        body = json.dumps(_scrambled(chance, BODY)).encode()
        if chance.random() < 0.05:
            body = body[: chance.randrange(len(body) + 1)]
        path = "/v1/jobs" if chance.random() < 0.01 else "/v1/jobs?dry_run=true"
        response = client.post(path, data=body, headers=MEMBER)
        assert response.status_code in (200, 201, 400), (body, response.text)
        seen.add(response.status_code)
    assert {200, 400} <= seen
