# SPDX-License-Identifier: Apache-2.0
"""``openstack numa job …`` against the API itself: what people see, what scripts read, and a sentence for all else."""

import csv
import io
import json
import shlex
import sys
import time
import uuid
from argparse import ArgumentTypeError
from configparser import ConfigParser
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import yaml
from cliff.lister import Lister
from keystoneauth1.exceptions import ConnectFailure, EndpointNotFound
from osc_lib.exceptions import CommandError
from oslo_config import cfg
from oslo_policy import policy
from sqlalchemy import update

from nova_numa_ext.cli import group_scaling, job, job_plot, job_request, jobs_client, lease
from nova_numa_ext.cli.group import ShowGroupTopology
from nova_numa_ext.cli.jobs_client import JobRefusedError, JobsClient
from nova_numa_ext.cli.pool import ShowPool
from nova_numa_ext.orchestrator.api import app, policies
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
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.scaling import Act, ScalingGroups, ScalingSource
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice, LeaseSpec
from nova_numa_ext.orchestrator.store.stores import Stores
from nova_numa_ext.policy.elastic.following import follow
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from nova_numa_ext.policy.elastic.trace import read_trace
from nova_numa_ext.policy.jobs.job import Scope
from nova_numa_ext.policy.jobs.plan import ProviderAmount
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.remote_gpu import leases as life
from placement_traits.errors import (
    CapabilityMissingError,
    InvalidValueError,
    ServiceUnavailableError,
)
from placement_traits.fleet import Amount
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.pools import Pool, PoolGpu
from placement_traits.reason import Reason
from tests.support.documented_commands import commands as commands_of_page
from tests.support.documented_commands import plugin_of
from tests.support.elastic import SimpleModels
from tests.support.entry_points import ROOT
from tests.support.jobs_database import new_job, with_tables

GPU = "name=gpu,flavor=big,image=debian,count=2,wait-for=host:600,wait-for=fleet,numa_ext:gpu_policy=topo_p"
CPU = "name=cpu,flavor=big,image=debian,network=blue"

POOL = Pool(
    "root",
    "g1",
    frozenset({"main"}),
    drained=False,
    cpu="cpu",
    cores=Amount(4, 0),
    nics=(),
    gpus=tuple(
        PoolGpu(uuid, uuid, frozenset(), Amount(8000, 0), Amount(6, 0))
        for uuid in ("gpu-a", "gpu-b")
    ),
)

GROUP = "5b4b7a52-8e4c-4c8f-8f0c-2a8f1f9c6c11"

CLOUD = SimpleNamespace(
    flavor=lambda name: UserFlavor("f-1", 4, 1024, 12, 10, {}) if name == "big" else None,
    images=lambda _name: (UserImage("i-1", "active", 5, 512),),
    networks=lambda _name: (UserNetwork("n-1", "blue"),),
    available_networks=lambda: (UserNetwork("n-1", "blue"),),
    quota=ProjectQuota,
    stack=lambda name: Stack("s-1", name, "CREATE_COMPLETE", "", {"size": "3"}),
    project_of=lambda _server: "project-1",
    server_group=lambda uuid: "project-1" if uuid == GROUP else None,
    user_group=lambda uuid: UserGroup("project-1", ("s-1", "s-2")) if uuid == GROUP else None,
    servers_of=lambda _project: {"s-1": "rank-0", "s-2": "rank-1"},
    check_trust=lambda: None,
    trust=lambda _until: "trust-1",
    delete_trust=lambda _trust: None,
)


class Adapter:
    """What keystoneauth is to the commands: the API with what its middleware has found out of a token."""

    def __init__(self, client, *roles, project="project-1"):
        self._client = client
        self._headers = {"X-User-Id": "user-1", "X-Project-Id": project, "X-Roles": ",".join(roles)}
        self.keys = []

    def request(self, path, method, *, microversion, params=(), headers=None, json=None, **_again):
        self.keys.append((headers or {}).get("Idempotency-Key"))
        version = {"OpenStack-API-Version": f"numa-ext {microversion}"}
        answer = self._client.open(
            path,
            method=method,
            query_string=list(params) or None,
            json=json,
            headers=self._headers | version | (headers or {}),
        )
        return SimpleNamespace(
            status_code=answer.status_code, text=answer.text, json=lambda: answer.json
        )


@pytest.fixture
def jobs(tmp_path):
    return Jobs(with_tables(tmp_path / "jobs.db"))


@pytest.fixture
def client(jobs):
    conf = cfg.ConfigOpts()
    enforcer = policy.Enforcer(conf)
    conf([], default_config_files=[])
    enforcer.register_defaults(policies.RULES)
    made = app.make(
        Stores.of(jobs._database),
        enforcer,
        lambda _environ: CLOUD,
        SimpleNamespace(of=lambda _: Cabling("f", ("leaf", "pod"), (("l", "p"),) * 2)),
        ApiOptions(topology_key="k" * 32),
    )
    return made.test_client()


