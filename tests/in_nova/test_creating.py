# SPDX-License-Identifier: Apache-2.0
"""Creating servers, in every way that nova offers."""

import json
from unittest import mock

from nova.conf import CONF
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt.driver import LibvirtDriver

from nova_numa_ext import conf
from nova_numa_ext.scheduler import compat, process, session
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import NeighbourTrait, Tier
from placement_traits.snapshot import FleetSnapshot, ViewState
from tests.in_nova.cloud import BE, LC, RABBIT, NovaCloud

DEVICE = {"vendor_id": fakelibvirt.PCI_VEND_ID, "product_id": fakelibvirt.PCI_PROD_ID}
WITH_DEVICE = {**LC, "pci_passthrough:alias": "accelerator:1"}


class Creating(NovaCloud):
    """``h1`` and ``h2`` as :class:`NovaCloud` draws them."""

    def test_each_lc_gets_the_l3_domain_of_the_node_that_nova_compute_picks(self):
        self.host("h1")
        servers = [self.boot(LC, vcpus=2) for _ in range(4)]
        assert {self.assert_agrees(server, "h1") for server in servers} == {0, 1, 2, 3}

    def test_four_lc_servers_of_one_request_get_the_four_domains_of_one_host(self):
        self.host("h1")
        ten_ways = {**LC, "resources_NODE:CUSTOM_LLC_WAY": "10"}
        servers = self.boot(ten_ways, vcpus=2, min_count=4, max_count=4)
        assert {self.assert_agrees(server, "h1") for server in servers} == {0, 1, 2, 3}

    def test_lc_and_be_avoid_each_other(self):
        self.host("h1")
        self.host("h2")
        self.publish("h1", neighbours={NeighbourTrait.LC})
        self.publish("h2", neighbours={NeighbourTrait.BE})
        assert self.host_of(self.boot(BE)) == "h2"
        self.assert_agrees(self.boot(LC), "h1")

    def test_members_of_an_affinity_group_share_the_host_and_not_the_domain(self):
        self.host("h1")
        self.host("h2")
        group = self.api.post_server_groups({"name": "together", "policy": "affinity"})
        servers = [self.boot(LC, vcpus=2, hints={"group": group["id"]}) for _ in range(2)]
        host = self.host_of(servers[0])
        assert len({self.assert_agrees(server, host) for server in servers}) == 2

    def test_members_of_an_anti_affinity_group_are_apart_though_our_score_says_otherwise(self):
        self.host("h1")
        self.host("h2")
        self.publish("h2", neighbours={NeighbourTrait.BE})
        group = self.api.post_server_groups({"name": "apart", "policy": "anti-affinity"})
        first, second = (self.boot(LC, hints={"group": group["id"]}) for _ in range(2))
        self.assert_agrees(first, "h1")
        self.assert_agrees(second, "h2")
        self.boot(LC, state="ERROR", hints={"group": group["id"]})

    def test_a_named_host_is_still_judged(self):
        """``--host`` (microversion 2.74) runs the filters on that host."""
        self.host("h1")
        self.host("h2")
        self.publish("h1", tiers=frozenset({Tier.BE}))
        self.assert_agrees(self.boot(LC, host="h2"), "h2")
        self.publish("h2", tiers=frozenset({Tier.BE}))
        self.boot(LC, host="h2", state="ERROR")
        assert self.reasons() == {
            "h2": ["its agent does not accept the tier: trait CUSTOM_NUMA_EXT_TIER_LC is absent"]
        }

    def test_a_forced_host_is_not_judged_which_explain_says(self):
        """``zone:host`` skips every filter, so the claim is Placement's first candidate; amounts count all the same."""
        self.host("h1")
        self.host("h2")
        self.publish("h2", tiers=frozenset({Tier.BE}))
        server = self.boot(RABBIT, availability_zone="nova:h2")
        assert self.host_of(server) == "h2"
        assert self.entries() == []
        parts = {name.partition(":")[2][:3] for name in self.claims(server["id"])}
        assert parts == {"", "rdt", "l3_"}
        text = self.explain(server)
        assert "the host was forced" in text
        assert "h2  its agent does not accept the tier" in text
        self.publish("h2", reserved=1)
        self.boot(RABBIT, availability_zone="nova:h2", state="ERROR")

    def test_strict_rabbits_live_alone_and_what_is_deleted_is_free_at_once(self):
        self.host("h1")
        servers = self.boot(RABBIT, vcpus=2, min_count=4, max_count=4)
        assert {self.assert_agrees(server, "h1") for server in servers} == {0, 1, 2, 3}
        self.boot(RABBIT, vcpus=2, state="ERROR")
        self._delete_server(servers[2])
        self.assert_agrees(self.boot(RABBIT, vcpus=2), "h1")

    def test_strict_rabbits_one_after_the_other_share_no_node_though_nova_spreads_small_ones(self):
        """Each needs one of a node's two CPUs; nova-compute takes the emptiest node, which is the quiet one."""
        self.host("h1")
        servers = [self.boot(RABBIT) for _ in range(4)]
        assert {self.assert_agrees(server, "h1") for server in servers} == {0, 1, 2, 3}

    def test_the_trait_of_an_image_works_like_the_key_of_a_flavor(self):
        self.host("h1")
        self.host("h2")
        self.publish("h1", neighbours={NeighbourTrait.BE})
        untiered = {key: value for key, value in LC.items() if key != "numa_ext:tier"}
        image = self._create_image({"trait:CUSTOM_NUMA_EXT_TIER_LC": "required"})
        self.assert_agrees(self.boot(untiered, imageRef=image["id"]), "h2")
        self.publish("h2", neighbours={NeighbourTrait.BE}, tiers=frozenset({Tier.BE}))
        self.assert_agrees(self.boot(untiered, imageRef=image["id"]), "h1")

    def test_a_host_with_dedicated_cpus_gone_is_not_served_from_shared_ones(self):
        """Nova also offers VCPU for pinned guests (``disable_fallback_pcpu_query``); its own claim would fail there."""
        self.host("h1")
        for _ in range(4):
            self.boot(LC, vcpus=2)
        self.boot(LC, state="ERROR")

    def test_a_shared_guest_takes_no_dedicated_cpu(self):
        self.host("h1")
        server = self.boot(BE)
        assert self.claims(server["id"]) == {"h1": {"VCPU": 1, "MEMORY_MB": 512, "DISK_GB": 1}}

    def test_explain_names_the_host_where_the_second_build_succeeded(self):
        """Nova's own action of the request has both; the first one's event is a success, too."""
        self.host("h1")
        self.host("h2")
        self.publish("h2", neighbours={NeighbourTrait.BE})
        spawn, begun = LibvirtDriver.spawn, []

        def fail_first(driver, *arguments, **options):
            begun.append(driver)
            if len(begun) == 1:
                raise OSError("no disk")
            return spawn(driver, *arguments, **options)

        with mock.patch.object(LibvirtDriver, "spawn", fail_first):
            server = self.boot(LC)
        text = self.explain(server)
        assert "host     h2 (number 2 by total); tried before: h1 (number 1 by total)" in text
        assert "now      ACTIVE, on h2" in text

    def test_explain_names_the_destinations_of_moves(self):
        """A cold migration, confirmed, is a decision of its own, of another request."""
        self.host("h1")
        self.host("h2")
        server = self.boot(LC)
        source = self.host_of(server)
        self._migrate_server(server)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._confirm_resize(server)
        told = [line for line in self.explain(server).splitlines() if line[:4] == "host"]
        assert [line.split()[1] for line in told] == [source, self.host_of(server)]


