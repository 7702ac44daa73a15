# SPDX-License-Identifier: Apache-2.0
"""Strict cache neighbourhoods: Placement counts them, so nothing that a scheduler only believes refuses a server.

Real Placement, real nova scheduler. The hosts are those of the ``cloud`` fixture: four NUMA nodes with two CPUs and an
L3 domain each. Stories that carry a letter are those of finding H3.
"""

import pytest
from nova import exception
from nova.scheduler import utils as scheduler_utils

from nova_numa_ext.scheduler import process
from placement_traits.names import NeighbourTrait
from placement_traits.offers import L3State
from tests.functional.scheduler.conftest import BE, LC
from tests.functional.scheduler.conftest import STRICT_DEVIL as DEVIL
from tests.functional.scheduler.conftest import STRICT_RABBIT as RABBIT

ALL = {"l3_0", "l3_1", "l3_2", "l3_3"}


def delete(cloud, *servers):
    for server in servers:
        cloud.placement.delete(f"/allocations/{server}")


def test_each_rabbit_of_a_request_gets_a_domain_and_the_fifth_none(cloud):
    cloud.host("h1")
    assert {domain for _, (domain,) in cloud.boot(RABBIT, count=4)} == ALL
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT)


def test_h3_a_the_retry_of_a_failed_multi_create_finds_the_empty_host(cloud):
    """``--min 5`` on four domains: nova undoes all five, so one rabbit fits."""
    cloud.host("h1")
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT, count=5)
    assert all(not cloud.domains(server) for server in cloud.last_servers)
    assert {domain for _, (domain,) in cloud.boot(RABBIT, count=4)} == ALL


def test_h3_b_what_is_deleted_is_free_at_once(cloud):
    """Autoscalers, CI, ``stack update``: no agent has to report first."""
    cloud.host("h1")
    for _ in range(3):
        cloud.boot(RABBIT, count=4)
        delete(cloud, *cloud.last_servers)
    assert {domain for _, (domain,) in cloud.boot(RABBIT, count=4)} == ALL


def lose_first_claim(monkeypatch):
    """Let another server be quicker on the host that nova tries first; return the hosts whose claim was lost."""
    lost, claim = [], scheduler_utils.claim_resources

    def claims(context, client, spec, server, request, **more):
        if not lost:
            lost.append(next(iter(request["allocations"])))
            return False
        return claim(context, client, spec, server, request, **more)

    monkeypatch.setattr(scheduler_utils, "claim_resources", claims)
    return lost


def test_h3_c_a_lost_claim_blocks_no_host_and_leaves_none_unprotected(cloud, monkeypatch):
    for name in ("h1", "h2"):
        cloud.host(name)
    lost = lose_first_claim(monkeypatch)
    placed = cloud.boot(RABBIT)
    assert len(lost) == 1
    for _ in range(7):
        placed += cloud.boot(RABBIT)
    assert {(host, domain) for host, (domain,) in placed} == {
        (host, domain) for host in ("h1", "h2") for domain in ALL
    }
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT)


def test_h3_d_a_server_on_its_alternate_is_counted_there_and_not_at_the_first_host(cloud):
    """The cell's conductor claims the alternate by itself; no scheduler is asked."""
    for name in ("h1", "h2"):
        cloud.host(name)
    [(first, _)] = cloud.boot(RABBIT)
    [server] = cloud.last_servers
    [[_, alternate]] = cloud.last_selections
    assert alternate.service_host != first
    delete(cloud, server)
    cloud.claim_alternate(server, alternate)
    assert cloud.domains(server)
    placed = [cloud.boot(RABBIT)[0] for _ in range(7)]
    hosts = [host for host, _ in placed]
    assert (hosts.count(first), hosts.count(alternate.service_host)) == (4, 3)


def test_h3_e_with_a_host_subset_every_domain_of_the_fleet_is_sold_once(cloud, nova_configuration):
    """nova's own advice for several schedulers: it draws among the best four, and does not say which."""
    nova_configuration.set("host_subset_size", 4, "filter_scheduler")
    hosts = [f"h{number}" for number in range(4)]
    for name in hosts:
        cloud.host(name)
    placed = [cloud.boot(RABBIT)[0] for _ in range(16)]
    assert len({(host, domain) for host, (domain,) in placed}) == 16
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT)