@pytest.fixture
def shell(client):
    """Run a command; returns exit code, standard output and standard error."""

    def run(command_class, *words, adapter=None, terminal=False, pools=()):
        asked = JobsClient(adapter or Adapter(client, "reader", "member"))
        error = io.StringIO()
        error.isatty = lambda: terminal
        shell_app = SimpleNamespace(
            client_manager=SimpleNamespace(
                numa=SimpleNamespace(jobs=lambda: asked, pools=lambda: pools)
            ),
            stdout=io.StringIO(),
            stderr=error,
        )
        command = command_class(shell_app, None)
        code = command.run(command.get_parser("numa").parse_args(list(words)))
        return code, shell_app.stdout.getvalue(), error.getvalue()

    return run


def test_a_job_of_two_parts_is_submitted_and_shown(shell, jobs):
    words = ["train", "--part", GPU, "--part", CPU, "--walltime", "3600", "--hold"]
    _, text, _ = shell(job.CreateJob, *words, "-f", "json")
    shown = json.loads(text)
    assert (shown["name"], shown["state"], shown["held"]) == ("train", "queued", True)
    assert shown["reasons"] == "submitted by user-1"
    (stored,) = jobs.find()
    assert [(part.name, part.count) for part in stored.parts] == [("gpu", 2), ("cpu", 1)]
    assert shown["parts"][0]["wait_for"][0] == {"scope": "host", "wait_s": 600}
    table = shell(job.ShowJob, "train")[1]
    assert "waits for places on one host for 600 s, then on any hosts" in table
    assert "numa_ext:gpu_policy=topo_p" in table


def test_a_table_shows_all_that_a_part_asks_for_and_nothing_where_nothing_is_set(shell, jobs):
    words = "name=cpu,flavor=big,image=debian,network=blue,apart=true,on-failure=keep"
    shell(job.CreateJob, "train", "--part", words)
    (found,) = jobs.find()
    jobs.set_servers(found, found.parts[0], {0: "s-1"}, Actor("engine-1"))
    rows = [each.strip("| ").split("|") for each in shell(job.ShowJob, "train")[1].splitlines()]
    cells = [each[-1].strip() for each in rows]
    at = cells.index("cpu: 1 × flavor f-1")
    assert cells[at : at + 6] == [
        "cpu: 1 × flavor f-1",
        "image i-1",
        "network n-1",
        "waits for places on any hosts",
        "no two on one host, on failure: keep",
        "server s-1",
    ]
    assert "None" not in cells


@pytest.mark.parametrize("scope", Scope)
def test_a_table_has_words_for_each_scope(shell, scope):
    shell(job.CreateJob, "train", "--part", f"{CPU},wait-for={scope}")
    assert "waits for places " in shell(job.ShowJob, "train")[1]


def test_a_dry_run_stores_nothing_and_says_so(shell, jobs):
    code, text, said = shell(job.CreateJob, "train", "--part", CPU, "--dry-run", "-f", "json")
    assert (code, json.loads(text)["name"], jobs.find()) == (0, "train", [])
    assert said == "It could be submitted so; nothing was stored.\n"


def test_each_submission_has_a_key_of_its_own(shell, client):
    adapter = Adapter(client, "member", "reader")
    for _ in range(2):
        shell(job.CreateJob, "train", "--part", CPU, adapter=adapter)
    assert len({*adapter.keys}) == 2
    assert all(adapter.keys)


def test_parts_may_come_from_a_file(shell, tmp_path):
    file = tmp_path / "parts.json"
    file.write_text(json.dumps([{"name": "a", "flavor": "big", "image": "debian"}]))
    shown = json.loads(shell(job.CreateJob, "x", "--parts-file", str(file), "-f", "json")[1])
    assert [part["name"] for part in shown["parts"]] == ["a"]
    for content, why in (("{", "JSON"), ("{}", "list of parts")):
        file.write_text(content)
        with pytest.raises(InvalidValueError, match=why):
            shell(job.CreateJob, "x", "--parts-file", str(file))
    with pytest.raises(InvalidValueError, match="No such file"):
        shell(job.CreateJob, "x", "--parts-file", f"{tmp_path}/none")


def test_jobs_are_listed_with_their_place_and_why(shell, jobs):
    low, high, held = (
        jobs.create(new_job(name, **more))
        for name, more in (("low", {}), ("high", {"priority": 5}), ("held", {"held": True}))
    )
    jobs.create(new_job("theirs", project="project-2"))
    rows = json.loads(shell(job.ListJob, "-f", "json")[1])
    assert [(row["Name"], row["State"], row["Place"]) for row in rows] == [
        ("low", "queued", "2/3"),
        ("high", "queued", "1/3"),
        ("held", "queued (held)", ""),
    ]
    assert {row["ID"] for row in rows} == {low.uuid, high.uuid, held.uuid}
    assert rows[0]["Servers"] == "0/2"
    assert json.loads(shell(job.ListJob, "--state", "running", "-f", "json")[1]) == []
    assert len(json.loads(shell(job.ListJob, "--limit", "1", "-f", "json")[1])) == 1
    for form in ("table", "csv", "value", "yaml"):
        assert low.uuid in shell(job.ListJob, "-f", form)[1]


