# SPDX-License-Identifier: Apache-2.0
"""Acting for a user: by a real Keystone what it answers, and without one what is made of its silence."""

import pytest
from keystoneauth1 import session
from keystoneauth1.exceptions import ConnectFailure, Forbidden, Unauthorized
from keystoneauth1.identity import v3

from nova_numa_ext.orchestrator.cloud.keystone import KeystoneTrusts, make_trust
from nova_numa_ext.orchestrator.cloud.trusts import TrustError
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError
from tests.support.keystone import identity, keystone, of


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
    trusts(error).delete("trust-1")


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

        def trust():
            return make_trust(
                identity(url, "alice", "work"), alice, project, ["member", "reader"], jobs
            )

        first = trust()
        access = trusts._acting(first).get_access(session.Session())
        assert (access.user_id, access.project_id) == (alice, project)
        assert sorted(access.role_names) == ["member", "reader"]
        trusts.delete(first)
        trusts.delete(first)
        assert admin.get(f"/OS-TRUST/trusts?trustor_user_id={alice}").json()["trusts"] == []
        with pytest.raises(TrustError):
            trusts.servers(first)

        second = trust()
        admin.patch(f"/users/{alice}", json={"user": {"enabled": False}})
        with pytest.raises(TrustError):
            trusts.servers(second)
        trusts.delete(second)
        admin.patch(f"/users/{alice}", json={"user": {"enabled": True}})
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
        with pytest.raises(CapabilityMissingError, match="application credentials cannot give one"):
            make_trust(of(plugin), alice, project, ["member"], jobs)

        wrong = KeystoneTrusts(
            credentials | {"password": "wrong"}, session.Session(timeout=10), interface="public"
        )
        with pytest.raises(ServiceUnavailableError, match="does not let the job service in"):
            wrong.servers(trust())
