# SPDX-License-Identifier: Apache-2.0
"""What becomes of a decision in each mode, for a cloud of which only one host is right."""

from nova.conf import CONF

from nova_numa_ext import conf
from nova_numa_ext.scheduler import process, session
from placement_traits.names import NeighbourTrait, Tier
from tests.in_nova.cloud import BE, LC, NovaCloud

WRONG = {**BE, "numa_ext:slo_p99_us": "100"}


class Modes(NovaCloud):
    """``h1`` and ``h2`` as :class:`.NovaCloud` draws them, but ``h1`` takes no latency-critical servers.

    A server of a plain flavor is on ``h2``, so nova's own weighers prefer ``h1``.
    """

    def setUp(self):
        super().setUp()
        self.host("h1")
        self.host("h2")
        self.publish("h1", tiers=frozenset({Tier.BE}))
        self.boot({}, host="h2")

    def mode(self, name):
        """Start our part of nova-scheduler again in another mode."""
        self.flags(mode=name, group="numa_ext")
        now = process.engine()
        process.use(session.Engine(CONF, conf.read(CONF), now._view, now._journal))

    def aggregate(self, name, mode):
        """Put a host into an aggregate with a mode."""
        body = {"aggregate": {"name": f"{name} {mode}"}}
        made = self.api.post_aggregate(body)
        self.api.add_host_to_aggregate(made["id"], name)
        self.api.api_post(
            f"/os-aggregates/{made['id']}/action",
            {"set_metadata": {"metadata": {"numa_ext_mode": mode}}},
        )

    def would_refuse(self):
        """Hosts that the last decision would have refused."""
        return [host for group in self.entries()[-1]["would_refuse"] for host in group["hosts"]]

    def test_enforce_refuses(self):
        self.assert_agrees(self.boot(LC, vcpus=2), "h2")
        self.boot(LC, vcpus=2, host="h1", state="ERROR")
        self.boot(WRONG, state="ERROR")

    def test_rank_prefers_and_refuses_nothing(self):
        self.mode("rank")
        for _ in range(4):
            self.assert_agrees(self.boot(LC, vcpus=2), "h2")
        assert self.host_of(self.boot(LC, vcpus=2)) == "h1", "the better one is full"
        assert "h1" in self.would_refuse()
        self.boot(WRONG)

    def test_observe_leaves_the_choice_to_nova(self):
        self.publish("h1", neighbours={NeighbourTrait.LC})
        self.mode("observe")
        server = self.boot(BE)
        assert self.host_of(server) == "h1"
        [weighed] = self.entries("weigh")
        assert weighed["would_choose"] == "h2"
        self.publish("h1", tiers=frozenset({Tier.BE}))
        first = self.boot(LC, vcpus=2, host="h1")
        assert self.host_of(first) == "h1"
        assert self.would_refuse() == ["h1"]
        self.boot(WRONG)
        assert "would be refused" in self.explain(first)

    def test_an_aggregate_at_a_time(self):
        """``h1`` is only observed, and so is taken; enforced again, it is not."""
        self.aggregate("h1", "observe")
        assert self.host_of(self.boot(LC, vcpus=2, host="h1")) == "h1"
        self.aggregate("h2", "enforce")
        self.publish("h2", tiers=frozenset({Tier.BE}))
        assert self.host_of(self.boot(LC, vcpus=2)) == "h1"
        assert self.would_refuse() == ["h1"]
        [refused] = self.entries()[-1]["refused"]
        assert refused["hosts"] == ["h2"]
