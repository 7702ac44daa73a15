# SPDX-License-Identifier: Apache-2.0
"""The credential with access rules that the operator's guide gives a host for its leases: Placement, too, takes it.

Keystone is a real one, Placement as it is deployed: token and access rules are checked by Keystone's own middleware.
"""

import re
from pathlib import Path

import pytest
import requests
from keystoneauth1 import adapter, session
from keystoneauth1.identity import v3

from emulation.placement_service import URL, WsgiTransport
from placement_traits.client import PlacementClient, PlacementError
from placement_traits.pool_reporter import PoolReporter
from tests.support.keystone import identity, keystone, of, password
from tests.support.placement_roles import PlacementWithRoles
from tests.support.pools import pool

GUIDE = Path(__file__).parents[3] / "doc/source/operator/credentials.rst"
HOST = "numa-ext-host-g1"


def guides_rules():
    """The rules for Placement as the guide words them: methods in brackets, then paths."""
    text = GUIDE.read_text()
    words = text[text.index("Rules\nof Placement") :].partition(";")[0]
    (methods,) = re.findall(r"\(([A-Z, ]+)\)", words)
    return [
        {"service": "placement", "method": method, "path": path}
        for method in methods.split(", ")
        for path in re.findall(r"``(/[^`]+)``", words)
    ]


@pytest.fixture
def cloud(tmp_path):
    """Keystone with the user of host g1, and Placement that asks it; yields what makes a credential, and its client."""
    with keystone(tmp_path) as url:
        admin = identity(url, "admin", "admin")

        def make(kind, **more):
            return admin.post(f"/{kind}s", json={kind: more}).json()[kind]["id"]

        service = make("service", type="placement", name="placement")
        make("endpoint", service_id=service, interface="public", url=URL)
        host_role = make("role", name="numa_ext_host")
        (admins,) = (r["id"] for r in admin.get("/roles").json()["roles"] if r["name"] == "admin")
        users = {}
        for name, of_project, role in (
            (HOST, "numa-ext-hosts", host_role),
            ("placement", "service", admins),
        ):
            project = make("project", name=of_project, domain_id="default")
            users[name] = make("user", name=name, domain_id="default", password=name)
            admin.put(f"/projects/{project}/users/{users[name]}/roles/{role}")
        asked = {
            "auth_type": "password",
            "auth_url": url,
            "www_authenticate_uri": url,
            "username": "placement",
            "password": "placement",
            "project_name": "service",
            "user_domain_id": "default",
            "project_domain_id": "default",
            "interface": "public",
            "service_type": "placement",
        }
        with PlacementWithRoles(keystone=asked) as placement:

            def client(rules):
                made = of(password(url, HOST, "numa-ext-hosts")).post(
                    f"/users/{users[HOST]}/application_credentials",
                    json={
                        "application_credential": {
                            "name": f"{len(rules)} rules",
                            "access_rules": rules,
                        }
                    },
                )
                found = made.json()["application_credential"]
                auth = v3.ApplicationCredential(
                    url,
                    application_credential_id=found["id"],
                    application_credential_secret=found["secret"],
                )
                http = requests.Session()
                http.mount(URL, WsgiTransport(placement.application))
                bound = session.Session(auth, session=http)
                return PlacementClient(adapter.Adapter(bound, service_type="placement"))

            yield client


@pytest.mark.long
def test_a_host_publishes_its_pool_by_the_rules_of_the_guide_and_is_bound_to_them(cloud):
    rules = guides_rules()
    assert len(rules) == 4 * 6
    bound = cloud(rules)
    assert PoolReporter(bound).sync(pool("g1")).problems == ()
    published = {"rgpu:g1", "rgpu:g1:cpu", "rgpu:g1:nic-eth1", "rgpu:g1:gpu-a"}
    listed = bound.get("/resource_providers")["resource_providers"]
    assert {each["name"] for each in listed} == published
    assert PoolReporter(bound).sync(pool("g1", gpus=("a", "b"))).problems == ()
    assert PoolReporter(bound).remove("g1").problems == ()
    for path in ("/usages?project_id=p", "/allocations/5b6ee9a5-40a4-4f4c-8f0a-97e0f4c7d6a2"):
        with pytest.raises(PlacementError, match="401"):
            bound.get(path)
    reads = [each for each in rules if each["method"] == "GET"]
    with pytest.raises(PlacementError, match="401"):
        PoolReporter(cloud(reads)).sync(pool("g1"))