def test_jobs_of_all_projects_are_for_administrators(shell, client, jobs):
    jobs.create(new_job("theirs", project="project-2"))
    with pytest.raises(JobRefusedError, match="Policy does not allow"):
        shell(job.ListJob, "--all-projects")
    admin = Adapter(client, "admin")
    (row,) = json.loads(shell(job.ListJob, "--all-projects", "-f", "json", adapter=admin)[1])
    assert (row["Name"], row["Project"]) == ("theirs", "project-2")


def test_more_jobs_than_a_page_are_listed(client, jobs, monkeypatch):
    monkeypatch.setattr("nova_numa_ext.cli.jobs_client._PAGE", 2)
    for name in "abcde":
        jobs.create(new_job(name))
    asked = JobsClient(Adapter(client, "reader"))
    assert [each["name"] for each in asked.jobs()] == list("abcde")
    assert [each["name"] for each in asked.jobs(most=3)] == list("abc")
    some = jobs.find()[2]
    jobs.set(some, Actor("u"), (Reason(JobTerm.HELD, "u"),), held=True)
    jobs.set(jobs.read(some.uuid), Actor("u"), (Reason(JobTerm.RELEASED, "u"),), held=False)
    assert len(list(asked.events({"id": some.uuid}))) == 3


def test_jobs_are_held_released_and_cancelled(shell, jobs):
    first, second = jobs.create(new_job("first")), jobs.create(new_job("second"))
    for command, state in (
        (job.HoldJob, "queued (held)"),
        (job.ReleaseJob, "queued"),
        (job.CancelJob, "queued (cancelled)"),
    ):
        code, text, _ = shell(command, "first", second.uuid, "-f", "json")
        rows = json.loads(text)
        assert (code, [(row["State"], row["Result"]) for row in rows]) == (0, [(state, "done")] * 2)
    assert jobs.read(first.uuid).cancelled


def test_jobs_that_ask_for_remote_gpus_are_listed_with_the_others(shell, jobs):
    """Held, released and cancelled, too; by the server for which they ask."""
    asked = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
    Leases(jobs._database).request(("project-1", "user-1"), asked, 2, "server-1", Actor("engine"))
    (row,) = json.loads(shell(job.ListJob, "-f", "json")[1])
    assert (row["Name"], row["Servers"], row["State"]) == ("server-1", "leases: 2", "queued")
    assert row["Why"] == "its server runs, and the flavor of that asks for it"
    assert json.loads(shell(job.ListJob, "--kind", "servers", "-f", "json")[1]) == []
    shown = json.loads(shell(job.ShowJob, "server-1", "-f", "json")[1])
    assert (shown["kind"], len(shown["leases"])) == ("attach", 2)
    assert all(each in shell(job.ShowJob, "server-1")[1] for each in shown["leases"])
    for command in (job.HoldJob, job.ReleaseJob, job.CancelJob):
        (row,) = json.loads(shell(command, "server-1", "-f", "json")[1])
        assert row["Result"] == "done"
    assert jobs.read(shown["id"]).cancelled


def test_limits_are_shown_with_what_is_used_of_them(shell, jobs):
    jobs.create(new_job())
    rows = json.loads(shell(job.ListJobLimits, "-f", "json")[1])
    assert rows[:2] == [
        {"Name": "waiting_jobs", "Used": 1, "Limit": 1000},
        {"Name": "waiting_servers", "Used": 2, "Limit": 10_000},
    ]
    assert {"Name": "project_jobs", "Used": 0, "Limit": None} in rows
    assert "project_jobs 0 none" in shell(job.ListJobLimits, "-f", "value")[1]


def test_a_job_that_refuses_leaves_the_others(shell, jobs):
    jobs.create(new_job("good"))
    code, text, _ = shell(job.HoldJob, "none", "good", "-f", "json")
    assert code == 1
    refused, done = json.loads(text)
    assert "id or name of a job that you may see" in refused["Result"]
    assert done["State"] == "queued (held)"


def test_a_name_of_several_jobs_is_no_reference(shell, jobs):
    twins = [jobs.create(new_job("twin")) for _ in range(2)]
    with pytest.raises(InvalidValueError) as raised:
        shell(job.ShowJob, "twin")
    assert all(twin.uuid in str(raised.value) for twin in twins)


