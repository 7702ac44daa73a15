# SPDX-License-Identifier: Apache-2.0
"""The API of jobs: who may do what, what a job may be, and a sentence for all else."""

import json
import random
import time
from collections import Counter
from dataclasses import replace

import jsonschema
import pytest
import yaml
from flask import request
from oslo_config import cfg
from oslo_policy import policy
from sqlalchemy import QueuePool, create_engine, update

from nova_numa_ext.group_topology import FORMATS
from nova_numa_ext.orchestrator import queued
from nova_numa_ext.orchestrator.api import answers, app, policies, routes, scaling_schema, schemas
from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.cabling import Cabling
from nova_numa_ext.orchestrator.cloud.stacks import Stack
from nova_numa_ext.orchestrator.cloud.user import (
    ProjectQuota,
    UserFlavor,
    UserGroup,
    UserImage,
    UserNetwork,
)
from nova_numa_ext.orchestrator.conf import ApiOptions
from nova_numa_ext.orchestrator.notify import no_receiver
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database, DatabaseError
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leader import Election
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.scaling import (
    Act,
    ScalingGroups,
    ScalingSource,
    StackTemplate,
)
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice, LeaseSpec
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from nova_numa_ext.policy.elastic.following import follow
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.trace import read_trace
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import OPEN, TENANTS_SENTENCES, JobTerm, for_tenants
from nova_numa_ext.policy.jobs.terms import sentence as sentence_of
from nova_numa_ext.policy.remote_gpu import leases as life
from placement_traits.errors import (
    CapabilityMissingError,
    InvalidValueError,
    ServiceUnavailableError,
)
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.reason import Reason
from tests.support.elastic import SimpleModels
from tests.support.jobs_database import new_job, with_tables
from tests.support.jobs_world import World
from tests.support.lease_service import credential

BODY = {
    "job": {
        "name": "train",
        "parts": [
            {
                "name": "gpu",
                "count": 2,
                "flavor": "big",
                "image": "debian",
                "networks": ["blue"],
                "extra_specs": {"numa_ext:gpu_policy": "topo_p"},
                "wait_for": [{"scope": "host", "wait_s": 600}, {"scope": "fleet"}],
                "on_failure": "replace",
            },
            {"name": "cpu", "flavor": "big", "image": "image-1", "networks": ["blue"]},
        ],
        "walltime_s": 3600,
        "held": True,
    }
}


LEASE = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
LEASE_BODY = {"lease": {"memory_mb": 1000, "api": "opencl", "service_level": "silver"}}

GROUP = "5b4b7a52-8e4c-4c8f-8f0c-2a8f1f9c6c11"
TOPOLOGY = f"/v1/groups/{GROUP}/topology"
KEY = "0123456789abcdef0123456789abcdef"
MEMBERS = {f"server-{number}": f"rank-{number}" for number in range(4)}
CABLING = Cabling(
    "hall-berlin",
    ("leaf", "pod"),
    (("leaf-a", "pod-x"), ("leaf-a", "pod-x"), ("leaf-b", "pod-x"), ()),
)
SCALING_BODY = {"scaling": {"settings": {"objective_ms": 35.0}, "source": {"csv": "web.csv"}}}

FLAVORS = {
    "big": UserFlavor("flavor-1", 4, 1024, 12, 10, {"hw:mem_page_size": "any"}),
    "tiny": UserFlavor("flavor-2", 1, 64, 1, 1, {}),
}
IMAGES = {
    "debian": (UserImage("image-1", "active", 5, 512),),
    "image-1": (UserImage("image-1", "active", 5, 512),),
    "twins": (UserImage("image-2", "active", 0, 0), UserImage("image-3", "active", 0, 0)),
    "queued": (UserImage("image-4", "queued", 0, 0),),
    "wide": (UserImage("image-5", "active", 11, 0),),
}
BLUE, RED = UserNetwork("network-1", "blue"), UserNetwork("network-2", "red")


class FakeCloud:
    """What the user's token gives: flavors, images, networks, limits, trusts.

    :ivar refuses: when set, raised where a flavor is asked for
    :ivar keeps: when set, raised where a trust is to be deleted
    :ivar trusts: id -> until when
    """

    def __init__(self):
        self.limits = ProjectQuota()
        self.available = (BLUE,)
        self.refuses = None
        self.refuses_trust = None
        self.keeps = None
        self.trusts = {}
        self.group = UserGroup("project-1", (*MEMBERS, "of another project"))
        self.cabling = CABLING

    def user_group(self, uuid):
        return self.group if uuid == GROUP else None

    def servers_of(self, project):
        assert project == self.group.project
        return {**MEMBERS, "server-9": "of no group"}

    def of(self, servers):
        """Placement's part: where servers hang."""
        assert servers == [*MEMBERS]
        return self.cabling

    def flavor(self, reference):
        if self.refuses:
            raise self.refuses
        return FLAVORS.get(reference)

    def images(self, reference):
        return IMAGES.get(reference, ())

    def networks(self, reference):
        return [each for each in (BLUE, RED, replace(RED, name="blue2")) if each.name == reference]

    def available_networks(self):
        return self.available

    def quota(self):
        return self.limits

    def stack(self, reference):
        if self.refuses:
            raise self.refuses
        parameters = {"size": "3", "flavor": "small", "key": "******"}
        found = Stack("stack-1", "web", "CREATE_COMPLETE", "", parameters)
        return found if reference in {"web", "stack-1"} else None

    def project_of(self, _server):
        return "project-1"

    def server_group(self, uuid):
        return "project-1" if uuid == GROUP else None

    def check_trust(self):
        if self.refuses_trust:
            raise self.refuses_trust

    def trust(self, expires_at):
        trust = f"trust-{len(self.trusts) + 1}"
        self.trusts[trust] = expires_at
        return trust

    def delete_trust(self, trust):
        if self.keeps:
            raise self.keeps
        del self.trusts[trust]


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
OTHERS_READER = headers("reader", project="project-2", user="user-3")
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
    return Jobs(with_tables(tmp_path / "jobs.db"))


@pytest.fixture
def client(jobs, cloud):
    return client_of(jobs, cloud)


def client_of(jobs, cloud, queue=None, rules=(), tell=no_receiver, **options):
    """A client of an application of its own.

    :param rules: of an operator's own
    :param tell: called with what happens to jobs
    """
    conf = cfg.ConfigOpts()
    enforcer = policy.Enforcer(conf)
    conf([], default_config_files=[])
    enforcer.register_defaults(policies.RULES)
    enforcer.set_rules(policy.Rules.from_dict(dict(rules)), overwrite=False, use_conf=True)
    made = app.make(
        replace(Stores.of(jobs._database), jobs=jobs),
        enforcer,
        lambda _environ: cloud,
        cloud,
        ApiOptions(**{"topology_key": KEY, **options}),
        queue=queue,
        tell=tell,
    )
    made.after_request(as_declared)
    return made.test_client()


def as_declared(response):
    """Hold an answer against the schemas and statuses of which the reference is made."""
    schema = answers.ERRORS
    of_path = [each for each in routes.ROUTES if f"{each.method} {each.path}" == request.endpoint]
    if response.status_code < 300:
        (route,) = of_path
        schema = route.answers[response.status_code]
    elif response.status_code != 304:
        known = set(routes.ERRORS).union(*(each.errors for each in of_path))
        assert response.status_code in known, f"{request.endpoint}: not in the reference"
    jsonschema.Draft202012Validator(schema).validate(response.json)
    return response


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


def test_what_is_not_given_is_as_the_schema_says(client):
    part = {"name": "cpu", "flavor": "big", "image": "debian"}
    body = {"job": {"name": "train", "parts": [part]}}
    shown = client.post("/v1/jobs?dry_run=true", json=body, headers=MEMBER).json["job"]
    asked = schemas.CREATE["properties"]["job"]["properties"]
    for found, members in (
        (shown, asked),
        (shown["parts"][0], asked["parts"]["items"]["properties"]),
    ):
        said = {name: each["default"] for name, each in members.items() if "default" in each}
        assert {name: found[name] for name in said} == said


def test_a_dry_run_stores_nothing(client, jobs, cloud):
    response = client.post("/v1/jobs?dry_run=true", json=BODY, headers=MEMBER)
    assert (response.status_code, response.json["job"]["name"]) == (200, "train")
    assert (jobs.find(), cloud.trusts) == ([], {})


@pytest.mark.parametrize(
    ("table", "what"),
    [
        (tables.job, {"reasons": [1], "target": "gone"}),
        (tables.part, {"sizes": {"no_such": 2}}),
    ],
)
def test_a_job_that_cannot_be_read_is_shown_as_far_as_it_can(client, jobs, table, what):
    """It hides no other one of its project, and nobody believes that it was cancelled."""
    poison, other = jobs.create(new_job("poison")), jobs.create(new_job("other"))
    with jobs._database.transaction() as connection:
        key = table.c.id if table is tables.job else table.c.job_id
        connection.execute(update(table).where(key == poison.number).values(**what))
    listed = client.get("/v1/jobs", headers=READER).json["jobs"]
    assert [each["id"] for each in listed] == [poison.uuid, other.uuid]
    shown = client.get(f"/v1/jobs/{poison.uuid}", headers=READER).json["job"]
    assert shown == listed[0]
    assert (shown["name"], shown["state"], shown["parts"]) == ("poison", "queued", [])
    (reason,) = shown["reasons"]
    assert reason["term"] == "other_form"
    assert "its operator has to look at it" in reason["sentence"]
    response = client.post(f"/v1/jobs/{poison.uuid}/cancel", headers=MEMBER)
    assert response.status_code == 409
    assert reason["sentence"] in response.text
    assert "no_such" not in response.text + json.dumps(shown)


