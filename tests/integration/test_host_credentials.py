# SPDX-License-Identifier: Apache-2.0
"""What the credentials on a compute host are good for elsewhere: nothing in nova, and no server's allocation."""

import configparser
import uuid

import pytest
from keystoneauth1 import loading
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session

from tests.integration.cloud import LabCloud, LabHost

SOME = {"flavorRef": "1", "imageRef": str(uuid.uuid4())}
NOVAS = (
    ("GET", "/servers/detail?all_tenants=1", None),
    ("GET", "/os-migrations", None),
    ("GET", "/os-hypervisors", None),
    ("POST", "/servers", {"server": {**SOME, "name": "x", "networks": "none"}}),
)


@pytest.fixture
def session(h1: LabHost) -> Session:
    """Someone who has read the agent's configuration on h1."""
    conf = configparser.ConfigParser(strict=False, interpolation=None)
    conf.read_string(h1.run(f"cat {h1.emulated.agent_conf}"))
    keys = ("auth_url", "username", "password", "project_name", "user_domain_id")
    found = {key: conf["placement"][key] for key in keys}
    project_domain = conf["placement"]["project_domain_id"]
    plugin = loading.get_plugin_loader("password")
    return Session(plugin.load_from_options(**found, project_domain_id=project_domain))


@pytest.mark.parametrize(("method", "path", "body"), NOVAS)
def test_nova_refuses_the_host(
    session: Session, method: str, path: str, body: dict[str, object] | None
) -> None:
    nova = Adapter(session, service_type="compute", region_name="RegionOne")
    answer = nova.request(path, method, json=body, raise_exc=False, microversion="2.87")
    assert answer.status_code == 403, answer.text


def test_placement_refuses_the_host_all_but_publishing(session: Session) -> None:
    placement = Adapter(
        session,
        service_type="placement",
        region_name="RegionOne",
        additional_headers={"OpenStack-API-Version": "placement 1.39"},
    )
    for method, path, status in (
        ("GET", "/resource_providers", 200),
        ("GET", "/allocation_candidates?resources=VCPU:1", 403),
        ("DELETE", f"/allocations/{uuid.uuid4()}", 403),
        ("PUT", f"/allocations/{uuid.uuid4()}", 403),
        ("POST", "/reshaper", 403),
    ):
        body: dict[str, object] | None = {} if method in ("PUT", "POST") else None
        answer = placement.request(path, method, json=body, raise_exc=False)
        assert answer.status_code == status, (method, path, answer.text)


def test_the_doctor_of_the_host_finds_nothing_to_take(cloud: LabCloud, h1: LabHost) -> None:
    found = {row["check"]: row for row in h1.ctl("doctor")}
    assert found["credentials"]["level"] == "good", found["credentials"]
    passwords = cloud.settings.passwords()
    texts = h1.run(f"cat {h1.emulated.nova_conf} {h1.emulated.agent_conf}")
    assert not any(secret in texts for secret in (passwords.admin, passwords.service))