def test_explain_says_what_happened_and_why_it_waits(shell, jobs):
    found = jobs.create(new_job("train"))
    jobs.set(found, Actor("engine-1"), (Reason(JobTerm.BEHIND, "job-0"),), postponed=1)
    rows = json.loads(shell(job.ExplainJob, "train", "-f", "json")[1])
    assert [(row["By"], row["Why"]) for row in rows] == [
        ("user-1", "submitted by user-1"),
        ("engine-1", "behind another job, which finds no place"),
        ("", "behind another job, which finds no place"),
        ("", "place in the queue: 1/1"),
    ]
    assert len(json.loads(shell(job.ExplainJob, "train", "--now", "-f", "json")[1])) == 2


def test_explain_names_what_an_event_is_about_where_its_state_does_not(shell, jobs):
    found = jobs.create(new_job("train"))
    why = (Reason(JobTerm.TRUST, "the user is disabled"),)
    found = jobs.set(found, Actor("engine-1"), why, trust_lost_at=1.0)
    jobs.set(found, Actor("engine-1"), reserved=(ProviderAmount(found.uuid, "CUSTOM_SLOT", 1),))
    rows = json.loads(shell(job.ExplainJob, "train", "-f", "json")[1])
    said = ["state", "trust_lost_at", "reserved"]
    assert [each["What"] for each in rows[:3]] == said, "as the API says it"
    table = shell(job.ExplainJob, "train")[1]
    assert "rights of its user" in table
    assert "what is kept for it" in table
    assert not any(each in table for each in said[1:])
    assert " state " not in table


def test_watch_follows_a_job_to_its_end(shell, jobs, monkeypatch):
    found = jobs.create(new_job("train"))
    moves = iter([(JobState.CANCELLED, JobTerm.CANCELLED)])

    def sleep(seconds):
        assert seconds == 5.0
        state, term = next(moves)
        jobs.move(jobs.read(found.uuid), state, (Reason(term, "user-1"),), Actor("e"))

    monkeypatch.setattr(job, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    code, text, said = shell(job.WatchJob, "train", "-f", "json", terminal=True)
    assert (code, json.loads(text)["state"]) == (1, "cancelled")
    assert "queued: submitted by user-1" in said
    assert "\rqueued: 1/1" in said
    assert "cancelled: " in said.splitlines()[-1]


def test_watch_gives_up_in_time(shell, jobs):
    jobs.create(new_job("train"))
    code, text, said = shell(job.WatchJob, "train", "--timeout", "0", "-f", "json")
    assert (code, json.loads(text)["state"]) == (1, "queued")
    assert "\r" not in said, "nothing is drawn where no terminal is"
    end = "It is queued after 0 s and is followed no longer; it goes on."
    assert said.splitlines()[-1] == end


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name", "name is not allowed"),
        ("name=", "name= is not allowed"),
        ("name=a,colour=red", "colour=red is not allowed; allowed: name="),
        ("name=a,name=b", "given twice"),
        ("on-failure=keep,on-failure=fail", "given twice"),
        ("count=0", "a whole number from 1 to 1024"),
        ("on-failure=cry", "on-failure=cry is not allowed"),
        ("apart=maybe", "apart=maybe is not allowed"),
        ("wait-for=moon", "wait-for=moon is not allowed"),
        ("wait-for=host:soon", "soon is not allowed; allowed: a number"),
    ],
)
def test_a_part_that_has_no_meaning_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ArgumentTypeError) as raised:
        job_request.part(text)
    assert sentence in str(raised.value)


def test_a_comma_in_a_value_is_written_twice():
    assert job_request.part("name=a,flavor=x,,y") == {"name": "a", "flavor": "x,y"}


def test_times_are_utc_unless_they_say_otherwise():
    assert job_request.moment("1970-01-02T00:00") == 86_400.0
    assert job_request.moment("1970-01-02T00:00+01:00") == 82_800.0
    with pytest.raises(ArgumentTypeError, match="tomorrow is not allowed"):
        job_request.moment("tomorrow")


def test_what_the_service_refuses_is_its_own_sentence(shell):
    with pytest.raises(InvalidValueError, match="none"):
        shell(job.ShowJob, "none")
    with pytest.raises(JobRefusedError, match="There is no job"):
        shell(job.ShowJob, "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa")
    with pytest.raises(JobRefusedError, match="flavor"):
        shell(job.CreateJob, "x", "--part", "name=a,flavor=none,image=debian")


def raising(error):
    def request(*_words, **_options):
        raise error

    return SimpleNamespace(request=request)


def answering(status, text):
    def no_json():
        raise ValueError(text)

    answer = SimpleNamespace(status_code=status, text=text, json=no_json)
    return SimpleNamespace(request=lambda *_words, **_options: answer)