def test_whole_numbers_with_a_point_are_whole_numbers(client):
    """JSON schema calls 2.0 an integer."""
    body = changed(("job", "parts", 0, "count"), 2.0)
    body["job"]["priority"] = 1.0
    job = client.post("/v1/jobs?dry_run=true", json=body, headers=ADMIN).json["job"]
    assert [str(each) for each in (job["parts"][0]["count"], job["priority"])] == ["2", "1"]


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
    later = client.get(f"/v1/jobs/{job.uuid}/events?marker={events[2]['id']}", headers=READER)
    assert later.json["events"] == events[3:]
    first = client.get(f"/v1/jobs/{job.uuid}/events?limit=2", headers=READER)
    assert first.json["events"] == events[:2]


def test_others_are_told_of_what_users_do(jobs, cloud):
    """Once each: what is asked for again has happened already."""
    told = []
    client = client_of(
        jobs, cloud, tell=lambda job, why, action="": told.append((action, job.state, why[0].term))
    )
    key = {"Idempotency-Key": "one"}
    assert client.post("/v1/jobs?dry_run=true", json=BODY, headers=MEMBER).status_code == 200
    for _ in range(2):
        job = client.post("/v1/jobs", json=BODY, headers=MEMBER | key).json["job"]["id"]
    for what in ("release", "hold", "hold", "cancel", "cancel"):
        assert client.post(f"/v1/jobs/{job}/{what}", headers=MEMBER).status_code == 202
    assert client.post(f"/v1/jobs/{job}/hold", headers=READER).status_code == 403
    assert told == [
        ("", JobState.QUEUED, "submitted"),
        ("release", JobState.QUEUED, "released"),
        ("hold", JobState.QUEUED, "held"),
        ("cancel", JobState.QUEUED, "cancelled"),
    ]


def test_what_has_ended_stays_so(client, jobs):
    job = jobs.create(new_job())
    jobs.move(job, JobState.FAILED, (Reason("max_wait", 9, 8),), Actor("engine"))
    for what in ("hold", "cancel"):
        response = client.post(f"/v1/jobs/{job.uuid}/{what}", headers=MEMBER)
        assert response.status_code == 409
        assert "is failed" in detail(response)


def test_a_job_that_asks_for_remote_gpus_is_one_of_the_queues(client, jobs):
    """It has no parts; why it waits is why its leases do."""
    leases, engine = Leases(jobs._database), Actor("engine")
    leases.request(("project-1", "user-1"), LEASE, 2, "server-1", engine)
    first, second = leases.find()
    for each in (first, second):
        leases.wait(each, (Reason("no_gpu", "opencl", 1000),), engine)
    (listed,) = client.get("/v1/jobs", headers=READER).json["jobs"]
    shown = client.get(f"/v1/jobs/{first.job}", headers=READER).json["job"]
    assert listed == shown
    plain = jobs.create(new_job())
    for kind, found in (("attach", first.job), ("servers", plain.uuid)):
        (only,) = client.get(f"/v1/jobs?kind={kind}", headers=READER).json["jobs"]
        assert only["id"] == found
    assert client.get("/v1/jobs?kind=", headers=READER).status_code == 400
    assert (shown["kind"], shown["name"], shown["parts"]) == ("attach", "server-1", [])
    assert shown["leases"] == [first.uuid, second.uuid]
    assert shown["place"] == {"place": 1, "of": 1}
    assert shown["reasons"][0]["sentence"] == "no GPU of a pool has opencl and 1000 MiB left"
    events = client.get(f"/v1/jobs/{first.job}/events", headers=READER).json["events"]
    assert [each["reasons"][0]["term"] for each in events] == ["flavor", "no_gpu"]
    lease = client.get(f"/v1/leases/{first.uuid}", headers=READER).json["lease"]
    assert (lease["job_id"], lease["max_wait_s"]) == (first.job, None)


def test_terms_of_jobs_and_leases_that_are_spelled_alike_are_kept_apart(client, jobs):
    leases = Leases(jobs._database)
    lease = leases.create("project-1", "user-1", LEASE)
    path = f"/v1/jobs/{lease.job}"

    def why():
        return client.get(path, headers=READER).json["job"]["reasons"][0]["sentence"]

    for what, sentence in (
        ("hold", "held by user-1 until it is released"),
        ("release", "released by user-1"),
    ):
        assert client.post(f"{path}/{what}", headers=MEMBER).status_code == 202
        assert why() == sentence
    choice = LeaseChoice("g1", "gpu-1", {"gpu-1": {"CUSTOM_RGPU_MEM_MB": 1000}})
    (chosen,) = leases.choose([lease], [choice], Actor("engine"))
    leases.hold(chosen, Actor("engine"))
    assert why() == "Placement holds what it needs"
    assert client.post(f"{path}/hold", headers=MEMBER).status_code == 409
    assert client.post(f"{path}/cancel", headers=MEMBER).status_code == 202
    assert why() == "cancelled by user-1"


def test_a_lease_says_how_long_it_waits_at_most(client, jobs):
    body = {"lease": {**LEASE_BODY["lease"], "max_wait_s": 600}}
    lease = client.post("/v1/leases", json=body, headers=ADMIN).json["lease"]
    assert lease["max_wait_s"] == 600
    assert jobs.read(lease["job_id"]).max_wait_s == 600
    body["lease"]["max_wait_s"] = 0
    assert client.post("/v1/leases", json=body, headers=ADMIN).status_code == 400


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
    "limits": ("GET", "/v1/limits"),
    "lease": ("POST", "/v1/leases"),
    "leases": ("GET", "/v1/leases"),
    "all leases": ("GET", "/v1/leases?all_projects=true"),
    "a lease": ("GET", "/v1/leases/{lease}"),
    "attach": ("POST", "/v1/leases/{lease}/attach"),
    "move": ("POST", "/v1/leases/{lease}/move"),
    "requeue": ("POST", "/v1/leases/{lease}/requeue"),
    "give back": ("POST", "/v1/leases/{lease}/release"),
    "no lease": ("GET", "/v1/leases/none"),
    "of a host": ("GET", "/v1/hosts/g1/leases"),
    "report": ("POST", "/v1/hosts/g1/leases"),
    "host off": ("POST", "/v1/hosts/g1/off"),
    "not there": ("GET", "/v1/jobs/none"),
    "scaling": ("PUT", "/v1/scaling/{group}"),
    "groups": ("GET", "/v1/scaling"),
    "all groups": ("GET", "/v1/scaling?all_projects=true"),
    "a group": ("GET", "/v1/scaling/{group}"),
    "no more": ("DELETE", "/v1/scaling/{group}"),
    "none": ("DELETE", "/v1/scaling/none"),
    "decisions": ("GET", "/v1/scaling/{group}/decisions"),
    "pause": ("POST", "/v1/scaling/{group}/pause"),
    "resume": ("POST", "/v1/scaling/{group}/resume"),
    "no group": ("GET", "/v1/scaling/none"),
    "topology": ("GET", "/v1/groups/{group}/topology"),
    "no topology": ("GET", "/v1/groups/none/topology"),
    "versions": ("GET", "/"),
}
#              route       reader member admin service other other's reader no role system no token
TABLE = """
               create      403    201    201   403     201   403            403     403    401
               first       403    403    201   403     403   403            403     403    401
               list        200    200    200   200     200   200            403     403    401
               list all    403    403    200   200     403   403            403     403    401
               show        200    200    200   200     404   404            403     403    401
               events      200    200    200   200     404   404            403     403    401
               hold        403    202    202   403     404   403            403     403    401
               release     403    202    202   403     404   403            403     403    401
               cancel      403    202    202   403     404   403            403     403    401
               limits      200    200    200   200     200   200            403     403    401
               lease       403    403    202   403     403   403            403     403    401
               leases      200    200    200   200     200   200            403     403    401
               all leases  403    403    200   200     403   403            403     403    401
               a lease     200    200    200   200     404   404            403     403    401
               attach      403    202    202   403     404   403            403     403    401
               move        403    403    409   403     403   403            403     403    401
               requeue     403    409    409   403     404   403            403     403    401
               give back   403    202    202   403     404   403            403     403    401
               no lease    404    404    404   404     404   404            403     403    401
               of a host   403    403    200   200     403   403            403     403    401
               report      403    403    403   403     403   403            403     403    401
               host off    403    403    404   403     403   403            403     403    401
               not there   404    404    404   404     404   404            403     403    401
               scaling     403    403    200   403     403   403            403     403    401
               groups      200    200    200   200     200   200            403     403    401
               all groups  403    403    200   200     403   403            403     403    401
               a group     200    200    200   200     404   404            403     403    401
               no more     403    403    204   403     403   403            403     403    401
               none        403    403    404   403     403   403            403     403    401
               decisions   200    200    200   200     404   404            403     403    401
               pause       403    200    200   403     404   403            403     403    401
               resume      403    200    200   403     404   403            403     403    401
               no group    404    404    404   404     404   404            403     403    401
               topology    200    200    200   403     404   404            403     403    401
               no topology 404    404    404   403     404   404            403     403    401
               versions    200    200    200   200     200   200            200     200    200
"""
WHO = (READER, MEMBER, ADMIN, SERVICE, OTHER, OTHERS_READER, NO_ROLE, SYSTEM, {})
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
        lease = Leases(jobs._database).create("project-1", "user-1", LEASE)
        posted = {
            "/v1/jobs": body,
            "/v1/leases": LEASE_BODY,
            "/v1/leases/{lease}/attach": {"attach": {"server_id": job.uuid}},
            "/v1/leases/{lease}/move": {"move": {"pool": ""}},
        }
        bodies = posted if method == "POST" else {}
        ScalingGroups(jobs._database).set(
            GROUP, "project-1", "user-1", ScalingSettings(35.0), ScalingSource("web.csv")
        )
        bodies |= {"/v1/scaling/{group}": SCALING_BODY} if method == "PUT" else {}
        sent = {"json": bodies[path]} if path in bodies else {}
        there = path.format(job=job.uuid, lease=lease.uuid, group=GROUP)
        found.append(client.open(there, method=method, headers=who, **sent).status_code)
    assert found == expected