class WithDevices(NovaCloud):
    """``h1`` with a PCI device near its NUMA nodes 0 and 1, counted in Placement by nova.

    ::

        h1
        ├─ h1_0000:81:00.0      CUSTOM_PCI_8086_1533 1   (nova-compute's; node 0)
        ├─ h1_0000:81:01.0      CUSTOM_PCI_8086_1533 1   (nova-compute's; node 1)
        ├─ h1:rdt
        └─ h1:l3_0 … h1:l3_3
    """

    def setUp(self):
        super().setUp()
        self.flags(
            device_spec=[json.dumps(DEVICE)],
            alias=[json.dumps({**DEVICE, "name": "accelerator"})],
            report_in_placement=True,
            group="pci",
        )
        self.flags(pci_in_placement=True, group="filter_scheduler")
        devices = fakelibvirt.HostPCIDevicesInfo(num_pci=2, num_pfs=0, num_vfs=0)
        self.host("h1", pci_info=devices)

    def device_of(self, server):
        """Slot of the device that Placement has allocated, which is also its node here."""
        [device] = [name for name in self.claims(server["id"]) if name.startswith("h1_")]
        return int(device.split(":")[2].partition(".")[0])

    def test_device_l3_domain_and_cpus_are_of_one_node(self):
        servers = [self.boot(WITH_DEVICE, vcpus=2) for _ in range(2)]
        for server in servers:
            [node] = self.nodes_of(server)
            assert self.device_of(server) == node
            assert f"h1:l3_{node}" in self.claims(server["id"])
        assert {self.device_of(server) for server in servers} == {0, 1}

    def test_a_server_without_a_device_is_predicted_as_this_release_places_it(self):
        """Nova 34 keeps it off the nodes that have devices, nova 33 does not."""
        node = self.assert_agrees(self.boot(LC), "h1")
        assert (node in {2, 3}) == (compat.RELEASE >= 34)

    def test_two_servers_of_one_request_get_a_device_and_a_domain_each(self):
        servers = self.boot(WITH_DEVICE, min_count=2, max_count=2)
        assert {(self.device_of(s), *self.nodes_of(s)) for s in servers} == {(0, 0), (1, 1)}


