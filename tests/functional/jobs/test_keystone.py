# SPDX-License-Identifier: Apache-2.0
"""Acting for a user: by a real Keystone what it answers, and without one what is made of its silence."""

import json
import time
from datetime import datetime

import pytest
import requests
from keystoneauth1 import fixture, session
from keystoneauth1.exceptions import ConnectFailure, Forbidden, Unauthorized
from keystoneauth1.identity import v3

from nova_numa_ext.orchestrator.cloud.keystone import KeystoneTrusts
from nova_numa_ext.orchestrator.cloud.trusts import GivenTrust, TrustError
from nova_numa_ext.orchestrator.cloud.user import UserClouds
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from tests.support.keystone import identity, keystone, password


class Access:
    """What Keystone answers to good credentials."""

    user_id = "service-1"


@pytest.fixture
def trusts(monkeypatch):
    """By whether a trust or the service itself asks, what is raised."""

    def make(by_trust, own=None):
        def get_access(self, _transport):
            error = by_trust if self.auth_methods and self.trust_id else own
            if error:
                raise error
            return Access()

        monkeypatch.setattr(v3.Password, "get_access", get_access)
        credentials = {"auth_url": "http://keystone.test/v3", "user_id": "u", "password": "p"}
        return KeystoneTrusts(credentials, session.Session())

    return make


@pytest.mark.parametrize("error", [Unauthorized("gone"), Forbidden("disabled")])
def test_a_trust_without_rights_is_no_fault_of_keystones(trusts, error):
    with pytest.raises(TrustError, match=r"gone|disabled"):
        trusts(error).servers("trust-1")


def test_a_trust_is_deleted_when_keystone_does_not_know_it_and_not_when_its_user_is_disabled(
    trusts,
):
    trusts(Unauthorized("gone")).delete("trust-1")
    with pytest.raises(TrustError, match="disabled"):
        trusts(Forbidden("disabled")).delete("trust-1")


@pytest.mark.parametrize("error", [Unauthorized("gone"), Forbidden("disabled")])
def test_a_service_that_is_not_let_in_fails_no_job(trusts, error):
    """A wrong password of the service looks like a trust that was deleted."""
    locked_out = trusts(error, own=Unauthorized("wrong password"))
    for ask in (locked_out.servers, locked_out.delete):
        with pytest.raises(ServiceUnavailableError, match="does not let the job service in"):
            ask("trust-1")


def test_a_keystone_that_does_not_answer_fails_no_job(trusts):
    with pytest.raises(ServiceUnavailableError, match="Keystone does not answer: away"):
        trusts(ConnectFailure("away")).servers("trust-1")


class WithoutCatalogue(requests.adapters.BaseAdapter):
    """Keystone as a service's own token shows it: nothing but where the token came from."""

    def send(self, request, **_options):
        answer = requests.Response()
        answer.request, answer.url, answer.status_code = request, request.url, 200
        if request.url.endswith("/auth/tokens"):
            answer.status_code = 201
            answer.headers["X-Subject-Token"] = "token-1"
            body = fixture.V3Token(user_id="service-1")
        elif "/OS-TRUST/trusts?" in request.url:
            trust = {"id": "trust-1", "trustor_user_id": "alice", "project_id": "work"}
            body = {"trusts": [trust, trust | {"id": "of no project", "project_id": None}]}
        else:
            body = {"version": fixture.V3Discovery("http://keystone.test/v3")}
        answer._content = json.dumps(body).encode()
        return answer

    def close(self):
        """Nothing is open."""


def test_the_services_trusts_are_found_without_a_catalogue():
    transport = requests.Session()
    transport.mount("http://keystone.test", WithoutCatalogue())
    credentials = {"auth_url": "http://keystone.test/v3", "user_id": "u", "password": "p"}
    asked = session.Session(session=transport)
    for endpoint in ({}, {"interface": "public", "region_name": "one"}):
        found = KeystoneTrusts(credentials, asked, **endpoint).given()
        assert found == [GivenTrust("trust-1", "alice", "work")]


class Given:
    """A token; Keystone gives them, and counts."""

    user_id = "service-1"
    count = 0
    refuses = False
    expires = False

    def will_expire_soon(self, _seconds):
        return type(self).expires

    @classmethod
    def one(cls):
        if cls.refuses:
            raise Forbidden("disabled")
        cls.count += 1
        return cls()


@pytest.fixture
def given(monkeypatch):
    class Tokens(Given):
        pass

    monkeypatch.setattr(v3.Password, "get_auth_ref", lambda _plugin, _transport: Tokens.one())
    return Tokens


def acting(clock):
    credentials = {"auth_url": "http://keystone.test/v3", "user_id": "u", "password": "p"}
    return KeystoneTrusts(credentials, session.Session(), check_s=300.0, clock=lambda: clock[0])


def test_a_trust_has_one_token_until_it_is_checked_again(given):
    clock = [1000.0]
    trusts = acting(clock)
    for second in range(299):
        clock[0] = 1000.0 + second
        trusts.servers("a")
        trusts.servers("b")
    assert given.count == 2
    clock[0] = 1300.0
    trusts.servers("a")
    assert given.count == 3
    assert set(trusts._by_trust) == {"a"}, "tokens of trusts that are not used are not kept"