def uuid_in(path):
    return (
        path.partition("?")[0]
        .replace("{job}", "<uuid>")
        .replace("{lease}", "<uuid>")
        .replace("{group}", "<uuid>")
        .replace("/g1/", "/<host>/")
        .replace("{host}", "<host>")
    )


def test_the_table_is_of_every_route_and_every_rule(client):
    assert set(ROUTES) == {name for name, _ in ROWS}
    tried = {(method, uuid_in(path)) for method, path in ROUTES.values()}
    made = {
        (method, rule.rule)
        for rule in client.application.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
        if rule.endpoint != "static"
    }
    assert made - {("GET", "/")} == {each for each in tried if "none" not in each[1]} - {
        ("GET", "/")
    }
    documented = {
        (each["method"], uuid_in(each["path"]))
        for rule in policies.RULES
        for each in rule.operations
    }
    assert documented == made - {("GET", "/")}


# Hosts, jobs of other projects, words of Placement, Keystone and the database.
OPERATORS = {
    JobTerm.QUIET_LEAFS,
    JobTerm.BEHIND,
    JobTerm.RESERVED,
    JobTerm.HOSTS_EXCLUDED,
    JobTerm.PREEMPTS,
    JobTerm.UNREADABLE,
    JobTerm.OTHER_FORM,
    JobTerm.CLAIM_CONFLICT,
    JobTerm.CLAIM_REFUSED,
    JobTerm.PREEMPTED,
    JobTerm.PLACED,
    JobTerm.TRUST,
    "a_term_of_another_release",
}


def shown(client, job, who):
    """All that is told of a job."""
    paths = (f"/v1/jobs/{job.uuid}", f"/v1/jobs/{job.uuid}/events", "/v1/jobs?all_projects=true")
    if who not in (ADMIN, SERVICE):
        paths = (*paths[:2], "/v1/jobs")
    return [client.get(path, headers=who).get_data(as_text=True) for path in paths]


@pytest.mark.parametrize("term", [*JobTerm, "a_term_of_another_release"])
def test_what_nova_hides_is_told_to_operators_only(client, jobs, term):
    """Whatever stands in a reason; what is the user's own is told to the user as well."""
    job = jobs.create(new_job())
    engine = Actor(
        "controller-7-4711", Election(jobs._database, "controller-7-4711", 60).campaign()
    )
    jobs.set(job, engine, (Reason(term, "h17", 3, "workers"),), postponed=1)
    for who in (ADMIN, SERVICE):
        assert all("h17" in each for each in shown(client, job, who))
    for who in (READER, MEMBER):
        assert [("h17" in each) for each in shown(client, job, who)] == [term not in OPERATORS] * 3
    cancelled = client.post(f"/v1/jobs/{job.uuid}/hold", headers=MEMBER).get_data(as_text=True)
    assert "h17" not in cancelled
    assert "controller" in shown(client, job, ADMIN)[1]
    assert not any("controller" in each for each in shown(client, job, MEMBER))


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason(JobTerm.PLACED, "h17, h23", 2), "planned on hosts: 2"),
        (
            Reason(JobTerm.HOSTS_EXCLUDED, "h17", 1),
            "hosts left out, because nova refused them: 1",
        ),
        (Reason(JobTerm.PREEMPTS, "job-9", 1), "starts when other jobs have ended: 1"),
        (
            Reason(JobTerm.RESERVED, "job-9", "in 3 s at the latest"),
            "places are kept free for another job",
        ),
        (Reason(JobTerm.NO_ROOM, 1, 2, "cpu"), sentence_of(Reason(JobTerm.NO_ROOM, 1, 2, "cpu"))),
    ],
)
def test_users_are_told_numbers_for_names(reason, sentence):
    assert set(JobTerm) < OPEN | TENANTS_SENTENCES.keys(), (
        "each term is the user's or the operator's"
    )
    told, words = for_tenants(reason)
    assert words == sentence
    assert not {"h17", "h17, h23", "job-9", "in 3 s at the latest"} & {told.value, told.against}


def test_an_operator_may_let_users_see_more(jobs, cloud):
    job = jobs.create(new_job())
    jobs.set(job, Actor("engine"), (Reason(JobTerm.PLACED, "h17", 1),), postponed=1)
    client = client_of(jobs, cloud, rules={policies.INTERNALS: "project_id:%(project_id)s"})
    assert all("h17" in each for each in shown(client, job, MEMBER))


def test_in_no_state_of_its_life_a_job_names_hosts_or_engines_to_its_user(cloud, tmp_path):
    world = World(tmp_path, name="controller")
    client = client_of(world.jobs, cloud)
    job = world.jobs.create(new_job())
    for _ in range(3):
        world.rounds()
        told = "".join(shown(client, job, MEMBER))
        assert "h1" not in told.replace(job.uuid, "") and "controller" not in told
    world.cancel(job)
    world.rounds(3)
    assert world.state(job) is JobState.CANCELLED
    assert "controller" not in "".join(shown(client, job, MEMBER))
    events = client.get(f"/v1/jobs/{job.uuid}/events", headers=ADMIN).json["events"]
    assert {each["actor"] for each in events} == {"user-1", "controller-1"}
    assert "planned on hosts: h1" in [each["reasons"][0]["sentence"] for each in events]


def test_none_alone_is_no_network(client, cloud):
    """As nova's own command says it, and whatever networks there are."""
    cloud.available = (RED, BLUE)
    body = changed(("job", "parts", 1, "networks"), ["none"])
    made = client.post("/v1/jobs", json=body, headers=MEMBER)
    assert made.status_code == 201
    assert made.json["job"]["parts"][1]["networks"] == ["none"]