@pytest.mark.parametrize(
    ("adapter", "kind", "sentence"),
    [
        (raising(EndpointNotFound()), CapabilityMissingError, "no endpoint of service type"),
        (raising(ConnectFailure("away")), ServiceUnavailableError, "The job service: away"),
        (answering(502, "<html>"), ServiceUnavailableError, "The job service: 502: <html>"),
        (answering(401, "no"), JobRefusedError, "401: no"),
    ],
)
def test_a_service_that_is_not_there_is_a_sentence(shell, adapter, kind, sentence):
    with pytest.raises(kind) as raised:
        shell(job.ListJob, adapter=adapter)
    assert sentence in str(raised.value)


JOBS = [
    {"submitted_at": 0.0, "started_at": 60.0, "ended_at": 120.0, "parts": [{"count": 2}]},
    {"submitted_at": 30.0, "started_at": None, "ended_at": 90.0, "parts": [{"count": 4}]},
    {"submitted_at": 60.0, "started_at": 90.0, "ended_at": None, "parts": [{"count": 1}]},
    {"submitted_at": 100.0, "started_at": None, "ended_at": None, "parts": [{"count": 8}]},
]


def test_queue_waiting_and_use_are_counted_of_jobs_times():
    assert job_plot.queue_length(JOBS, 150.0) == [
        *((0.0, 1), (30.0, 2), (60.0, 2), (90.0, 0), (100.0, 1), (150.0, 1))
    ]
    assert job_plot.use(JOBS, 150.0) == [(60.0, 2), (90.0, 3), (120.0, 1), (150.0, 1)]
    waits = [(0.0, 60.0), (30.0, 60.0), (60.0, 30.0), (100.0, 50.0)]
    assert job_plot.waiting(JOBS, 150.0) == waits


def test_they_are_drawn_into_a_file(shell, jobs, tmp_path):
    jobs.create(new_job("train"))
    shell(job.ListJob, "--plot", f"{tmp_path}/queue.png")
    assert (tmp_path / "queue.png").read_bytes().startswith(b"\x89PNG")
    for name, why in (("queue.xyz", "ends in .png"), ("none/queue.png", "No such file")):
        with pytest.raises(InvalidValueError, match=why):
            shell(job.ListJob, "--plot", f"{tmp_path}/{name}")
    with pytest.raises(InvalidValueError, match="at least one job"):
        shell(job.ListJob, "--state", "done", "--plot", f"{tmp_path}/queue.png")


def test_without_matplotlib_a_plot_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CapabilityMissingError, match="matplotlib is not installed"):
        job_plot.draw(JOBS, 150.0, tmp_path / "queue.png")


def test_a_lease_is_asked_for_listed_shown_and_released(shell, client):
    """Only administrators ask for one, and see its host."""
    server = str(uuid.uuid4())
    words = ["--memory-mb", "1000", "--api", "opencl", "--pool", "g1", "--server", server]
    words += ["--max-wait", "600", "-f", "json"]
    with pytest.raises(JobRefusedError, match="numa_ext:leases:create"):
        shell(lease.CreateLease, *words)
    admin = Adapter(client, "admin", "member", "reader")
    made = json.loads(shell(lease.CreateLease, *words, adapter=admin)[1])
    assert (made["state"], made["held"], made["pool"]) == ("reserved", False, "g1")
    assert made["max_wait_s"] == 600
    assert (made["reasons"], made["server_id"]) == ("asked for by user-1", server)
    (row,) = json.loads(shell(lease.ListLease, "--state", "reserved", "-f", "json")[1])
    assert (row["ID"], row["GPU memory MiB"], row["Level"]) == (made["id"], 1000, "silver")
    shown = [made["id"], "-f", "json"]
    assert json.loads(shell(lease.ShowLease, *shown, adapter=admin)[1]) == made
    assert json.loads(shell(lease.ShowLease, *shown)[1]) == {**made, "pool": None}
    assert (
        json.loads(shell(lease.AttachLease, made["id"], server, "-f", "json")[1])["server_id"]
        == server
    )
    with pytest.raises(JobRefusedError, match="is for server"):
        shell(lease.AttachLease, made["id"], str(uuid.uuid4()))
    code, text, _ = shell(lease.ReleaseLease, made["id"], "none", "-f", "json")
    rows = json.loads(text)
    assert (code, rows[0]["State"]) == (1, "releasing")
    assert "There is no lease none" in rows[1]["Result"]
    (row,) = json.loads(shell(lease.ListLease, "--all-projects", "-f", "json", adapter=admin)[1])
    assert (row["State"], row["Why"]) == ("releasing", "released by user-1")


