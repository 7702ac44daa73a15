# SPDX-License-Identifier: Apache-2.0
"""What nova lets the Keystone user of a host do: no more than every user, for its role is none that nova knows."""

import json
import re

from nova import context, policies, policy
from nova.tests import fixtures
from nova.tests.functional.api.client import TestOpenStackClient

from tests.in_nova.cloud import LC, NovaCloud

HOST, PROJECT, ROLE = "numa-ext-host-h1", "11111111222233334444555555555555", "numa_ext_host"

# Names of zones, what the API knows, quotas that every project begins with, limits of its own.
EVERYBODYS = {
    "os_compute_api:extensions",
    "os_compute_api:limits",
    "os_compute_api:os-availability-zone:list",
    "os_compute_api:os-floating-ip-pools",
    "os_compute_api:os-quota-sets:defaults",
}
OWN = {f"os_compute_api:os-keypairs:{what}" for what in ("index", "create", "show", "delete")}
# Nova lists flavors to every user, without a rule; these two are named by the rule about their extra specs.
ANSWERED = {
    ("GET", "/extensions"),
    ("GET", "/limits"),
    ("GET", "/os-availability-zone"),
    ("GET", "/os-keypairs"),
    ("GET", "/os-quota-sets/{tenant_id}/defaults"),
    ("GET", "/flavors/detail"),
    ("GET", "/flavors/{flavor_id}"),
}


class HostRole(NovaCloud):
    """A server of another project runs on ``h1``, drawn by :class:`.NovaCloud`, whose credentials were stolen."""

    def setUp(self):
        super().setUp()
        # As deployed; the fixture of Placement changes oslo.policy's default for all of this process.
        self.flags(enforce_new_defaults=True, group="oslo_policy")
        self.useFixture(fixtures.RealPolicyFixture())
        self.host("h1")
        server = self.boot(LC, vcpus=2)
        self.names = {"server_id": server["id"], "flavor_id": self.api.get_flavors()[0]["id"]}
        self.rules = [rule for rule in policies.list_rules() if hasattr(rule, "operations")]
        self.stolen = TestOpenStackClient(HOST, self.api.base_url, PROJECT, roles=[ROLE])
        self.stolen.microversion = "latest"

    def allowed(self, project, user):
        """Names of rules by which nova lets it do something with what is a project's and a user's."""
        host = context.RequestContext(HOST, PROJECT, roles=[ROLE], is_admin=False)
        target = {"project_id": project, "user_id": user}
        return {
            rule.name
            for rule in self.rules
            if policy.authorize(host, rule.name, target, do_raise=False)
        }

    def answers(self, method, path):
        """Ask nova's API by HTTP; tell whether it has done something.

        :param path: as nova's policies write it: names in braces, an action in brackets
        """
        path, _, action = path.partition(" (")
        path = re.sub(r"{(\w+)}", lambda found: self.names.get(found[1], "1"), path)
        body = json.dumps({action.rstrip(")"): None} if action else {})
        return self.stolen.api_request(path, method=method, body=body).ok

    def test_each_rule_and_each_request(self):
        assert self.allowed(PROJECT, HOST) == EVERYBODYS | OWN
        assert self.allowed("another", "another") == EVERYBODYS
        requests = {
            (each["method"], each["path"]) for rule in self.rules for each in rule.operations
        }
        assert len(requests) > 150
        assert {each for each in requests if self.answers(*each)} == ANSWERED
        assert self.api.get_server(self.names["server_id"])["status"] == "ACTIVE"
