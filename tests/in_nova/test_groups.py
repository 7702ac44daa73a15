# SPDX-License-Identifier: Apache-2.0
"""Server groups on a fabric: made by one request, mended in their own leafs, and swept when all of them failed."""

from types import SimpleNamespace
from typing import Any

import pytest
from nova.tests.functional.api import client

from nova_numa_ext.heal.group_claims import SweepResult, sweep
from nova_numa_ext.heal.nova_servers import NovaServers
from nova_numa_ext.orchestrator.cloud.cabling import ServerCabling
from nova_numa_ext.orchestrator.cloud.servers import MICROVERSION
from nova_numa_ext.orchestrator.cloud.user import TokenCloud
from placement_traits import names
from placement_traits.errors import CapabilityMissingError
from tests.in_nova.cloud import FakeCloud, NovaCloud
from tests.support.fabrics import fabric

QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}


class OnFabric:
    """Server groups of a cloud on a fabric."""

    api: Any
    boot: Any
    fabrics: Any
    host_of: Any

    def group(self):
        """Make a server group; returns its uuid."""
        return self.api.post_server_groups({"name": "train", "policy": "anti-affinity"})["id"]

    def members(self, group, count, **more):
        """Make servers of a group by one request."""
        found = self.boot(QUIET, hints={"group": group}, min_count=count, max_count=count, **more)
        return found if isinstance(found, list) else [found]

    def hosts(self, servers):
        """Their hosts."""
        return {self.host_of(server) for server in servers}

    def held(self):
        """What groups hold, by consumer."""
        return {claim.consumer: claim.amounts for claim in self.fabrics.all()}

    def swept(self):
        """What becomes of each claim, with nova's API as it is."""
        servers = NovaServers(SimpleNamespace(request=self.request))
        return [found.result for found in sweep(self.fabrics, servers)]

    def request(self, url, _method, **_options):
        """Answer a GET as the compute endpoint does."""
        try:
            body = self.api.api_get(url).body
        except client.OpenStackApiNotFoundException:
            return SimpleNamespace(status_code=404)
        return SimpleNamespace(status_code=200, json=lambda: body)


class Groups(OnFabric, NovaCloud):
    """A pod of two leafs, each with three hosts: a block of two, and one beside it::

    train
    └─ p00
       ├─ l000    l000-00 l000-01 l000-02
       └─ l001    l001-00 l001-01 l001-02
    """

    def setUp(self):
        super().setUp()
        self.cabled(fabric([3, 3]))

    def test_what_a_group_held_is_swept_when_its_servers_are_gone(self):
        group = self.group()
        servers = self.members(group, 4)
        self._delete_server(servers[0])
        assert self.swept() == [SweepResult.ALIVE]
        (new,) = self.members(group, 1)
        for server in (*servers[1:], new):
            self._delete_server(server)
        assert self.swept() == [SweepResult.RELEASED]
        assert self.held() == {}

    def test_a_group_that_is_deleted_while_its_servers_run_keeps_what_it_holds(self):
        group = self.group()
        servers = self.members(group, 4)
        self.api.delete_server_group(group)
        assert self.swept() == [SweepResult.UNKNOWN]
        for server in servers:
            self._delete_server(server)
        assert {*self.held()} == {group}

    def test_tenants_see_where_their_servers_hang_and_nobody_elses(self):
        group = self.group()
        uuids = {server["id"] for server in self.members(group, 4)}
        project = self.api.project_id
        for user, asking in (("fake", project), ("admin", "of-admins")):
            cloud = self.as_user(user, asking)
            found = cloud.user_group(group)
            assert (found.project, {*found.members}) == (project, uuids)
            assert cloud.servers_of(project).keys() == uuids
            nodes = ServerCabling(self.client).of(found.members).nodes
            assert sorted(nodes) == [("l000", "p00")] * 2 + [("l001", "p00")] * 2
        stranger = self.as_user("fake", "another-project")
        assert stranger.user_group(group) is None
        with pytest.raises(CapabilityMissingError):
            stranger.servers_of(project)

    def as_user(self, user, project):
        """The cloud as a token of a reader shows it, or of an administrator."""
        roles = ["reader", *(["member", "admin"] if user == "admin" else [])]
        api = client.TestOpenStackClient(user, self.api.base_url, project_id=project, roles=roles)
        api.microversion = MICROVERSION

        def request(path, method, **_options):
            return api.api_request(path, method=method)

        adapters = dict.fromkeys(
            ("compute", "image", "network", "orchestration", "identity"),
            SimpleNamespace(request=request),
        )
        token = SimpleNamespace(project_id=project)
        return TokenCloud(token, **adapters, trustee=str, roles=())

    def test_a_member_that_moves_stays_on_the_groups_leafs(self):
        servers = self.members(self.group(), 2)
        before = self.host_of(servers[0])
        held = self.held()
        self._migrate_server(servers[0])
        assert self.host_of(servers[0]) != before
        assert self.host_of(servers[0])[:4] == before[:4]
        assert self.held() == held


class TwoPods(OnFabric, FakeCloud):
    """Nova, by itself, takes hosts of the first pod::

    train
    ├─ p00 ── l000, l001    three hosts each
    └─ p01 ── l002, l003    three hosts each
    """

    def setUp(self):
        super().setUp()
        self.cabled(fabric([3] * 4))

    def fail_once(self, host, failed):
        """Let a host's next build fail, unless one has failed somewhere before; that host is noted."""
        driver = self.computes[host].driver
        spawn = driver.spawn

        def spawned(*arguments, **more):
            if not failed:
                failed.append(host)
                raise RuntimeError("this host cannot build")
            return spawn(*arguments, **more)

        driver.spawn = spawned

    def test_a_group_stays_in_its_own_leafs_while_the_first_pod_is_free(self):
        """A build that fails and a server that is made again go where the group is, not where most is free."""
        early = self.members(self.group(), 4)
        assert {host[:4] for host in self.hosts(early)} == {"l000", "l001"}
        own = {f"l00{leaf}-0{host}" for leaf in (2, 3) for host in range(3)}
        failed: list[str] = []
        for host in own:
            self.fail_once(host, failed)
        group = self.group()
        servers = self.members(group, 4)
        assert len(failed) == 1
        assert self.hosts(servers) < own - {*failed}
        assert len(self.hosts(servers)) == 4
        held = self.held()[group]
        assert [of for of in held.values() if names.LEAF_BLOCK in of] == [
            {names.LEAF_BLOCK: 2, names.LEAF_UPLINK: names.LEAF_UPLINK_UNITS}
        ] * 2
        self.members(self.group(), 4, state="ERROR")
        for server in early:
            self._delete_server(server)
        assert sorted(self.swept()) == [SweepResult.ALIVE, SweepResult.RELEASED]
        self._delete_server(servers[0])
        (new,) = self.members(group, 1)
        assert self.hosts([*servers[1:], new]) < own
        assert len(self.hosts([*servers[1:], new])) == 4
        assert self.held() == {group: held}
