# SPDX-License-Identifier: Apache-2.0
"""What nova-compute does to the providers of a host must leave ours right: ``h1`` as :class:`NovaCloud` draws it."""

from nova import context, objects

from tests.in_nova.cloud import LC, NovaCloud
from tests.support.filled_placement import FilledPlacement


class Providers(NovaCloud):
    """Nova's own code on one side, our reporter on the other; ``h1`` as :class:`.NovaCloud` draws it."""

    def setUp(self):
        super().setUp()
        self.host("h1")

    def everything(self):
        """The whole of Placement as one literal."""
        return FilledPlacement(self.client._adapter).everything()

    def test_ours_survives_the_periodic_update_and_a_restart_of_nova_compute(self):
        before = self.everything()
        admin = context.get_admin_context()
        self.computes["h1"].manager.update_available_resource(admin)
        assert self.everything() == before
        self.restart_compute_service("h1")
        self.computes["h1"].manager.update_available_resource(admin)
        assert self.everything() == before
        self.assert_agrees(self.boot(LC), "h1")

    def test_a_deleted_compute_service_takes_ours_along_and_the_next_report_puts_it_back(self):
        before = self.everything()
        compute = self.computes["h1"]
        compute.stop()
        self.api.api_delete(f"/os-services/{compute.service_ref.uuid}")
        assert self.everything() == {}
        del self.computes["h1"], self.compute_rp_uuids["h1"]
        self.host("h1")
        objects.HostMapping(  # what `nova-manage cell_v2 discover_hosts` does
            context.get_admin_context(), host="h1", cell_mapping=self.cell_mappings["cell1"]
        ).create()
        assert self.everything() == before
        self.assert_agrees(self.boot(LC), "h1")
