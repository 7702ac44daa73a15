# SPDX-License-Identifier: Apache-2.0
"""Server groups on a fabric: made by one request, mended in their own leafs, and swept when all of them failed."""

from types import SimpleNamespace

import pytest
from nova.tests.functional.api import client

from nova_numa_ext.heal.group_claims import SweepResult, sweep
from nova_numa_ext.heal.nova_servers import NovaServers
from nova_numa_ext.orchestrator.cloud.cabling import ServerCabling
from nova_numa_ext.orchestrator.cloud.servers import MICROVERSION
from nova_numa_ext.orchestrator.cloud.user import TokenCloud
from placement_traits import names
from placement_traits.errors import CapabilityMissingError
from tests.in_nova.cloud import NovaCloud
from tests.support.fabrics import fabric

QUIET = {"numa_ext:net_share": "quiet", "numa_ext:net_within": "pod"}


class Groups(NovaCloud):
    """A pod of two leafs, each with three hosts: a block of two, and one beside it."""

    def setUp(self):
        super().setUp()
        self.cabled(fabric([3, 3]))

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

    def test_a_failed_build_is_made_good_in_the_groups_own_leafs_and_a_second_group_waits(self):
        def fails(*_arguments, **_more):
            raise RuntimeError("this host cannot build")

        self.computes["l000-00"].driver.spawn = fails
        group = self.group()
        servers = self.members(group, 4)
        assert "l000-00" not in self.hosts(servers)
        assert len(self.hosts(servers)) == 4
        (amounts,) = self.held().values()
        assert [held for held in amounts.values() if names.LEAF_BLOCK in held] == [
            {names.LEAF_BLOCK: 2, names.LEAF_UPLINK: names.LEAF_UPLINK_UNITS}
        ] * 2
        assert self.swept() == [SweepResult.ALIVE]
        self.members(self.group(), 4, state="ERROR")
        assert {*self.held()} == {group}

    def test_what_a_group_held_is_swept_when_its_servers_are_gone(self):
        group = self.group()
        servers = self.members(group, 4)
        self._delete_server(servers[0])
        assert self.swept() == [SweepResult.ALIVE]
        (new,) = self.members(group, 1)
        assert self.host_of(new) in {f"l00{leaf}-0{host}" for leaf in (0, 1) for host in range(3)}
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


class SixLeafs(NovaCloud):
    """Three pods of two leafs, each with four hosts: 24 nova-computes, and a block of four on each leaf."""

    def setUp(self):
        super().setUp()
        for limit in ("instances", "cores", "ram", "server_groups", "server_group_members"):
            self.flags(**{limit: -1}, group="quota")
        self.cabled(fabric([4] * 6))

    def started(self, *counts):
        """Ask for the servers of quiet groups, and wait for none before all are asked for; hosts by rank of each."""
        flavor = self.flavor(QUIET)
        asked = []
        for count in counts:
            group = self.api.post_server_groups({"name": "train", "policy": "anti-affinity"})["id"]
            server = self._build_server(flavor_id=flavor, networks="none")
            server |= {"min_count": count, "max_count": count, "return_reservation_id": True}
            hints = {"os:scheduler_hints": {"group": group}}
            asked.append(self.api.post_server({"server": server} | hints)["reservation_id"])
        found = []
        for reservation in asked:
            made = self.api.get_servers(search_opts={"reservation_id": reservation})
            ready = [self._wait_for_state_change(each, "ACTIVE") for each in made]
            ranks = sorted(ready, key=lambda each: int(each["name"].rpartition("-")[2]))
            found.append([self.host_of(each) for each in ranks])
        return found

    @pytest.mark.long
    def test_groups_are_on_leafs_of_one_pod_in_the_order_of_ranks_and_never_share(self):
        """Design 8.4, check 6: two at once, and one that fits in a leaf."""
        first, second = self.started(8, 8)
        (small,) = self.started(4)
        leafs = [[host.partition("-")[0] for host in group] for group in (first, second, small)]
        for large in leafs[:2]:
            one, *_, other = large
            assert large == [one] * 4 + [other] * 4
            assert int(one[1:]) // 2 == int(other[1:]) // 2
        assert {*leafs[2]} == {"l005"}
        assert {*leafs[0]}.isdisjoint(leafs[1])
        assert {"l005"}.isdisjoint(leafs[0] + leafs[1])
        assert all(len({*group}) == len(group) for group in (first, second, small))
        assert len(self.fabrics.all()) == 3