def test_of_two_schedulers_that_race_for_a_domain_one_loses_its_claim(cloud, monkeypatch):
    """Neither has seen the other's server; the second claim is refused by Placement, and nova goes to the next host."""
    cloud.host("h1")
    cloud.host("h2", used=dict.fromkeys(range(3), (2, 0)))
    raced, claim = [], scheduler_utils.claim_resources

    def claims(context, client, spec, server, request, **more):
        if not raced:
            raced.append(request)
            assert claim(context, client, spec, "9" * 8 + server[8:], request, **more)
        return claim(context, client, spec, server, request, **more)

    monkeypatch.setattr(scheduler_utils, "claim_resources", claims)
    [(host, domains)] = cloud.boot(RABBIT)
    assert (host, domains) == ("h2", ["l3_3"]), "the other scheduler's server has the first choice"


def test_rabbits_and_devils_exclude_each_other_and_sheep_live_anywhere(cloud):
    cloud.host("h1")
    [(_, [noisy])] = cloud.boot(DEVIL)
    quiet = {domain for _, (domain,) in cloud.boot(RABBIT, count=3)}
    assert quiet == ALL - {noisy}
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT)
    cloud.boot(LC)
    cloud.boot(BE)


def test_devils_go_together_so_that_rabbits_find_a_quiet_domain(cloud):
    """One devil in each domain would leave none; nova-compute spreads on a host, so hosts are chosen to pack."""
    for number in range(4):
        cloud.host(f"h{number}", used={node: (0, node) for node in range(4)})
    hosts = set()
    for _ in range(4):
        [(host, _)] = cloud.boot(DEVIL)
        hosts.add(host)
        cloud.view.refresh()
    assert len(hosts) == 1


def test_a_host_where_nova_would_bind_it_beside_a_rabbit_comes_last_and_is_not_refused(cloud):
    """The prediction may be seconds old: of two rabbits in a row nova-compute gives the second another node."""
    cloud.host("h1")
    [(_, [quiet])] = cloud.boot(RABBIT)
    cloud.host("h2", used=dict.fromkeys(range(4), (1, 1024)))
    assert cloud.boot(RABBIT)[0][0] == "h2"
    cloud.hosts.computes.pop()
    [(host, [other])] = cloud.boot(RABBIT)
    assert (host, other != quiet) == ("h1", True)


def test_what_the_agent_counts_without_a_claim_is_not_sold(cloud):
    """A bound devil of a flavor that only states its class, in three of four domains."""
    cloud.host("h1")
    one = L3State(frozenset({NeighbourTrait.DEVIL}), reserved_neighbourhood=1)
    cloud.publish("h1", state=dict.fromkeys((0, 1, 3), one))
    assert cloud.boot(RABBIT) == [("h1", ["l3_2"])]
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT)
    assert cloud.boot(DEVIL)[0][1] != ["l3_2"], "devils may share"


def test_a_class_without_units_refuses_nothing_and_remembers_nothing_as_taken(cloud):
    """H3 a, b with a flavor that only states its class: six rabbits on four domains, again and again."""
    cloud.host("h1")
    rabbit = {key: value for key, value in RABBIT.items() if "NEIGHBOURHOOD" not in key}
    for _ in range(2):
        placed = cloud.boot(rabbit, count=6)
        assert {domain for _, (domain,) in placed} == ALL
        delete(cloud, *cloud.last_servers)
    assert not process.engine().faults


def test_a_floating_strict_flavor_gets_no_host_and_one_sentence(cloud):
    cloud.host("h1")
    floating = {key: value for key, value in DEVIL.items() if key != "hw:numa_nodes"}
    with pytest.raises(exception.NoValidHost):
        cloud.boot(floating)
    [problem] = cloud.entries("filter")[-1]["problems"]
    assert problem.startswith("CUSTOM_LLC_NEIGHBOURHOOD needs hw:numa_nodes")


def test_agents_first_flavors_after(cloud):
    """Where no agent offers the class, Placement has no host; nova-scheduler does not break."""
    cloud.host("h1")
    cloud.older_agent("h1")
    with pytest.raises(exception.NoValidHost):
        cloud.boot(RABBIT)
    assert cloud.boot(LC)