def test_a_part_without_networks_gets_the_only_one(client, cloud):
    body = changed(("job", "parts", 1, "networks"), [])
    for cloud.available in ((), (BLUE,)):
        assert client.post("/v1/jobs", json=body, headers=MEMBER).status_code == 201
    cloud.available = (RED, BLUE)
    response = client.post("/v1/jobs", json=body, headers=MEMBER)
    assert "$.job.parts[1].networks: [] is not allowed; allowed: at least one of" in detail(
        response
    )
    assert detail(response).endswith("that the project has: blue, red")


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
            changed(("job", "parts", 1, "image"), "none"),
            "$.job.parts[1].image: 'none' is not allowed; allowed: name or id of one image that the project may use",
        ),
        (
            changed(("job", "parts", 1, "image"), "twins"),
            "$.job.parts[1].image: 'twins' is not allowed; allowed: the id of one image: 2 have this name",
        ),
        (
            changed(("job", "parts", 1, "image"), "queued"),
            "$.job.parts[1].image: 'queued' is not allowed; allowed: an active image; it is queued",
        ),
        (
            changed(("job", "parts", 1, "image"), "wide"),
            "allowed: an image that runs with 10 GiB of root disk; it needs 11",
        ),
        (
            changed(("job", "parts", 1, "flavor"), "tiny"),
            "$.job.parts[1].image: 'image-1' is not allowed; allowed: an image that runs with 1 GiB of root disk",
        ),
        (
            changed(("job", "parts", 1), {"name": "cpu", "flavor": "big"}),
            "allowed: an object with name, flavor, image",
        ),
        (
            changed(("job", "parts", 1, "networks"), ["red", "none"]),
            "$.job.parts[1].networks[1]: 'none' is not allowed; allowed: name or id of one network",
        ),
        (
            changed(("job", "name"), "n" * 250),
            "allowed: 249 characters: names of servers add -gpu-2, and nova takes 255",
        ),
        (changed(("job", "name"), " train"), "$.job.name: ' train' is not allowed"),
        (changed(("job", "name"), "tr\u200bain"), "allowed: characters that can be printed"),
        (
            changed(("job", "deadline_at"), 1),
            "$.job.deadline_at: 1 is not allowed; allowed: ",
        ),
        (
            changed(("job", "parts", 0, "extra_specs"), {"numa_ext:gpu_policy": "best"}),
            "$.job.parts[0].extra_specs: numa_ext:gpu_policy=best is not allowed",
        ),
        (
            changed(("job", "parts", 0, "extra_specs"), {"numa_ext:tier": "LC"}),
            "$.job.parts[0].extra_specs: numa_ext:tier is for flavors only",
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


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{'job'", "allowed: JSON (Expecting property name"),
        (b"", "body: b'' is not allowed; allowed: JSON"),
        (b"[" * 100_000, "allowed: JSON that is not nested so deep"),
        (b'["' + b"\xff" + b'"]', "allowed: JSON in UTF-8"),
        (b"9" * 5000, "allowed: JSON (Exceeds the limit"),
        (rb'{"job": {"name": "\ud800"}}', "no half of a surrogate pair"),
        (rb'{"job": {"\udfff": 1}}', "no half of a surrogate pair"),
        (b'{"job": {"walltime_s": NaN}}', "body: 'NaN' is not allowed"),
        (b'{"job": {"deadline_at": -Infinity}}', "body: '-Infinity' is not allowed"),
    ],
)
def test_what_is_no_json_is_a_sentence(client, data, sentence):
    response = client.post("/v1/jobs", data=data, headers=MEMBER)
    assert response.status_code == 400
    assert sentence in detail(response)


def test_a_number_beyond_all_numbers_is_too_large(client):
    data = json.dumps(changed(("job", "walltime_s"), 7)).replace("7", "1e999")
    response = client.post("/v1/jobs", data=data, headers=MEMBER)
    assert "$.job.walltime_s: inf is not allowed; allowed: maximum" in detail(response)


@pytest.mark.parametrize(
    "name",
    ["%00", "%ff", "%ed%a0%80", "%F0%9F%98%80", "é" * 999, "'%20OR%201=1", "%252e%252e", " "],
)
def test_what_names_no_job_is_not_there(database, cloud, name):
    """In a path and as a marker, whatever the database thinks of its characters."""
    client = client_of(Jobs(database), cloud)
    Jobs(database).create(new_job())
    for path in (f"/v1/jobs/{name}", f"/v1/jobs/{name}/events"):
        response = client.get(path, headers=READER)
        assert (response.status_code, "errors" in response.json) == (404, True)
    assert client.post(f"/v1/jobs/{name}/cancel", headers=MEMBER).status_code == 404
    assert client.get(f"/v1/jobs?marker={name}", headers=READER).json == {"jobs": []}


def test_what_is_too_long_or_no_route_is_a_sentence(client):
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
    assert cloud.trusts == {}
    cloud.limits = ProjectQuota(instances=3, cores=12, memory_mb=3072, groups=1, members=2)
    assert client.post("/v1/jobs", json=BODY, headers=MEMBER).status_code == 201


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (SilentError("Nova", "http://10.0.0.1:8774"), "Nova does not answer now: try again later."),
        (
            ServiceUnavailableError("10.0.0.1 refuses"),
            "A service that jobs need does not answer now: try again later.",
        ),
    ],
)
def test_a_cloud_that_does_not_answer_is_named(client, cloud, caplog, error, sentence):
    """Where its services are is for the log."""
    cloud.refuses = error
    response = client.post("/v1/jobs", json=BODY, headers=MEMBER)
    assert (response.status_code, detail(response)) == (503, sentence)
    assert "10.0.0.1" in caplog.text


def test_a_cloud_that_refuses_is_a_sentence(client, cloud):
    cloud.refuses = CapabilityMissingError("Nova does not let you.")
    response = client.post("/v1/jobs", json=BODY, headers=MEMBER)
    assert (response.status_code, detail(response)) == (409, "Nova does not let you.")


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_a_token_that_can_make_no_trust_is_refused(client, cloud, jobs, query):
    cloud.refuses_trust = CapabilityMissingError("A token of an application credential …")
    response = client.post(f"/v1/jobs{query}", json=BODY, headers=MEMBER)
    assert (response.status_code, detail(response)) == (409, str(cloud.refuses_trust))
    assert (jobs.find(), cloud.trusts) == ([], {})


DAY, YEAR = 86_400, 365 * 86_400


@pytest.mark.parametrize(
    ("more", "lasts_s"),
    [
        ({}, YEAR),
        ({"walltime_s": 3600}, YEAR),
        ({"walltime_s": 3600, "max_wait_s": 7200}, DAY + 10_800),
        ({"walltime_s": 3600, "max_wait_s": 7200, "preemptible": True}, YEAR),
        ({"walltime_s": 3600, "deadline_at": 9000}, DAY + 9000),
        ({"walltime_s": 3600, "deadline_at": 9000, "preemptible": True}, DAY + 9000),
        ({"deadline_at": 9000}, YEAR),
    ],
)
def test_a_trust_ends_when_the_job_has_to_have_ended(client, cloud, more, lasts_s):
    now = time.time()
    asked = {"name": "train", "parts": BODY["job"]["parts"], **more}
    if "deadline_at" in asked:
        asked["deadline_at"] += now
    assert client.post("/v1/jobs", json={"job": asked}, headers=MEMBER).status_code == 201
    assert cloud.trusts == {"trust-1": pytest.approx(now + lasts_s, abs=60)}


@pytest.mark.parametrize("keystone_is_away", [False, True])
def test_a_job_that_is_not_stored_leaves_no_trust(
    client, jobs, cloud, monkeypatch, keystone_is_away
):
    def broken(_new, _uuid):
        raise DatabaseError("away")

    monkeypatch.setattr(jobs, "create", broken)
    cloud.keeps = SilentError("Keystone", "away") if keystone_is_away else None
    assert client.post("/v1/jobs", json=BODY, headers=MEMBER).status_code == 503
    assert list(cloud.trusts) == (["trust-1"] if keystone_is_away else [])
    assert EndedTrusts(jobs._database).due() == list(cloud.trusts)


def test_a_job_whose_answer_is_lost_keeps_its_trust_and_is_found_by_its_key(
    client, jobs, cloud, monkeypatch
):
    """The database stores it and does not say so; the client sends its request again."""
    create = jobs.create

    def lost(new, uuid):
        create(new, uuid)
        raise DatabaseError("away")

    monkeypatch.setattr(jobs, "create", lost)
    keyed = MEMBER | {"Idempotency-Key": "client's-1"}
    assert client.post("/v1/jobs", json=BODY, headers=keyed).status_code == 503
    response = client.post("/v1/jobs", json=BODY, headers=keyed)
    (job,) = jobs.find()
    assert (response.status_code, response.json["job"]["id"]) == (201, job.uuid)
    assert (list(cloud.trusts), job.trust) == (["trust-1"], "trust-1")


def test_a_job_of_which_nothing_is_known_keeps_its_trust(client, jobs, cloud, monkeypatch):
    """The database stores it, and is gone before it says so and when it is asked: it would fail without its trust."""
    create, read = jobs.create, jobs.read

    def away(*_arguments, **_more):
        raise DatabaseError("away")

    def lost(new, uuid):
        create(new, uuid)
        monkeypatch.setattr(jobs, "read", away)
        raise DatabaseError("away")

    monkeypatch.setattr(jobs, "create", lost)
    keyed = MEMBER | {"Idempotency-Key": "client's-1"}
    assert client.post("/v1/jobs", json=BODY, headers=keyed).status_code == 503
    monkeypatch.setattr(jobs, "read", read)
    assert client.post("/v1/jobs", json=BODY, headers=keyed).status_code == 201
    (job,) = jobs.find()
    assert (list(cloud.trusts), job.trust) == (["trust-1"], "trust-1")


def test_a_key_is_of_one_request_of_one_user_in_one_project(client, jobs, cloud):
    def sent(who, body=BODY, key="key-1"):
        return client.post("/v1/jobs", json=body, headers=who | {"Idempotency-Key": key})

    first = sent(MEMBER).json["job"]
    turned = {"job": dict(reversed(BODY["job"].items()))}
    assert sent(MEMBER, turned).json["job"] == first
    others = [OTHER, headers("member", user="user-3"), headers("member", project="project-3")]
    assert [sent(who).status_code for who in others] == [201, 201, 201]
    assert sent(MEMBER, key="key-2").status_code == 201
    response = sent(MEMBER, changed(("job", "name"), "other"))
    assert response.status_code == 422
    assert f"has been used for job {first['id']}" in detail(response)
    assert (len(jobs.find()), len(cloud.trusts)) == (5, 5)
    response = sent(MEMBER, key="a key")
    assert "Idempotency-Key: 'a key' is not allowed; allowed: 1 to 255" in detail(response)


def test_of_two_requests_of_one_key_at_once_the_faster_one_is_stored(
    client, jobs, cloud, monkeypatch
):
    create, keyed = jobs.create, MEMBER | {"Idempotency-Key": "key-1"}

    def slower(new, uuid):
        create(replace(new, trust="trust-of-the-other"), uuid)
        return create(new, uuid)

    monkeypatch.setattr(jobs, "create", slower)
    response = client.post("/v1/jobs", json=BODY, headers=keyed)
    (job,) = jobs.find()
    assert (response.status_code, response.json["job"]["id"]) == (201, job.uuid)
    assert (job.trust, cloud.trusts) == ("trust-of-the-other", {})


