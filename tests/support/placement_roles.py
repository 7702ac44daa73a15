# SPDX-License-Identifier: Apache-2.0
"""A real Placement behind Keystone's own middleware, whose tokens tests hand out by role."""

import copy
import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import fixtures
import requests
import yaml
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token
from keystonemiddleware.fixture import AuthTokenFixture
from placement import deploy, policies, policy

from emulation.placement_service import URL, PlacementInProcess, WsgiTransport
from tests.support.faults import FaultyAdapter

POLICY_FILE = Path(__file__).parents[2] / "etc/placement/policy.yaml"


def granted() -> frozenset[str]:
    """The rules of the shipped policy file."""
    return frozenset(yaml.safe_load(POLICY_FILE.read_text()))


def operations() -> list[tuple[str, str, str]]:
    """All that Placement's API can be asked for: rule, method, path with names in braces."""
    return [
        (rule.name, operation["method"], operation["path"])
        for rule in policies.list_rules()
        for operation in getattr(rule, "operations", ())
    ]


def rules_of(log: Collection[tuple[str, str]]) -> set[str]:
    """The rules by which Placement let requests pass.

    :param log: method, path with query
    """
    patterns = [
        (method, re.compile(re.sub(r"\\{[a-z_]+\\}", "[^/?]+", re.escape(path)) + r"(\?.*)?"), rule)
        for rule, method, path in operations()
    ]
    return {
        rule
        for asked, path in log
        for method, pattern, rule in patterns
        if method == asked and pattern.fullmatch(path)
    }


class PlacementWithRoles(fixtures.Fixture):
    """Placement as it is deployed: token checked by keystonemiddleware, rights by role and policy file.

    Keystone's answer about a token is the test's, unless one is to be asked.

    :ivar application: it
    :param policy_file: of Placement; None: there is none
    :param new_defaults: ``[oslo_policy]enforce_new_defaults``
    :param keystone: options of ``[keystone_authtoken]`` by which one is asked
    """

    def __init__(
        self,
        policy_file: Path | None = POLICY_FILE,
        *,
        new_defaults: bool = False,
        keystone: Mapping[str, str] | None = None,
    ):
        self._keystone = keystone
        self._options: Mapping[str, object] = {
            "policy_file": str(policy_file or "none.yaml"),
            "enforce_new_defaults": new_defaults,
        }

    def setUp(self):
        """Load the application a second time, with its real middleware."""
        super().setUp()
        self.inside = self.useFixture(PlacementInProcess())
        conf = self.inside.conf
        if self._keystone is None:
            self._tokens = self.useFixture(AuthTokenFixture())
        else:
            asks = partial(deploy.auth.filter_factory, **self._keystone)
            self.useFixture(fixtures.MockPatchObject(deploy.auth, "filter_factory", asks))
        conf.set_override("auth_strategy", "keystone", "api")
        for name, value in self._options.items():
            conf.set_override(name, value, "oslo_policy")
        policy.reset()
        policy.init(conf, True, copy.deepcopy(policies.list_rules()))
        self.application = deploy.loadapp(conf)
        self._http = requests.Session()
        self._http.mount(URL, WsgiTransport(self.application))

    def adapter(self, *roles: str) -> Adapter:
        """Return what talks to Placement as a user with these roles in a project.

        Its ``log`` holds method and path of each request.
        """
        token = f"token of {', '.join(roles)}"
        self._tokens.add_token_data(
            token, user_id="u", project_id="p", role_list=[*roles] or ["another"]
        )
        session = Session(Token(URL, token), session=self._http)
        plain = Adapter(session, service_type="placement")
        return FaultyAdapter(plain, lambda _method, _path: None)