def test_a_pool_is_shown_with_how_leases_use_it(shell, client, jobs):
    """Two leases of GPU ``a`` and one of ``b`` of g1, which has reported what it knows of them; who asks is told it."""
    leases, engine = Leases(jobs._database), Actor("e")
    asked = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
    uuids = []
    for gpu in ("gpu-a", "gpu-a", "gpu-b"):
        made = leases.create("project-2", "user-2", asked)
        (chosen,) = leases.choose([made], [LeaseChoice("g1", gpu, {gpu: {"x": 1}})], engine)
        uuids.append(leases.hold(chosen, engine).uuid)
    first, second, third = uuids
    LeaseHosts(jobs._database).report(
        "g1",
        [],
        busy={first: 0.25, second: 0.5},
        used_mb={first: 500.0, second: 0.25, third: 0.0},
        link_mbps={second: 12.345},
    )

    def shown(*roles):
        words = ("g1", "-f", "json")
        _, text, why = shell(ShowPool, *words, adapter=Adapter(client, *roles), pools=(POOL,))
        figures = ("Busy", "In use MiB", "Links MB/s")
        return [tuple(row[each] for each in figures) for row in json.loads(text)], why

    nothing = ("", "", "")
    assert shown("admin", "member", "reader") == (
        [("0.75", "500.25", "12.35"), ("", "0", ""), nothing],
        "",
    )
    found, why = shown("member", "reader")
    assert found == [nothing] * 3
    assert "numa_ext:leases:list:all_projects" in why
    show = [first, "-f", "json"]
    seen = json.loads(shell(lease.ShowLease, *show, adapter=Adapter(client, "admin"))[1])
    assert (seen["busy"], seen["used_mb"], seen["link_mbps"]) == (0.25, 500.0, None)


def test_an_elastic_group_is_sized_by_prometheus(shell, client, jobs):
    admin = Adapter(client, "admin", "member", "reader")
    words = [GROUP, "--objective-ms", "35"]
    asked = ["--prometheus", 'reads=rate(web{a="b"}[$window])', "--prometheus", "latency_ms=p99"]
    made = json.loads(
        shell(group_scaling.SetScaling, *words, *asked, "-f", "json", adapter=admin)[1]
    )
    assert made["source"]["prometheus"]["reads"] == 'rate(web{a="b"}[$window])'
    agents = ["--agents", "web-.*", "--prometheus", "disturbed="]
    made = json.loads(
        shell(group_scaling.SetScaling, *words, *agents, "-f", "json", adapter=admin)[1]
    )
    assert 'name=~"web-.*"' in made["source"]["prometheus"]["reads"]
    assert made["source"]["prometheus"]["disturbed"] == ""
    for wrong in (
        [],
        [*asked, "--csv", "web.csv"],
        ["--agents", "web", "--csv", "web.csv"],
        ["--prometheus", "reads"],
    ):
        with pytest.raises(InvalidValueError, match=r"--csv|--prometheus"):
            shell(group_scaling.SetScaling, *words, *wrong, adapter=admin)


def test_an_elastic_group_is_enforced_and_its_members_are_shown(shell, client, jobs):
    words = [GROUP, "--csv", "web.csv", "--objective-ms", "35", "--flavor", "big"]
    words += ["--image", "debian", "--network", "blue", "--hook", "web", "--name", "web"]
    admin = Adapter(client, "admin", "member", "reader")
    made = json.loads(shell(group_scaling.SetScaling, *words, "-f", "json", adapter=admin)[1])
    assert made["mode"] == "enforce"
    assert (made["enforce"]["hook"], made["enforce"]["name"]) == ("web", "web")
    groups = ScalingGroups(jobs._database)
    groups.record(groups.read(GROUP), [], Actor("engine"), act=Act(("token-1",)))
    assert "(no server yet) asked" in shell(group_scaling.ShowScaling, GROUP)[1]


def test_an_elastic_group_is_enforced_by_a_stack(shell, client):
    words = [GROUP, "--csv", "web.csv", "--objective-ms", "35", "--heat-stack", "web"]
    asked = [*words, "--heat-parameter", "size", "-f", "json"]
    admin = Adapter(client, "admin", "member", "reader")
    made = json.loads(shell(group_scaling.SetScaling, *asked, adapter=admin)[1])
    assert (made["mode"], made["enforce"]["heat"]["parameter"]) == ("enforce", "size")
    for wrong in (words, [*asked, "--flavor", "big"], [*asked, "--network", "blue"]):
        with pytest.raises(InvalidValueError, match="--heat"):
            shell(group_scaling.SetScaling, *wrong, adapter=admin)


