# SPDX-License-Identifier: Apache-2.0
"""Servers with leases of remote GPUs: nova's API takes the hint, and keeps it for each later move."""

import uuid

import pytest

from nova_numa_ext.policy.remote_gpu import lease_claims
from nova_numa_ext.policy.remote_gpu.lease_claims import LeaseRoute
from nova_numa_ext.policy.remote_gpu.slices import GpuSlice
from placement_traits import names, pool_reader
from placement_traits.claim_store import ClaimStore
from placement_traits.claims import emptied
from placement_traits.names import ServiceLevel
from placement_traits.pool_reporter import PoolReporter
from placement_traits.remote_gpu_request import LEASE_HINT
from tests.in_nova.cloud import BE, NovaCloud
from tests.support.pools import client, pool

REQUIRED = {**BE, "numa_ext:remote_gpu": "required", "numa_ext:remote_gpu_memory_mb": "4000"}
PROMISED = 100


class WithLeases(NovaCloud):
    """Hosts as :class:`NovaCloud` draws them, and a pool::

    h1, h2    clients in fabric "main"
    h3        no client
    g1        lends GPU "a" of 8000 MiB in "main"
    """

    def setUp(self):
        super().setUp()
        for name in ("h1", "h2", "h3"):
            self.host(name)
        for name in ("h1", "h2"):
            self.publish(name, remote_gpus=client("main"))
        PoolReporter(self.client).sync(pool("g1"))
        self.leases = ClaimStore(self.client)

    def lease(self, host, project=None):
        """Make a lease as the engine does, with the NIC of a client; returns its uuid."""
        (lends,) = pool_reader.read(self.client)
        nic = self._get_provider_uuid_by_name(names.client_provider(host))
        route = LeaseRoute(lends.gpus[0].uuid, lends.cpu, lends.nics[0].uuid, nic)
        amounts = lease_claims.amounts(GpuSlice(4000, ServiceLevel.GOLD), route, PROMISED)
        owner = project or self.api.project_id
        claim = lease_claims.lease(str(uuid.uuid4()), owner, "user", amounts)
        self.leases.write(claim)
        return claim.consumer

    def test_a_server_goes_where_its_lease_was_planned_and_leaves_it_alone(self):
        lease = self.lease("h2")
        before = self.leases.read(lease)
        server = self.boot(REQUIRED, hints={LEASE_HINT: lease})
        assert self.host_of(server) == "h2"
        assert self.leases.read(lease) == before, "nova writes the server's allocation only"
        self._delete_server(server)
        assert self.leases.read(lease) == before

    @pytest.mark.long
    def test_a_server_that_moves_stays_in_the_fabric_of_its_lease(self):
        """The pool is sold out by its own lease, and the only other client is h2."""
        server = self.boot(REQUIRED, hints={LEASE_HINT: self.lease("h1")})
        assert self.host_of(server) == "h1"
        self._migrate_server(server)
        assert self.host_of(server) == "h2"
        self._confirm_resize(server)
        self._resize_server(server, self.flavor(REQUIRED, vcpus=2))
        assert self.host_of(server) in {"h1", "h2"}
        self._revert_resize(server)
        assert self.host_of(server) == "h2"

    @pytest.mark.long
    def test_another_projects_lease_and_a_pool_that_is_sold_out_are_refused(self):
        foreign = self.lease("h1", project="other")
        for hints, why in (
            ({LEASE_HINT: foreign}, "names no lease of the server's project"),
            (None, "free in the pools that it reaches: 0"),
        ):
            server = self.boot(REQUIRED, hints=hints, state="ERROR")
            assert "No valid host" in server["fault"]["message"]
            assert any(why in each for each in self.reasons()["h1"])

    @pytest.mark.long
    def test_a_hint_whose_lease_has_gone_is_as_none(self):
        lease = self.lease("h2")
        self.leases.write(emptied(self.leases.read(lease)))
        server = self.boot(REQUIRED, hints={LEASE_HINT: lease})
        assert self.host_of(server) in {"h1", "h2"}