def test_a_project_has_so_many_waiting_jobs_and_servers(jobs, cloud):
    client = client_of(jobs, cloud, waiting_jobs=3, waiting_servers=7)

    def used():
        found = client.get("/v1/limits", headers=READER).json["limits"][:2]
        return [(each["name"], each["used"], each["limit"]) for each in found]

    running = jobs.create(new_job())
    jobs.move(running, JobState.PLANNED, (Reason("placed", "h1"),), Actor("engine"))
    jobs.create(new_job(project="project-2"))
    assert used() == [("waiting_jobs", 0, 3), ("waiting_servers", 0, 7)]
    for _ in range(2):
        assert client.post("/v1/jobs", json=BODY, headers=MEMBER).status_code == 201
    assert used() == [("waiting_jobs", 2, 3), ("waiting_servers", 6, 7)]
    for query in ("", "?dry_run=true"):
        response = client.post(f"/v1/jobs{query}", json=BODY, headers=MEMBER)
        assert response.status_code == 403
        assert detail(response) == (
            "Limit waiting_servers of the project is 7, 6 are in use, and the job needs 3."
        )
    small = {"job": {"name": "small", "parts": [{**BODY["job"]["parts"][1], "name": "only"}]}}
    assert client.post("/v1/jobs", json=small, headers=MEMBER).status_code == 201
    response = client.post("/v1/jobs", json=small, headers=MEMBER)
    assert "Limit waiting_jobs of the project is 3, 3 are in use" in detail(response)
    assert len(cloud.trusts) == 3


def test_what_a_projects_jobs_have_of_what_they_may_have_at_a_time_is_shown(jobs, cloud):
    queue = QueueSettings(jobs_of_projects={"project-1": 4})
    client = client_of(jobs, cloud, queue)
    planned = jobs.create(new_job())
    jobs.move(planned, JobState.PLANNED, (Reason("placed", "h1"),), Actor("engine"))
    jobs.create(new_job())
    found = client.get("/v1/limits", headers=READER).json["limits"][2:]
    assert found == [
        {"name": "project_jobs", "limit": 4, "used": 1},
        {"name": "project_servers", "limit": None, "used": 2},
        {"name": "project_leases", "limit": None, "used": 0},
        {"name": "project_gpu_memory_mb", "limit": None, "used": 0},
    ]


def test_a_lease_beyond_a_limit_of_its_project_is_refused_and_one_that_ended_counts_no_more(
    jobs, cloud
):
    queue = QueueSettings(
        leases_of_projects={"project-of-admins": 3},
        gpu_memory_mb_of_projects={"project-of-admins": 2500},
    )
    client = client_of(jobs, cloud, queue)
    Leases(jobs._database).create("project-1", "user-1", LEASE)
    made = [client.post("/v1/leases", json=LEASE_BODY, headers=ADMIN) for _ in range(3)]
    assert [each.status_code for each in made] == [202, 202, 403]
    said = "Limit project_gpu_memory_mb of the project is 2500, 2000 are in use, and the lease needs 1000."
    assert detail(made[2]) == said
    found = client.get("/v1/limits", headers=ADMIN).json["limits"][4:]
    assert [each["used"] for each in found] == [2, 2000]
    small = {"lease": {**LEASE_BODY["lease"], "memory_mb": 1}}
    again = [client.post("/v1/leases", json=small, headers=ADMIN) for _ in range(2)]
    assert [each.status_code for each in again] == [202, 403]
    assert "Limit project_leases of the project is 3" in detail(again[1])
    leases = Leases(jobs._database)
    first = leases.read(made[0].json["lease"]["id"])
    leases.change(leases.change(first, life.release, Actor("u")), life.end, Actor("u"))
    assert client.post("/v1/leases", json=LEASE_BODY, headers=ADMIN).status_code == 202


def test_the_place_of_a_job_is_that_in_which_the_queue_asks_it(jobs, cloud):
    """Of all projects' jobs; a job that has waited for long has overtaken one of higher priority."""
    client = client_of(jobs, cloud, QueueSettings(ageing_per_hour=1.0))
    names = {"old": {}, "high": {"priority": 2}, "held": {"held": True}, "new": {}}
    found = {name: jobs.create(new_job(name, **more)) for name, more in names.items()}
    found["theirs"] = jobs.create(new_job("theirs", project="project-2", priority=1))
    found["cancelled"] = jobs.create(new_job("cancelled", priority=9))
    jobs.set(found["cancelled"], Actor("user-1"), cancelled=True)
    jobs.set(found["old"], Actor("engine"), waited_s=3 * 3600.0)

    def place(name):
        shown = client.get(f"/v1/jobs/{found[name].uuid}", headers=READER).json["job"]["place"]
        return shown and (shown["place"], shown["of"])

    assert [place(name) for name in ("old", "high", "new")] == [(1, 4), (2, 4), (4, 4)]
    assert (place("held"), place("cancelled")) == (None, None)
    listed = client.get("/v1/jobs", headers=READER).json["jobs"]
    assert [each["place"] and each["place"]["place"] for each in listed] == [1, 2, None, 4, None]
    why = (Reason("placed", "h1"),)
    jobs.move(jobs.read(found["old"].uuid), JobState.PLANNED, why, Actor("engine"))
    assert (place("old"), place("high")) == (None, (1, 3))


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
def test_a_job_above_what_its_project_may_have_at_a_time_is_refused(jobs, cloud, query):
    """Three servers; another project may have more."""
    queue = QueueSettings(servers_of_projects={"project-1": 2, "project-2": 3})
    client = client_of(jobs, cloud, queue)
    response = client.post(f"/v1/jobs{query}", json=BODY, headers=MEMBER)
    assert (response.status_code, detail(response)) == (
        403,
        "The job would wait for ever: servers of the project's jobs at a time: 3, limit: 2.",
    )
    assert client.post(f"/v1/jobs{query}", json=BODY, headers=OTHER).status_code in (200, 201)


def test_what_has_not_changed_is_not_sent_again(client, jobs):
    job = jobs.create(new_job())
    for path in (f"/v1/jobs/{job.uuid}", "/v1/jobs", f"/v1/jobs/{job.uuid}/events"):
        first = client.get(path, headers=READER)
        asked = READER | {"If-None-Match": first.headers["ETag"]}
        again = client.get(path, headers=asked)
        assert (again.status_code, again.data) == (304, b"")
        assert again.headers["OpenStack-API-Version"] == "numa-ext 1.0"
        job = jobs.set(jobs.read(job.uuid), Actor("engine"), postponed=job.postponed + 1)
        now = client.get(path, headers=asked)
        assert (now.status_code, now.headers["ETag"] != first.headers["ETag"]) == (200, True)
    assert client.get(path, headers=OTHER | {"If-None-Match": "*"}).status_code == 404


def test_lists_are_short_unless_they_are_asked_for(client, jobs):
    for number in range(101):
        jobs.create(new_job(f"job{number}"))
    assert len(client.get("/v1/jobs", headers=READER).json["jobs"]) == 100
    assert len(client.get("/v1/jobs?limit=1000", headers=READER).json["jobs"]) == 101


def test_what_the_database_says_is_for_the_log(client, jobs, caplog):
    """Its words name the server, its user, the statement and what tenants have written."""
    with jobs._database.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE part")
    environ = {"openstack.request_id": "req-7"}
    response = client.post("/v1/jobs", json=BODY, headers=MEMBER, environ_overrides=environ)
    assert response.json["errors"] == [
        {
            "status": 503,
            "detail": "The job service's database does not answer now: try again later.",
            "request_id": "req-7",
        }
    ]
    assert "request req-7: The job service's database" in caplog.text
    assert "no such table: part" in caplog.text
    assert "flavor-1" not in caplog.text


def test_a_request_that_gets_no_connection_is_to_be_tried_again(tmp_path, cloud):
    database = Database(f"sqlite:///{tmp_path}/jobs.db")
    pool = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 0.01}
    database._made = create_engine(database._url, **pool)
    with database.transaction():
        response = client_of(Jobs(database), cloud).get("/v1/jobs", headers=READER)
    assert (response.status_code, "try again later" in detail(response)) == (503, True)


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
    *(float("nan"), float("inf"), -float("inf")),
    *("numa_ext:tier", "LC", "😀", "\x00", "\ud800", "é" * 300, "9" * 5000, [], {}, [[]], [{}]),
)


def _scrambled(chance, value, rate, depth=0):
    """A body of which parts are replaced, left out, doubled or made of nothing; ``rate`` of them."""
    if chance.random() < rate or depth > 6:
        return chance.choice(_SCRAPS)
    if isinstance(value, dict):
        made = {
            (chance.choice(_KEYS) if chance.random() < rate / 2 else key): _scrambled(
                chance, each, rate, depth + 1
            )
            for key, each in value.items()
            if chance.random() > rate / 2
        }
        if chance.random() < rate / 2:
            made[chance.choice(_KEYS)] = chance.choice(_SCRAPS)
        return made
    if isinstance(value, list):
        several = value * (2 if chance.random() < 3 * rate else 1)
        return [_scrambled(chance, each, rate, depth + 1) for each in several]
    return value


_KEYS = ("name", "parts", "count", "flavor", "wait_for", "scope", "job", "", "é", "\x00", "a" * 999)