def test_an_elastic_group_is_set_shown_paused_resumed_and_deleted(shell, client, jobs, tmp_path):
    """Only administrators set one: its source is a file of the controllers."""
    words = [GROUP, "--csv", "web.csv", "--objective-ms", "35", "--granularity", "100,100,5"]
    words += ["--least", "2", "-f", "json"]
    with pytest.raises(JobRefusedError, match="numa_ext:scaling:set"):
        shell(group_scaling.SetScaling, *words)
    admin = Adapter(client, "admin", "member", "reader")
    made = json.loads(shell(group_scaling.SetScaling, *words, adapter=admin)[1])
    assert (made["id"], made["mode"], made["paused"]) == (GROUP, "observe", False)
    assert (made["source"], made["settings"]["granularity"]) == ({"csv": "web.csv"}, [100, 100, 5])
    assert (made["settings"]["least"], made["settings"]["head_room"]) == (2, 1.07)
    with pytest.raises(JobRefusedError, match="There is no server group none"):
        shell(group_scaling.SetScaling, "none", *words[1:], adapter=admin)

    assert (made["enforce"], made["members"]) == (None, "")
    with pytest.raises(InvalidValueError, match="--image"):
        shell(group_scaling.SetScaling, *words, "--flavor", "big", adapter=admin)

    groups, log = ScalingGroups(jobs._database), tmp_path / "log.jsonl"
    trace = ["time_s,member,reads_per_s,latencies_ms", "0,a,100,20", "300.5,a,100,20"]
    stored = groups.read(GROUP)
    lines = [each.as_json() for each in follow(read_trace(trace), SimpleModels(), stored.settings)]
    groups.record(stored, lines, Actor("engine"))
    shown = json.loads(
        shell(group_scaling.ShowScaling, GROUP, "--decision-log", str(log), "-f", "json")[1]
    )
    assert shown["last_decision"] == "300.5 s: +1, has 1 members, 2 is the least"
    assert [json.loads(line) for line in log.read_text().splitlines()] == lines
    with pytest.raises(InvalidValueError, match="can be written to"):
        shell(group_scaling.ShowScaling, GROUP, "--decision-log", str(tmp_path))
    assert "300.5 s: +1" in shell(group_scaling.ShowScaling, GROUP)[1]

    paused = json.loads(shell(group_scaling.PauseScaling, GROUP, "-f", "json")[1])
    resumed = json.loads(shell(group_scaling.ResumeScaling, GROUP, "-f", "json")[1])
    assert (paused["paused"], resumed["paused"]) == (True, False)
    with pytest.raises(JobRefusedError, match="There is no elastic group none"):
        shell(group_scaling.PauseScaling, "none")

    (row,) = json.loads(shell(group_scaling.ListScaling, "-f", "json")[1])
    assert (row["Server group"], row["Paused"], row["Trouble"]) == (GROUP, False, "")
    with pytest.raises(CommandError, match="There is no elastic group none"):
        shell(group_scaling.DeleteScaling, "none", GROUP, adapter=admin)
    everywhere = shell(group_scaling.ListScaling, "--all-projects", "-f", "json", adapter=admin)[1]
    assert json.loads(everywhere) == []
    assert groups.last_decision(stored) is None


def test_a_long_log_is_read_page_by_page(client, jobs, monkeypatch):
    monkeypatch.setattr(jobs_client, "_PAGE", 2)
    groups = ScalingGroups(jobs._database)
    group = groups.set(GROUP, "project-1", "u", ScalingSettings(35.0), ScalingSource("web.csv"))
    (period,) = read_trace(["time_s,member,reads_per_s,latencies_ms", "0,a,1,2"])
    (line,) = (each.as_json() for each in follow([period], SimpleModels(), group.settings))
    lines = [{**line, "at_s": at / 3} for at in range(5)]
    groups.record(group, lines, Actor("engine"))
    asked = JobsClient(Adapter(client, "reader", "member"))
    assert list(asked.scaling_decisions(GROUP)) == lines


def test_where_servers_of_a_group_hang_is_asked_of_the_service(shell):
    """Without a key file, and without a right to see hosts."""

    def text(form):
        return shell(ShowGroupTopology, GROUP, "--format", form)[1]

    rows = json.loads(text("json"))
    assert [row["server"] for row in rows] == ["rank-0", "rank-1"]
    assert rows[0]["leaf"] == rows[1]["leaf"] != "l"
    (tree,) = yaml.safe_load(text("slurm"))
    assert tree["tree"]["switches"][0] == {"switch": rows[0]["leaf"], "nodes": "rank-0,rank-1"}
    first, _ = yaml.safe_load_all(text("kueue"))
    assert first["metadata"]["labels"]["numa-ext.openstack.org/pod"] == rows[0]["pod"]
    with pytest.raises(JobRefusedError, match="There is no server group none"):
        shell(ShowGroupTopology, "none")


LEASE_WORDS = ["--memory-mb", "1000", "--api", "opencl"]
# Command -> what is given to it; JOB and LEASE are there, in states that let them change.
COMMANDS = {
    "numa_job_create": ["train", "--part", CPU],
    "numa_job_list": [],
    "numa_job_show": ["JOB"],
    "numa_job_cancel": ["JOB"],
    "numa_job_hold": ["JOB"],
    "numa_job_release": ["JOB"],
    "numa_job_limits": [],
    "numa_job_explain": ["JOB"],
    "numa_job_watch": ["JOB", "--timeout", "0"],
    "numa_lease_create": LEASE_WORDS,
    "numa_lease_list": [],
    "numa_lease_show": ["LEASE"],
    "numa_lease_attach": ["LEASE", "6b1f0c52-9a47-4e0d-8a35-7c1d2e9f4b60"],
    "numa_lease_release": ["LEASE"],
    "numa_lease_requeue": ["LOST"],
    "numa_lease_host_off": ["HOST"],
    "numa_lease_move": ["USED"],
}


