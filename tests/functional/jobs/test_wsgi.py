# SPDX-License-Identifier: Apache-2.0
"""The API as WSGI servers load it: with the real middleware, below gunicorn, before a real Keystone."""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from keystoneauth1 import session
from keystoneauth1.identity import v3
from werkzeug.test import Client

from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.application import assembled
from nova_numa_ext.orchestrator.store.jobs import Jobs
from placement_traits.errors import CapabilityMissingError
from placement_traits.oslo_options import ConfigurationError
from tests.support.jobs_database import new_job, with_tables
from tests.support.keystone import identity, keystone, of, password

ROOT = Path(__file__).parents[3]
MODULE = "nova_numa_ext.orchestrator.wsgi:application"
TOKENS = "[keystone_authtoken]\nauth_section = placement\nservice_token_roles_required = true\n"


def placement(url="http://127.0.0.1:1/v3"):
    return (
        f"[placement]\nauth_type = password\nauth_url = {url}\nusername = jobs\npassword = jobs\n"
        "user_domain_id = default\nproject_name = service\nproject_domain_id = default\n"
        "valid_interfaces = public\n"
    )


@pytest.fixture
def database(tmp_path):
    return with_tables(tmp_path / "jobs.db")


@pytest.fixture
def configure(tmp_path, database):
    """Write a configuration with a database; return its file."""

    def write(text):
        file = tmp_path / "jobs.conf"
        file.write_text(f"[database]\nconnection = {database._url}\n{text}")
        return file

    return write


@pytest.fixture
def client(configure):
    """The application; no Keystone answers."""
    return Client(assembled(startup.configured([str(configure(placement() + TOKENS))])))


def test_versions_and_health_need_no_token(client):
    assert client.get("/").json["versions"][0]["id"] == "v1.0"
    assert client.get("/healthcheck").status_code == 200


def test_who_brings_no_token_is_told_so_in_json(client):
    answer = client.get("/v1/jobs")
    assert answer.status_code == 401
    assert answer.json["errors"][0]["detail"] == "A token of Keystone is needed."


def test_headers_of_the_middleware_are_taken_from_nobody_else(client):
    claimed = {
        "X-Identity-Status": "Confirmed",
        "X-User-Id": "admin",
        "X-Project-Id": "p",
        "X-Roles": "admin",
    }
    assert client.get("/v1/jobs", headers=claimed).status_code == 401