def _submitted(jobs, cloud, count):
    """Submit bodies that chance has scrambled; returns how often each status was the answer."""
    client = client_of(jobs, cloud, waiting_servers=10**9)
    chance, seen = random.Random(count), Counter()
    for number in range(count):
        rate = chance.choice((0.01, 0.12, 0.12, 0.12))
        body = json.dumps(_scrambled(chance, BODY, rate)).encode()
        if chance.random() < 0.05:
            body = body[: chance.randrange(len(body) + 1)]
        who = headers("member", project=f"project-{number // 1000}")
        if chance.random() < 0.2:
            who["Idempotency-Key"] = str(chance.randrange(50))
        response = client.post("/v1/jobs", data=body, headers=who)
        assert response.status_code in (201, 400, 422), (body, response.text)
        seen[response.status_code] += 1
    return seen


def _all_shown(jobs, cloud):
    """Look at every job that was stored, page by page, as users and planners do; returns how many there are."""
    client, found = client_of(jobs, cloud), []
    while True:
        marker = f"&marker={found[-1]['id']}" if found else ""
        path = f"/v1/jobs?all_projects=true&limit=1000{marker}"
        page = client.get(path, headers=ADMIN).json["jobs"]
        found += page
        if len(page) < 1000:
            break
    stored = jobs.find()
    for job in stored:
        for part in job.parts:
            queued.part(part)
    assert [each["id"] for each in found] == [job.uuid for job in stored]
    assert {job.trust for job in stored} == set(cloud.trusts)
    return len(found)


def test_no_body_is_answered_with_a_fault_of_ours(jobs, cloud):
    seen = _submitted(jobs, cloud, 500)
    assert seen[201] >= _all_shown(jobs, cloud) > 0
    assert seen[400] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_none_of_many_bodies_is_answered_with_a_fault_of_ours(database, cloud):
    jobs = Jobs(database)
    seen = _submitted(jobs, cloud, 100_000)
    assert seen[201] >= _all_shown(jobs, cloud) > 0


def _other_bodies(lease):
    """Whole bodies of what else takes one: method, path, who sends it, body.

    :param lease: uuid of one that is there
    """
    server = {"server_id": lease}
    known = {"id": lease, "epoch": 1}
    serves = {"gpu": GROUP, "memory_mb": 1000, "service_level": "silver", "network_mbps": 0}
    asked = {
        "serves": [known | serves | {"api": "opencl", "client_host": "c1"}],
        "ends": [known],
        "attaches": [
            known
            | server
            | {"api": "cuda", "address": "g1:7000", "gpu_host": "g1", "network_mbps": 100}
        ],
    }
    report = {
        "serves": [known | {"address": "g1:7000"}],
        "ended": [known],
        "servers": [lease],
        "requests": [
            {
                "server_id": lease,
                "count": 2,
                "memory_mb": 1000,
                "service_level": "silver",
                "api": "opencl",
                "network_mbps": 0,
                "priority": 3,
                "migratable": False,
            }
        ],
        "asked": asked,
    }
    settings = scaling_schema.SCALING["properties"]["scaling"]["properties"]["settings"][
        "properties"
    ]
    sized = {name: each["default"] for name, each in settings.items() if "default" in each}
    scaling = {"settings": sized | {"objective_ms": 35.0}, "source": {"csv": "web.csv"}}
    new = {**LEASE_BODY["lease"], "network_mbps": 0, "pool": "g1", "unmet": "wait", "priority": 3}
    return {
        "lease": ("POST", "/v1/leases", ADMIN, {"lease": new}),
        "attach": ("POST", f"/v1/leases/{lease}/attach", MEMBER, {"attach": server}),
        "report": ("POST", "/v1/hosts/g1/leases", credential("g1"), {"report": report}),
        "scaling": ("PUT", f"/v1/scaling/{GROUP}", ADMIN, {"scaling": scaling}),
    }


def _others_sent(jobs, cloud, count):
    """Send other bodies that chance has scrambled, as many of each; returns how often each status was the answer."""
    client, leases = client_of(jobs, cloud), Leases(jobs._database)
    chance, seen = random.Random(count), Counter()
    for number in range(count):
        if number % 50 == 0:
            bodies = _other_bodies(leases.create("project-1", "user-1", LEASE).uuid)
        for name, (method, path, who, body) in bodies.items():
            sent = json.dumps(_scrambled(chance, body, chance.choice((0.01, 0.12)))).encode()
            if chance.random() < 0.05:
                sent = sent[: chance.randrange(len(sent) + 1)]
            response = client.open(path, method=method, data=sent, headers=who)
            assert response.status_code in (200, 202, 400, 403, 409), (name, sent, response.text)
            seen[name, response.status_code] += 1
    for path, who in (
        ("/v1/leases?all_projects=true", ADMIN),
        (f"/v1/scaling/{GROUP}", READER),
        ("/v1/hosts/g1/leases", credential("g1")),
    ):
        assert client.get(path, headers=who).status_code == 200
    return seen


def _taken_and_refused(seen):
    """Return of which bodies some were taken, and of which some were refused by a sentence."""
    taken = {name for name, status in seen if status < 300}
    return taken, {name for name, status in seen if status == 400}


def test_no_other_body_is_answered_with_a_fault_of_ours(jobs, cloud):
    every = {"lease", "attach", "report", "scaling"}
    assert _taken_and_refused(_others_sent(jobs, cloud, 150)) == (every, every)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_none_of_many_other_bodies_is_answered_with_a_fault_of_ours(jobs, cloud):
    every = {"lease", "attach", "report", "scaling"}
    assert _taken_and_refused(_others_sent(jobs, cloud, 10_000)) == (every, every)


@pytest.mark.parametrize(
    ("lease", "said"),
    [
        ({}, "memory_mb, api"),
        ({"memory_mb": 0, "api": "cuda"}, "minimum 1"),
        ({"memory_mb": 1, "api": "vulkan"}, "opencl"),
        ({"memory_mb": 1, "api": "cuda", "count": 2}, "only api, max_wait_s, memory_mb"),
    ],
    ids=["empty", "zero", "api", "unknown"],
)
def test_a_lease_that_cannot_be_is_a_sentence(client, lease, said):
    answer = client.post("/v1/leases", json={"lease": lease}, headers=ADMIN)
    assert answer.status_code == 400
    assert said in detail(answer)


def test_a_project_that_may_ask_for_leases_goes_before_no_other(jobs, cloud):
    """An operator lets members ask for leases; to be first is another rule, as it is for jobs."""
    rules = {policies.LEASE_CREATE: "role:member and project_id:%(project_id)s"}
    client = client_of(jobs, cloud, rules=rules)
    first = {"lease": {**LEASE_BODY["lease"], "priority": 1}}
    assert client.post("/v1/leases", json=LEASE_BODY, headers=MEMBER).status_code == 202
    refused = client.post("/v1/leases", json=first, headers=MEMBER)
    assert refused.status_code == 403
    assert policies.LEASE_PRIORITY in detail(refused)


def test_a_lease_of_another_release_is_a_sentence_to_its_project_and_is_not_there_to_others(
    client, jobs
):
    stored = Leases(jobs._database).create("project-1", "user-1", LEASE)
    with jobs._database.transaction() as connection:
        connection.execute(tables.lease.update().values(asked={"level": "tin"}))
    path = f"/v1/leases/{stored.uuid}"
    for ask in (client.get, lambda path, **more: client.post(f"{path}/release", **more)):
        answer = ask(path, headers=MEMBER)
        assert answer.status_code == 409
        assert "in a form of another release" in answer.json["errors"][0]["detail"]
        assert ask(path, headers=OTHER).status_code == 404
    assert client.get("/v1/leases", headers=MEMBER).json == {"leases": []}


def test_only_operators_see_which_host_was_asked_for_and_who_else_released(client, jobs):
    asked = {"lease": {**LEASE_BODY["lease"], "pool": "g1"}}
    made = client.post("/v1/leases", json=asked, headers=ADMIN).json
    assert made["lease"]["pool"] == "g1"
    stored = Leases(jobs._database).create("project-1", "user-1", replace(LEASE, pool="g1"))
    path = f"/v1/leases/{stored.uuid}"
    assert '"pool":"g1"' in client.get(path, headers=ADMIN).get_data(as_text=True)
    for each in (path, "/v1/leases"):
        text = client.get(each, headers=MEMBER).get_data(as_text=True)
        assert "g1" not in text
        assert "asked for by user-1" in text, "that is the user's own"
    released = client.post(f"{path}/release", headers=ADMIN)
    assert released.json["lease"]["reasons"][0]["sentence"] == "released by admin-1"
    shown = client.get(path, headers=MEMBER).json["lease"]["reasons"]
    assert (shown[0]["value"], shown[0]["sentence"]) == ("", "released by another user")


def test_of_a_term_of_another_release_tenants_read_its_name(client, jobs):
    leases = Leases(jobs._database)
    stored = leases.create("project-1", "user-1", LEASE)
    leases.change(stored, life.release, Actor("engine"), (Reason("moved_away", "g1", 2, "g2"),))
    (shown,) = client.get(f"/v1/leases/{stored.uuid}", headers=MEMBER).json["lease"]["reasons"]
    assert shown == {
        "term": "moved_away",
        "value": "",
        "against": "",
        "where": "",
        "sentence": "moved_away",
    }