def commands():
    """Our commands of jobs and leases, as the package names them."""
    setup = ConfigParser(delimiters=["="])
    setup.read(ROOT / "setup.cfg")
    found = {}
    for group in setup["entry_points"].values():
        for line in filter(None, group.split("\n")):
            name, _, target = (word.strip() for word in line.partition("="))
            if name.startswith(("numa_job_", "numa_lease_")):
                module, _, of_class = target.partition(":")
                found[name] = getattr(import_module(module), of_class)
    return found


def lost_lease(jobs):
    """A lease of project-1 whose GPU's host is silent."""
    leases = Leases(jobs._database)
    asked = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
    found = leases.create("project-1", "user-1", asked)
    for step in (life.start, life.lose):
        found = leases.change(found, step, Actor("engine"))
    return found.uuid


def used_lease(jobs):
    """A lease of project-1 that a server uses."""
    leases = Leases(jobs._database)
    asked = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
    found = leases.create("project-1", "user-1", asked)
    served = partial(life.acknowledge, host="", epoch=1)
    for step in (life.start, served, partial(life.attach, client_host="c1")):
        found = leases.change(found, step, Actor("engine"))
    return found.uuid


def silent_host(jobs):
    """A host that has not reported for long, with a lease of project-1."""
    leases, engine = Leases(jobs._database), Actor("engine")
    asked = LeaseSpec(1000, ServiceLevel.SILVER, RemoteGpuApi.OPENCL)
    new = leases.create("project-1", "user-1", asked)
    (chosen,) = leases.choose(
        [new], [LeaseChoice("g9", "gpu-1", {"gpu-1": {"CUSTOM_X": 1}})], engine
    )
    leases.change(leases.hold(chosen, engine), life.start, engine)
    LeaseHosts(jobs._database).report("g9", ())
    with jobs._database.transaction() as connection:
        connection.execute(update(tables.lease_host).values(seen_at=0.0))
    return "g9"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_written_in_each_form(shell, client, jobs, name):
    """What people read, what scripts and shells take, and what tables of others import."""
    admin = Adapter(client, "admin", "member", "reader")
    of_name = commands()[name]
    job_there = jobs.create(new_job("there"))
    asked = json.loads(shell(lease.CreateLease, *LEASE_WORDS, "-f", "json", adapter=admin)[1])
    given = {"JOB": job_there.uuid, "LEASE": asked["id"], "LOST": lost_lease(jobs)}
    given |= {"HOST": silent_host(jobs), "USED": used_lease(jobs)}
    words = [given.get(word, word) for word in COMMANDS[name]]
    forms = {"table", "json", "yaml", "value"} | (
        {"csv"} if issubclass(of_name, Lister) else {"shell"}
    )
    rows = {form: shell(of_name, *words, "-f", form, adapter=admin)[1] for form in forms}
    data = json.loads(rows["json"])
    assert type(yaml.safe_load(rows["yaml"])) is type(data)
    assert all(rows.values())
    if "csv" in rows:
        head, *lines = csv.reader(io.StringIO(rows["csv"]))
        assert [head] * len(data) == [list(each) for each in data]
        assert len(lines) == len(data)
    else:
        assert [each.partition("=")[0] for each in shlex.split(rows["shell"])] == list(data)


SHOWN = [
    command.words[1:]
    for page in ("user/jobs.rst", "operator/jobs.rst")
    for command in commands_of_page(ROOT / "doc/source" / page)
    if command.words[:3] == ("openstack", "numa", "job")
]


@pytest.fixture
def as_on_pages(monkeypatch, tmp_path):
    """A working directory of the test's own, and a cloud with all flavors that pages name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CLOUD, "flavor", lambda _name: UserFlavor("f-1", 4, 1024, 12, 10, {}))


@pytest.mark.usefixtures("as_on_pages")
@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_what_a_page_shows_succeeds_as_it_is_typed(shell, client, jobs, words):
    """A job of the name that the pages use waits, is held, or runs, as its command needs."""
    there = jobs.create(new_job("train", held="release" in words))
    for state in JobState if "watch" in words else ():
        if state.active and state is not JobState.ENDING:
            there = jobs.move(there, state, (Reason(JobTerm.BUILT, 2),), Actor("engine-1"))
    command, arguments = plugin_of([there.uuid if word == "JOB" else word for word in words])
    admin = Adapter(client, "admin", "member", "reader")
    code, text, _ = shell(command, *arguments, adapter=admin)
    assert (code, bool(text.strip())) == (0, True)


def test_no_command_of_jobs_or_leases_is_left_out():
    assert commands().keys() == COMMANDS.keys()
