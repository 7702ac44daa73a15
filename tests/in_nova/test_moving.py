# SPDX-License-Identifier: Apache-2.0
"""Moving servers: the RequestSpec is the one that nova keeps and its conductor changes for each operation."""

import pytest
from nova.tests.functional.api.client import OpenStackApiException

from placement_traits.names import NeighbourTrait, Tier
from tests.in_nova.cloud import BE, LC, RABBIT, NovaCloud


class Moving(NovaCloud):
    """``h1`` and ``h2`` as :class:`NovaCloud` draws them."""

    def setUp(self):
        super().setUp()
        self.host("h1")
        self.host("h2")

    def boot_on(self, host, extra_specs, vcpus=1):
        """Create a server on a named host; it is the one that a live migration moves."""
        self.server = self.boot(extra_specs, vcpus, host=host)
        return self.server

    def fill(self, host, servers):
        """Take the dedicated CPUs of so many nodes."""
        for _ in range(servers):
            self.boot(LC, vcpus=2, host=host)

    def test_cold_migration_claims_the_domain_of_the_new_node(self):
        server = self.boot_on("h1", LC, vcpus=2)
        self.fill("h2", 2)
        self._migrate_server(server)
        self.assert_agrees(server, "h2")
        self._confirm_resize(server)
        self.assert_agrees(server, "h2")

    def test_cold_migration_to_a_named_host_is_judged(self):
        server = self.boot_on("h1", RABBIT)
        self.publish("h2", tiers=frozenset({Tier.BE}))
        with pytest.raises(OpenStackApiException, match="NoValidHost"):
            self._migrate_server(server, host="h2")
        self.assert_agrees(server, "h1")

    def test_a_strict_rabbit_can_leave_a_host_where_more_is_reserved_than_is_free(self):
        """The agent counts a bound devil that came without a claim; h2 is full of such."""
        server = self.boot_on("h1", RABBIT)
        self.publish("h1", reserved=1)
        self.publish("h2", reserved=1)
        with pytest.raises(OpenStackApiException, match="NoValidHost"):
            self._migrate_server(server)
        self.assert_agrees(server, "h1")
        self.publish("h2")
        self._migrate_server(server)
        self.assert_agrees(server, "h2")
        self._revert_resize(server)
        self.assert_agrees(server, "h1")

    def test_a_resize_claims_what_the_new_flavor_wants_and_a_revert_gives_it_back(self):
        server = self.boot_on("h1", LC)
        before = self.claims(server["id"])
        six = self.flavor({**LC, "resources_NODE:CUSTOM_LLC_WAY": "6"}, vcpus=2)
        self._resize_server(server, six)
        node = self.assert_agrees(server, "h2")
        assert self.claims(server["id"])[f"h2:l3_{node}"] == {"CUSTOM_LLC_WAY": 6}
        self._revert_resize(server)
        assert self.claims(server["id"]) == before

    def test_a_resize_may_stay_on_the_host_where_it_is_the_only_rabbit(self):
        self.flags(allow_resize_to_same_host=True)
        server = self.boot_on("h1", RABBIT)
        for host in ("h1", "h2"):
            self.publish(host, neighbours={NeighbourTrait.RABBIT})
        self._resize_server(server, self.flavor(RABBIT, vcpus=2))
        self.assert_agrees(server, "h1")

    def test_live_migration_claims_the_domain_of_the_new_node(self):
        server = self.boot_on("h1", LC, vcpus=2)
        self.fill("h2", 1)
        self.src, self.dest = self.computes["h1"], self.computes["h2"]
        self._live_migrate(server)
        assert self.migrate_stub_ran
        self.assert_agrees(server, "h2")

    def test_live_migration_goes_where_the_tiers_are_apart(self):
        self.host("h3")
        server = self.boot_on("h1", BE)
        self.publish("h2", neighbours={NeighbourTrait.LC})
        self.src, self.dest = self.computes["h1"], self.computes["h3"]
        self._live_migrate(server)
        assert self.host_of(server) == "h3"

    def test_an_evacuated_server_gets_a_domain_of_its_own_again(self):
        server = self.boot_on("h1", LC, vcpus=2)
        self.fill("h2", 3)
        self.computes["h1"].stop()
        self.api.put_service(self.computes["h1"].service_ref.uuid, {"forced_down": True})
        self._evacuate_server(server, expected_host="h2")
        [node] = self.nodes_of(server)
        claimed = self.claims(server["id"])
        assert claimed[f"h2:l3_{node}"] == {"CUSTOM_LLC_WAY": 4}
        # Nova keeps the claim on a dead host until it is back.
        assert set(claimed) >= {"h1", "h1:rdt"}

    def test_a_rebuild_is_never_refused_and_keeps_the_claim(self):
        server = self.boot_on("h1", RABBIT)
        before = self.claims(server["id"])
        self.publish("h1", neighbours={NeighbourTrait.DEVIL})
        image = self._create_image({})
        self._rebuild_server(server, image["id"])
        assert self.claims(server["id"]) == before
        self.assert_agrees(server, "h1")

    def test_an_unshelved_server_is_placed_anew(self):
        server = self.boot_on("h1", LC, vcpus=2)
        self._shelve_server(server)
        assert self.claims(server["id"]) == {}
        self.publish("h1", neighbours={NeighbourTrait.BE})
        self._unshelve_server(server)
        self.assert_agrees(server, "h2")

    def test_a_host_that_fails_to_build_leaves_the_server_to_the_alternate(self):
        """The alternate's claim is its own best candidate, ordered although nova chose another host."""
        self.fill("h2", 1)
        driver = self.computes["h1"].driver
        driver.spawn = self._fails
        self.publish("h2", neighbours={NeighbourTrait.BE})
        server = self.boot(LC, vcpus=2)
        self.assert_agrees(server, "h2")

    @staticmethod
    def _fails(*_arguments, **_more):
        raise RuntimeError("this host cannot build")