def test_every_answer_carries_the_id_of_its_request(client):
    ids = {client.get("/v1/jobs").headers["x-openstack-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(re.fullmatch(r"req-[0-9a-f-]{36}", each) for each in ids)


def test_a_token_is_not_believed_while_keystone_does_not_answer(client):
    assert client.get("/v1/jobs", headers={"X-Auth-Token": "t"}).status_code in (401, 503)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (placement(), "[keystone_authtoken] in "),
        (placement() + "[keystone_authtoken]\nauth_section = plcement\n", "plcement"),
        (TOKENS, "auth_type is not set"),
        (
            placement() + TOKENS + "[healthcheck]\nbackends = disable_by_file,enable_by_files\n",
            "disable_by_file",
        ),
        (placement() + TOKENS + "[oslo_policy]\npolicy_file = FOLDER/wrong.yaml\n", "wrong.yaml"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_a_sentence(configure, tmp_path, text, sentence):
    (tmp_path / "wrong.yaml").write_text('"numa_ext:jobs:list": "rule:nobody_has_it"\n')
    conf = startup.configured([str(configure(text.replace("FOLDER", str(tmp_path))))])
    with pytest.raises((ConfigurationError, CapabilityMissingError)) as raised:
        assembled(conf)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@contextmanager
def gunicorn(file, tmp_path):
    """A server; yields process and log."""
    with (tmp_path / "log").open("w+") as log:
        command = [sys.executable, "-W", "ignore", "-m", "gunicorn", "--bind", "127.0.0.1:0"]
        server = subprocess.Popen(
            [*command, "--workers", "1", "--threads", "2", MODULE],
            cwd=ROOT,
            env=os.environ
            | {startup.CONFIG_VARIABLE: str(file), "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
            stdout=log,
            stderr=log,
        )
        try:
            yield server, log
        finally:
            server.terminate()
            server.wait(60)


def address(server, log):
    """Where it listens, once it says so."""
    for _ in range(600):
        log.seek(0)
        found = re.search(r"Listening at: (http://[\d.:]+)", log.read())
        if found:
            return found[1]
        assert server.poll() is None
        try:
            server.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("gunicorn does not listen")


def get(url, **headers):
    """Return status and body."""
    try:
        with urlopen(Request(url, headers=headers), timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_gunicorn_serves_it(configure, tmp_path):
    with gunicorn(configure(placement() + TOKENS), tmp_path) as (server, log):
        status, body = get(address(server, log))
    assert (status, body["versions"][0]["status"]) == (200, "CURRENT")


def test_gunicorn_ends_over_a_configuration_that_cannot_be_used(configure, tmp_path):
    """It starts no worker after the first, and so does the service manager."""
    with gunicorn(configure(placement()), tmp_path) as (server, log):
        assert server.wait(60) == 3
        log.seek(0)
        text = log.read()
    assert text.count("numa-ext-jobs: [keystone_authtoken]") == 1
    assert "Traceback" not in text


@pytest.mark.long
def test_keystone_says_who_asks(configure, database, tmp_path):
    with keystone(tmp_path) as url:
        admin = identity(url, "admin", "admin")
        roles = {each["name"]: each["id"] for each in admin.get("/roles").json()["roles"]}

        def make(kind, name, **more):
            body = {kind: {"name": name, "domain_id": "default", **more}}
            return admin.post(f"/{kind}s", json=body).json()[kind]["id"]

        def give(user, project, role):
            admin.put(f"/projects/{project}/users/{user}/roles/{roles[role]}")

        jobs, alice, bob = (make("user", name, password=name) for name in ("jobs", "alice", "bob"))
        service, work, other = (make("project", name) for name in ("service", "work", "other"))
        for user, project, role in (
            (jobs, service, "admin"),
            (alice, work, "member"),
            (bob, other, "reader"),
        ):
            give(user, project, role)
        stored = Jobs(database).create(new_job("train", project=work))
        conf = startup.configured([str(configure(placement(url) + TOKENS))])
        client = Client(assembled(conf))
        assert startup.trusts(conf).user_id() == jobs

        def asking(name, project):
            token = password(url, name, project).get_token(session.Session())
            return {"X-Auth-Token": token}

        of_alice, of_bob = asking("alice", "work"), asking("bob", "other")
        found = client.get("/v1/jobs", headers=of_alice).json["jobs"]
        assert [job["id"] for job in found] == [stored.uuid]
        assert client.get("/v1/jobs", headers=of_bob).json["jobs"] == []
        assert client.get(f"/v1/jobs/{stored.uuid}", headers=of_bob).status_code == 404
        assert client.post("/v1/jobs", json={}, headers=of_bob).status_code == 403
        wrong = client.post("/v1/jobs", json={}, headers=of_alice)
        assert (wrong.status_code, "$" in wrong.json["errors"][0]["detail"]) == (400, True)
        cancelled = client.post(f"/v1/jobs/{stored.uuid}/cancel", headers=of_alice)
        assert (cancelled.status_code, cancelled.json["job"]["cancelled"]) == (202, True)
        assert client.get("/v1/jobs", headers={"X-Auth-Token": "none"}).status_code == 401


def guides_rules(host):
    """The access rules of a host's credential for leases alone, as the operator's guide has them."""
    text = (ROOT / "doc/source/operator/credentials.rst").read_text()
    (rules,) = re.findall(r'\[\{"service": "numa-ext".*?\}\]', text, re.S)
    return json.loads(rules.replace("HOST", host))


@pytest.mark.long
def test_a_host_has_its_own_path_and_an_application_credential_nothing_else(configure, tmp_path):
    """By its password it is refused by the rule of the API, by a credential with access rules before that."""
    hosts, others = ("g1", "c1"), ("/v1/leases", "/v1/jobs")
    report = {"report": {"serves": [], "ended": [], "servers": []}}
    with keystone(tmp_path) as url:
        admin = identity(url, "admin", "admin")

        def make(kind, **more):
            return admin.post(f"/{kind}s", json={kind: more}).json()[kind]["id"]

        service = make("service", type="numa-ext", name="numa-ext")
        make("endpoint", service_id=service, interface="public", url="http://127.0.0.1:1")
        role = make("role", name="numa_ext_host")
        project = make("project", name="numa-ext-hosts", domain_id="default")
        users = {}
        for host in hosts:
            name = f"numa-ext-host-{host}"
            users[host] = make("user", name=name, domain_id="default", password=name)
            admin.put(f"/projects/{project}/users/{users[host]}/roles/{role}")
        jobs = make("user", name="jobs", domain_id="default", password="jobs")
        services = make("project", name="service", domain_id="default")
        (admins,) = (r["id"] for r in admin.get("/roles").json()["roles"] if r["name"] == "admin")
        admin.put(f"/projects/{services}/users/{jobs}/roles/{admins}")
        client = Client(assembled(startup.configured([str(configure(placement(url) + TOKENS))])))

        def statuses(plugin, paths):
            token = {"X-Auth-Token": plugin.get_token(session.Session())}
            return [
                (client.get(path, headers=token).status_code, sent.status_code)
                for path in paths
                for sent in [client.post(path, json=report, headers=token)]
            ]

        for host in hosts:
            own = f"/v1/hosts/{host}/leases"
            foreign = [f"/v1/hosts/{each}/leases" for each in hosts if each != host]
            by_password = password(url, f"numa-ext-host-{host}", "numa-ext-hosts")
            rules = guides_rules(host)
            assert {each["method"] for each in rules} == {"GET", "POST"}
            made = of(by_password).post(
                f"/users/{users[host]}/application_credentials",
                json={"application_credential": {"name": "leases", "access_rules": rules}},
            )
            found = made.json()["application_credential"]
            bound = v3.ApplicationCredential(
                url,
                application_credential_id=found["id"],
                application_credential_secret=found["secret"],
            )
            assert statuses(by_password, [own, *foreign]) == [(200, 200), (403, 403)]
            assert statuses(bound, [own, *foreign]) == [(200, 200), (401, 401)]
            assert statuses(bound, others) == [(401, 401)] * len(others)
            again = of(bound).post(
                f"/users/{users[host]}/application_credentials",
                json={"application_credential": {"name": "more"}},
                raise_exc=False,
            )
            assert again.status_code in (401, 403), "it makes no other credential"