def test_a_lease_that_cannot_be_read_hides_no_other(client, jobs):
    """A page is full all the same, or who asks for the next one would take it for the last."""
    leases = Leases(jobs._database)
    poison, *others = (leases.create("project-1", "user-1", LEASE) for _ in range(3))
    with jobs._database.transaction() as connection:
        mine = tables.lease.c.uuid == poison.uuid
        connection.execute(update(tables.lease).where(mine).values(asked={}))
    for limit, shown in ((1, others[:1]), (2, others), (3, others)):
        listed = client.get(f"/v1/leases?limit={limit}", headers=MEMBER).json["leases"]
        assert [each["id"] for each in listed] == [each.uuid for each in shown]


def test_tenants_see_their_lease_and_not_its_host(client, jobs):
    leases = Leases(jobs._database)
    stored = leases.create("project-1", "user-1", LEASE)
    choice = LeaseChoice("g1", "gpu-1", {"gpu-1": {"CUSTOM_X": 1}})
    leases.choose([stored], [choice], Actor("engine"))
    path = f"/v1/leases/{stored.uuid}"
    hosts = [client.get(path, headers=who).json["lease"]["host"] for who in (MEMBER, ADMIN)]
    assert hosts == [None, "g1"]
    released = client.post(f"{path}/release", headers=MEMBER)
    again = client.post(f"{path}/release", headers=MEMBER)
    assert released.json == again.json
    assert released.json["lease"]["state"] == "releasing"
    leases.change(leases.read(stored.uuid), life.end, Actor("engine"))
    assert "has ended" in detail(client.post(f"{path}/release", headers=MEMBER))
    answer = client.get("/v1/leases?state=running", headers=MEMBER)
    assert "reserved" in detail(answer)


def test_a_group_is_set_shown_paused_and_resumed(client, jobs):
    path = f"/v1/scaling/{GROUP}"
    settings = {"objective_ms": 20, "granularity": [100, 50, 5], "least": 2, "most": 9}
    body = {"scaling": {"settings": settings, "source": {"csv": "web.csv"}}}
    shown = client.put(path, json=body, headers=ADMIN).json["scaling"]
    assert {name: shown["settings"][name] for name in settings} == settings
    assert shown["settings"]["head_room"] == 1.07
    assert (shown["id"], shown["project_id"], shown["mode"]) == (GROUP, "project-1", "observe")
    assert (shown["source"], shown["trouble"], shown["last_decision"]) == (
        {"csv": "web.csv"},
        "",
        None,
    )
    assert client.get(path, headers=READER).json["scaling"] == shown
    assert client.post(f"{path}/pause", headers=MEMBER).json["scaling"]["paused"]
    resumed = client.post(f"{path}/resume", headers=MEMBER).json["scaling"]
    assert (resumed["paused"], resumed["user_id"]) == (False, "user-1")


QUERIES = {"reads": "sum by (server) (rate(web_requests_total[$window]))", "latency_ms": "p99"}


def test_a_group_is_sized_by_what_prometheus_measures(client):
    body = {"scaling": {"settings": {"objective_ms": 35.0}, "source": {"prometheus": QUERIES}}}
    shown = client.put(f"/v1/scaling/{GROUP}", json=body, headers=ADMIN).json["scaling"]
    others = {"writes": "", "size_kb": "", "placement": "", "disturbed": ""}
    others |= {"cannot_fix": "", "label": "server"}
    assert shown["source"] == {"prometheus": QUERIES | others}
    again = {"scaling": {**body["scaling"], "source": shown["source"]}}
    assert client.put(f"/v1/scaling/{GROUP}", json=again, headers=ADMIN).status_code == 200


def test_a_group_is_sized_by_what_members_report_to_the_host_agents(client):
    """Only servers of the group's own project are asked for; the answer says what is asked."""
    source = {"agents": {"names": "web-.*", "placement": "where"}}
    body = {"scaling": {"settings": {"objective_ms": 35.0}, "source": source}}
    shown = client.put(f"/v1/scaling/{GROUP}", json=body, headers=ADMIN).json["scaling"]
    queries = shown["source"]["prometheus"]
    members = 'project="project-1",name=~"web-.*"'
    assert f"numa_ext_server_request_seconds_count{{{members}}}" in queries["reads"]
    assert f"numa_ext_server_request_seconds_bucket{{{members}}}" in queries["latency_ms"]
    assert "numa_ext_server_withholds_seconds_total" in queries["disturbed"]
    assert "numa_ext_server_slo_unsatisfiable" in queries["cannot_fix"]
    assert queries["placement"] == "where"
    again = {"scaling": {**body["scaling"], "source": shown["source"]}}
    assert client.put(f"/v1/scaling/{GROUP}", json=again, headers=ADMIN).status_code == 200


ENFORCE = {"flavor": "big", "image": "debian", "networks": ["blue"], "hook": "cassandra"}


OWN_ADMIN = headers("reader", "member", "admin")


def enforced(client, headers=OWN_ADMIN, **changes):
    body = {"scaling": {**SCALING_BODY["scaling"], "enforce": ENFORCE | changes}}
    return client.put(f"/v1/scaling/{GROUP}", json=body, headers=headers)


def test_a_group_is_enforced_by_a_trust_of_who_sets_it(client, cloud, jobs):
    groups, path = ScalingGroups(jobs._database), f"/v1/scaling/{GROUP}"
    shown = enforced(client).json["scaling"]
    made_of = {"flavor": "flavor-1", "image": "image-1", "networks": ["network-1"]}
    assert shown["enforce"] == {"name": "member", "hook": "cassandra", **made_of}
    assert (shown["mode"], shown["members"]) == ("enforce", [])
    assert cloud.trusts == {"trust-1": None}, "until it is given back"
    assert groups.trusts() == {"trust-1"}
    assert client.get("/v1/scaling", headers=READER).json["scaling"][0]["mode"] == "enforce"
    groups.record(groups.read(GROUP), [], Actor("engine"), act=Act(("token-1",)))
    (member,) = client.get(path, headers=READER).json["scaling"]["members"]
    assert (member["server_id"], member["step"]) == ("", "asked")
    enforced(client)
    assert (groups.trusts(), EndedTrusts(jobs._database).all()) == ({"trust-2"}, {"trust-1"})
    client.delete(path, headers=ADMIN)
    assert EndedTrusts(jobs._database).all() == {"trust-1", "trust-2"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"flavor": "none"}, "$.scaling.enforce.flavor"),
        ({"image": "twins"}, "2 have this name"),
        ({"networks": ["none-such"]}, "$.scaling.enforce.networks[0]"),
        ({"hook": "../nova"}, "a file name of the characters"),
        ({"name": "a b"}, "a host name"),
    ],
)
def test_what_members_cannot_be_made_of_is_a_sentence(client, cloud, changes, sentence):
    refused = enforced(client, **changes)
    assert (refused.status_code, sentence in detail(refused)) == (400, True), detail(refused)
    assert cloud.trusts == {}


HEAT = {"stack": "web", "parameter": "size"}


def resized(client, **enforce):
    body = {"scaling": {**SCALING_BODY["scaling"], "enforce": {"heat": HEAT} | enforce}}
    return client.put(f"/v1/scaling/{GROUP}", json=body, headers=OWN_ADMIN)


def test_a_group_is_enforced_by_the_size_of_a_stack(client, cloud, jobs):
    shown = resized(client).json["scaling"]
    assert shown["enforce"] == {"heat": {"stack": "stack-1", "parameter": "size"}}
    assert (shown["mode"], shown["members"], cloud.trusts) == ("enforce", [], {"trust-1": None})
    stored = ScalingGroups(jobs._database).read(GROUP)
    assert stored.template == StackTemplate("stack-1", "web", "size")
    again = resized(client, **shown["enforce"]).json["scaling"]
    assert again["enforce"] == shown["enforce"]


@pytest.mark.parametrize(
    ("enforce", "sentence"),
    [
        ({"heat": HEAT | {"stack": "other"}}, "name or id of a stack of the project"),
        ({"heat": HEAT | {"parameter": "flavor"}}, "number of servers; such are: size"),
        ({"heat": HEAT | {"parameter": "key"}}, "number of servers; such are: size"),
        ({"heat": {"stack": "web"}}, "parameter"),
        ({"flavor": "big"}, "heat alone"),
        ({"hook": "cassandra"}, "heat alone"),
    ],
)
def test_what_no_stack_can_be_resized_by_is_a_sentence(client, cloud, enforce, sentence):
    refused = resized(client, **enforce)
    assert (refused.status_code, sentence in detail(refused)) == (400, True), detail(refused)
    assert cloud.trusts == {}


@pytest.mark.parametrize("enforce", [{}, {"hook": "a"}, {"flavor": "big"}])
def test_members_are_made_of_something(client, enforce):
    body = {"scaling": {**SCALING_BODY["scaling"], "enforce": enforce}}
    refused = client.put(f"/v1/scaling/{GROUP}", json=body, headers=OWN_ADMIN)
    assert refused.status_code == 400
    assert "enforce" in detail(refused)