class Trouble(NovaCloud):
    """What happens to a request when we fail or know nothing: ``h1`` as :class:`NovaCloud` draws it."""

    def configure(self, view):
        """Start our part of nova-scheduler anew, with nova's flags of now."""
        process.use(session.Engine(CONF, conf.read(CONF), view, process.engine()._journal))

    def test_a_fault_of_ours_fails_no_request_and_is_counted_logged_and_noted(self):
        self.host("h1")
        with mock.patch.object(session, "decide", side_effect=ZeroDivisionError("ours")):
            server = self.boot(LC)
        assert self.host_of(server) == "h1"
        assert process.engine().faults["filter"] == 1
        [fault] = self.entries("fault")
        assert (fault["server"], fault["error"]) == (server["id"], "ZeroDivisionError: ours")
        assert fault["request"].startswith("req-")
        assert f"NumaExt filter failed for request {fault['request']}" in self.stdlog.logger.output

    def test_a_fault_may_be_configured_to_refuse(self):
        self.host("h1")
        self.flags(on_error="refuse", group="numa_ext")
        self.configure(process.engine()._view)
        with mock.patch.object(session, "decide", side_effect=ZeroDivisionError("ours")):
            self.boot(LC, state="ERROR")
            assert self.host_of(self.boot({})) == "h1"

    def test_a_view_that_knows_nothing_is_neutral_or_refuses_as_configured(self):
        self.host("h1")
        empty = mock.Mock(snapshot=lambda: FleetSnapshot(FleetArrays.of(()), 0.0, ViewState.EMPTY))
        self.configure(empty)
        assert self.host_of(self.boot(LC)) == "h1"
        self.flags(on_stale="refuse", group="numa_ext")
        self.configure(empty)
        self.boot(LC, state="ERROR")
        assert self.host_of(self.boot({})) == "h1"
