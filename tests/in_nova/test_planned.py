# SPDX-License-Identifier: Apache-2.0
"""Servers of jobs: nova carries the hint from its API to the scheduler, and keeps it for each later move."""

from nova_numa_ext.job_hint import HINT
from tests.in_nova.cloud import BE, NovaCloud
from tests.support.job_hints import sealed


class Planned(NovaCloud):
    """``h1``, ``h2`` and ``h3`` as :class:`NovaCloud` draws them."""

    def setUp(self):
        super().setUp()
        for name in ("h1", "h2", "h3"):
            self.host(name)

    def job_server(self, *hosts, count=1, state="ACTIVE", **changes):
        """Make servers as the job service does, planned on hosts; returns the one, or all of several."""
        flavor = self.flavor(BE)
        roots = [self._get_provider_uuid_by_name(host) for host in hosts]
        fields = {"project": self.api.project_id, "flavor": flavor} | changes
        server = self._build_server(flavor_id=flavor, networks="none")
        server |= {"min_count": count, "return_reservation_id": count > 1}
        body = {"server": server, "os:scheduler_hints": {HINT: sealed(*roots, **fields)}}
        made = self.api.post_server(body)
        of_request = {"reservation_id": made["reservation_id"]} if count > 1 else {}
        found = self.api.get_servers(search_opts=of_request) if of_request else [made]
        ready = [self._wait_for_state_change(each, state) for each in found]
        return ready if count > 1 else ready[0]

    def test_a_server_goes_where_it_was_planned(self):
        for host in ("h3", "h1", "h2"):
            server = self.job_server(host)
            assert self.host_of(server) == host
            told = self.explain(server)
            assert "its plan limits the server to 1 planned and 0 spare hosts" in told

    def test_a_plan_that_no_create_sees_keeps_no_server_from_a_host(self):
        """Placement's answer is cut off: of five hosts a create sees two."""
        self.flags(max_placement_results=2, group="scheduler")
        names = ("h1", "h2", "h3", "h4", "h5")
        for name in names[3:]:
            self.host(name)
        absent = 0
        for name in names:
            server = self.job_server(name)
            is_absent = "nova offers no host of the 1 of its plan" in self.explain(server)
            assert is_absent == (self.host_of(server) != name)
            absent += is_absent
        assert absent

    def test_servers_of_one_request_go_where_they_were_planned(self):
        servers = self.job_server("h2", "h3", count=4)
        assert {self.host_of(each) for each in servers} <= {"h2", "h3"}

    def test_another_project_gains_nothing_by_a_hint(self):
        server = self.job_server("h3", project="other", state="ERROR")
        assert "No valid host" in server["fault"]["message"]
        assert "did not make this: it was made for another project" in self.explain(server)

    def test_a_hint_that_a_user_makes_up_gains_nothing(self):
        server = self.boot(BE, hints={HINT: "h3"}, state="ERROR")
        assert "no key of [numa_ext]job_hint_keys opens it" in self.explain(server)

    def test_a_host_that_fails_to_build_leaves_the_server_to_a_spare_one(self):
        spare = (self._get_provider_uuid_by_name("h3"),)

        def fails(*_arguments, **_more):
            raise RuntimeError("this host cannot build")

        self.computes["h2"].driver.spawn = fails
        server = self.job_server("h2", spare=spare)
        assert self.host_of(server) == "h3"

    def test_a_cold_migration_and_a_resize_leave_the_planned_host(self):
        server = self.job_server("h1")
        self._migrate_server(server)
        assert self.host_of(server) != "h1"
        self._confirm_resize(server)
        before = self.host_of(server)
        self._resize_server(server, self.flavor(BE, vcpus=2))
        assert self.host_of(server) != before

    def test_a_live_migration_leaves_the_planned_host(self):
        self.server = self.job_server("h1")
        self.src, self.dest = self.computes["h1"], self.computes["h2"]
        self.api.put_service(self.computes["h3"].service_ref.uuid, {"status": "disabled"})
        self._live_migrate(self.server)
        assert self.host_of(self.server) == "h2"

    def test_an_evacuated_server_finds_another_host(self):
        server = self.job_server("h1")
        self.computes["h1"].stop()
        self.api.put_service(self.computes["h1"].service_ref.uuid, {"forced_down": True})
        self._evacuate_server(server)
        assert self.host_of(server) != "h1"

    def test_a_rebuild_and_an_unshelve_are_not_refused(self):
        server = self.job_server("h1")
        self._rebuild_server(server, self._create_image({})["id"])
        assert self.host_of(server) == "h1"
        self._shelve_server(server)
        self.api.put_service(self.computes["h1"].service_ref.uuid, {"status": "disabled"})
        self._unshelve_server(server)
        assert self.host_of(server) != "h1"