def test_a_cloud_without_heat_resizes_no_stack(client, cloud):
    cloud.refuses = CapabilityMissingError("The cloud has no Heat.")
    refused = resized(client)
    assert (refused.status_code, detail(refused)) == (409, "The cloud has no Heat.")


def test_members_are_made_in_the_project_of_their_group(client, cloud):
    refused = enforced(client, ADMIN)
    assert (refused.status_code, "project project-1:" in detail(refused)) == (403, True)
    assert cloud.trusts == {}


def test_groups_are_listed_page_by_page_and_deleted(client, jobs):
    """One of another release, too: an operator gets rid of it."""
    groups, path = ScalingGroups(jobs._database), "/v1/scaling"
    names = [f"{number}{GROUP[1:]}" for number in range(3)]
    for name in names:
        groups.set(name, "project-1", "u", ScalingSettings(35.0), ScalingSource("web.csv"))
    groups.set(GROUP, "project-2", "u", ScalingSettings(35.0), ScalingSource("web.csv"))
    with jobs._database.transaction() as connection:
        mine = tables.scaling_group.c.uuid == names[1]
        connection.execute(tables.scaling_group.update().where(mine).values(settings={"alpha": 1}))

    def listed(query, who):
        return [each["id"] for each in client.get(f"{path}?{query}", headers=who).json["scaling"]]

    assert listed("", READER) == names
    assert listed(f"limit=1&marker={names[0]}", READER) == [names[1]]
    assert listed("all_projects=true", ADMIN) == [*names, GROUP]
    troubles = [each["trouble"] for each in client.get(path, headers=READER).json["scaling"]]
    assert troubles == ["", "It is stored in a form of another release.", ""]
    for name in (names[1], GROUP):
        assert client.delete(f"{path}/{name}", headers=ADMIN).status_code == 204
        refused = client.delete(f"{path}/{name}", headers=ADMIN)
        assert (refused.status_code, detail(refused)) == (404, f"There is no elastic group {name}.")
    assert listed("all_projects=true", ADMIN) == [names[0], names[2]]


def test_decisions_are_listed_page_by_page(client, jobs):
    groups = ScalingGroups(jobs._database)
    group = groups.set(GROUP, "project-1", "u", ScalingSettings(35.0), ScalingSource("web.csv"))
    (period, *_) = read_trace(["time_s,member,reads_per_s,latencies_ms", "0.5,a,100,20"])
    (line,) = (each.as_json() for each in follow([period], SimpleModels(), group.settings))
    lines = [{**line, "at_s": line["at_s"] + 300 * at} for at in range(5)]
    groups.record(group, lines, Actor("engine"))
    path = f"/v1/scaling/{GROUP}/decisions"
    assert client.get(path, headers=READER).json == {"decisions": lines}
    page = client.get(f"{path}?limit=2&marker={lines[1]['at_s']!r}", headers=READER).json
    assert page == {"decisions": lines[2:4]}
    shown = client.get(f"/v1/scaling/{GROUP}", headers=READER).json["scaling"]
    assert shown["last_decision"] == lines[-1]
    for marker in ("x", "nan", "inf"):
        refused = client.get(f"{path}?marker={marker}", headers=READER)
        assert "a number of seconds" in detail(refused)


@pytest.mark.parametrize(
    ("settings", "source", "sentence"),
    [
        ({}, {"csv": "web.csv"}, "objective_ms"),
        ({"objective_ms": 0}, {"csv": "web.csv"}, "minimum 0.001"),
        ({"objective_ms": 35, "least": 5, "most": 4}, {"csv": "web.csv"}, "a number >= least, 5"),
        ({"objective_ms": 35, "granularity": [0, 1, 1]}, {"csv": "web.csv"}, "exclusiveMinimum 0"),
        ({"objective_ms": 35, "alpha": 1}, {"csv": "web.csv"}, "only actions_per_hour"),
        *(
            ({"objective_ms": 35}, {"csv": name}, "a file name of the characters")
            for name in ("../nova.conf", "/etc/passwd", ".hidden", "a/b", "", "a\n")
        ),
        ({"objective_ms": 35}, {}, "minProperties 1"),
        ({"objective_ms": 35}, {"csv": "a", "prometheus": QUERIES}, "maxProperties 1"),
        ({"objective_ms": 35}, {"prometheus": {"reads": "r"}}, "an object with reads, latency_ms"),
        (
            {"objective_ms": 35},
            {"prometheus": QUERIES | {"url": "http://x"}},
            "only cannot_fix, disturbed",
        ),
        ({"objective_ms": 35, "period_s": 33.3333}, {"prometheus": QUERIES}, "a multiple of 0.01"),
        ({"objective_ms": 35}, {"agents": {}}, "an object with names"),
        (
            {"objective_ms": 35},
            {"agents": {"names": "a", "reads": "r"}},
            "only cannot_fix, disturbed, names",
        ),
        ({"objective_ms": 35, "period_s": 33.3333}, {"agents": {"names": "a"}}, "multiple of 0.01"),
    ],
)
def test_settings_and_sources_that_cannot_be_are_sentences(client, settings, source, sentence):
    body = {"scaling": {"settings": settings, "source": source}}
    refused = client.put(f"/v1/scaling/{GROUP}", json=body, headers=ADMIN)
    assert (refused.status_code, sentence in detail(refused)) == (400, True), detail(refused)


def test_a_server_group_that_is_not_there_is_not_observed(client):
    refused = client.put("/v1/scaling/none", json=SCALING_BODY, headers=ADMIN)
    assert (refused.status_code, detail(refused)) == (404, "There is no server group none.")


def test_an_elastic_group_of_another_release_is_a_sentence(client, jobs):
    groups = ScalingGroups(jobs._database)
    groups.set(GROUP, "project-1", "u", ScalingSettings(35.0), ScalingSource("web.csv"))
    with jobs._database.transaction() as connection:
        connection.execute(tables.scaling_group.update().values(settings={"alpha": 1}))
    refused = client.get(f"/v1/scaling/{GROUP}", headers=READER)
    assert (refused.status_code, "another release" in detail(refused)) == (409, True)
    assert client.get(f"/v1/scaling/{GROUP}", headers=OTHER).status_code == 404
    assert client.put(f"/v1/scaling/{GROUP}", json=SCALING_BODY, headers=ADMIN).status_code == 200


def test_a_topology_shows_what_is_near_what(client):
    shown = client.get(TOPOLOGY, headers=READER).json["topology"]
    assert (shown["server_group_id"], shown["levels"], shown["file"]) == (
        GROUP,
        ["leaf", "pod"],
        None,
    )
    assert {each["id"]: each["name"] for each in shown["servers"]} == MEMBERS
    first, second, third, fourth = (each["nodes"] for each in shown["servers"])
    assert first == second
    assert (first[0] == third[0], first[1] == third[1]) == (False, True)
    assert fourth == []


def test_a_topology_is_written_for_schedulers(client):
    of = {form: client.get(f"{TOPOLOGY}?format={form}", headers=READER) for form in FORMATS}
    nodes = [each["nodes"] for each in of["json"].json["topology"]["servers"]]
    (tree,) = yaml.safe_load(of["slurm"].json["topology"]["file"])
    assert tree["tree"]["switches"][0] == {"switch": nodes[0][0], "nodes": "rank-0,rank-1"}
    last = [*yaml.safe_load_all(of["kueue"].json["topology"]["file"])][2]["metadata"]
    assert (last["name"], [*last["labels"].values()]) == ("rank-2", nodes[2])
    refused = client.get(f"{TOPOLOGY}?format=nccl", headers=READER)
    assert (refused.status_code, "slurm, slurm-conf, kueue, json" in detail(refused)) == (400, True)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("who", [READER, ADMIN])
def test_a_topology_has_no_name_of_the_operators(client, who, form):
    text = client.get(f"{TOPOLOGY}?format={form}", headers=who).text
    named = {CABLING.fabric, *(node for nodes in CABLING.nodes for node in nodes)}
    assert not [name for name in {*named, "of another project", "of no group"} if name in text]


def test_hashes_of_two_projects_cannot_be_compared(client, cloud):
    def words(who):
        shown = client.get(TOPOLOGY, headers=who).json["topology"]
        return {shown["fabric"], *(node for each in shown["servers"] for node in each["nodes"])}

    mine, for_an_admin = words(READER), words(ADMIN)
    assert mine == for_an_admin, "what a group's project sees, whoever asks"
    cloud.group = replace(cloud.group, project="project-2")
    assert words(OTHER).isdisjoint(mine)
    assert client.get(TOPOLOGY, headers=READER).status_code == 404


def test_without_a_key_no_topology_is_shown(jobs, cloud):
    refused = client_of(jobs, cloud, topology_key="").get(TOPOLOGY, headers=READER)
    assert (refused.status_code, "no topology_key" in detail(refused)) == (409, True)
    with pytest.raises(InvalidValueError, match="32 or more") as raised:
        ApiOptions(topology_key="too short")
    assert "too short" not in str(raised.value)


def test_a_group_on_no_fabric_is_a_sentence(client, cloud):
    cloud.cabling = None
    refused = client.get(TOPOLOGY, headers=READER)
    assert (refused.status_code, detail(refused)) == (
        409,
        f"No server of group {GROUP} is on a host of a fabric.",
    )