def test_a_user_that_is_disabled_is_noticed_when_its_trust_is_checked(given, monkeypatch):
    clock = [1000.0]
    trusts = acting(clock)
    trusts.servers("a")
    given.refuses = True
    clock[0] = 1299.0
    trusts.servers("a")
    monkeypatch.setattr(trusts, "user_id", lambda: "service-1")
    clock[0] = 1300.0
    for _ in range(2):
        with pytest.raises(TrustError, match="disabled"):
            trusts.servers("a")


def test_jobs_that_wait_keep_no_token(given, monkeypatch):
    """There may be ten thousand of them."""
    trusts = acting([1000.0])
    for _ in range(2):
        trusts.check("a")
    assert (given.count, trusts._by_trust) == (2, {}), "Keystone is asked each time"
    trusts.servers("a")
    given.refuses = True
    monkeypatch.setattr(trusts, "user_id", lambda: "service-1")
    for ask in (trusts.check, trusts.servers):
        with pytest.raises(TrustError, match="disabled"):
            ask("a")


def test_a_token_that_ends_or_that_nova_refuses_is_replaced_at_once(given, monkeypatch):
    trusts = acting([1000.0])
    trusts.servers("a")
    given.expires = True
    trusts.servers("a")
    assert given.count == 2
    given.expires = False
    trusts._acting("a").invalidate()  # as keystoneauth does at nova's 401
    trusts.servers("a")
    assert given.count == 3
    given.refuses = True
    trusts._acting("a").invalidate()
    monkeypatch.setattr(trusts, "user_id", lambda: "service-1")
    with pytest.raises(TrustError, match="disabled"):
        trusts.servers("a")


@pytest.mark.long
def test_a_trust_lasts_until_the_user_loses_its_rights(tmp_path):
    with keystone(tmp_path) as url:
        admin = identity(url, "admin", "admin")
        roles = {each["name"]: each["id"] for each in admin.get("/roles").json()["roles"]}

        def make(kind, name, **more):
            body = {kind: {"name": name, "domain_id": "default", **more}}
            return admin.post(f"/{kind}s", json=body).json()[kind]["id"]

        alice, jobs = (make("user", name, password=name) for name in ("alice", "jobs"))
        project = make("project", "work")
        role = f"/projects/{project}/users/{alice}/roles/{roles['member']}"
        admin.put(role)
        credentials = {
            "auth_url": url,
            "username": "jobs",
            "password": "jobs",
            "user_domain_id": "default",
        }
        trusts = KeystoneTrusts(credentials, session.Session(timeout=10), interface="public")
        assert trusts.user_id() == jobs

        def cloud(plugin):
            plain = session.Session(timeout=10)
            plugin.user = plugin.get_access(plain)
            made = UserClouds(plain, trusts.user_id, ["member"], interface="public")
            return made.of({"keystone.token_auth": plugin})

        def of_alice():
            return cloud(password(url, "alice", "work"))

        def trust():
            return of_alice().trust(time.time() + 3600)

        first = trust()
        access = trusts._acting(first).get_access(session.Session())
        assert (access.user_id, access.project_id) == (alice, project)
        assert sorted(access.role_names) == ["member", "reader"]
        assert trusts.given() == [GivenTrust(first, alice, project)]
        (shown,) = admin.get(f"/OS-TRUST/trusts?trustor_user_id={alice}").json()["trusts"]
        lasts = datetime.fromisoformat(shown["expires_at"]).timestamp() - time.time()
        assert lasts == pytest.approx(3600, abs=60)
        assert shown["redelegation_count"] == 0
        trusts.delete(first)
        trusts.delete(first)
        assert trusts.given() == []
        unused = trust()
        of_alice().delete_trust(unused)
        of_alice().delete_trust(unused)
        assert admin.get(f"/OS-TRUST/trusts?trustor_user_id={alice}").json()["trusts"] == []
        with pytest.raises(TrustError):
            trusts.servers(first)

        second = trust()
        admin.patch(f"/users/{alice}", json={"user": {"enabled": False}})
        with pytest.raises(TrustError):
            trusts.servers(second)
        with pytest.raises(TrustError):
            trusts.delete(second)
        admin.patch(f"/users/{alice}", json={"user": {"enabled": True}})
        trusts.delete(second)
        assert admin.get(f"/OS-TRUST/trusts?trustor_user_id={alice}").json()["trusts"] == []
        third = trust()
        admin.delete(role)
        with pytest.raises(TrustError):
            trusts.servers(third)
        admin.put(role)

        made = identity(url, "alice", "work").post(
            f"/users/{alice}/application_credentials",
            json={"application_credential": {"name": "script"}},
        )
        found = made.json()["application_credential"]
        plugin = v3.ApplicationCredential(
            auth_url=url,
            application_credential_id=found["id"],
            application_credential_secret=found["secret"],
        )
        scripted = cloud(plugin)
        with pytest.raises(CapabilityMissingError, match="an application credential cannot give"):
            scripted.check_trust()
        scripted.check_trust = lambda: None
        with pytest.raises(CapabilityMissingError, match="application credentials cannot give one"):
            scripted.trust(time.time() + 3600)

        wrong = KeystoneTrusts(
            credentials | {"password": "wrong"}, session.Session(timeout=10), interface="public"
        )
        with pytest.raises(ServiceUnavailableError, match="does not let the job service in"):
            wrong.servers(trust())
