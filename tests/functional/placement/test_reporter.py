# SPDX-License-Identifier: Apache-2.0
"""The reporter against the real Placement: from any state to the wanted tree, whatever happens on the way."""

import contextlib
import dataclasses
import itertools
import json
import logging
import random
import threading
import uuid

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from keystoneauth1 import adapter, session, token_endpoint

from emulation.hosts import four_nodes
from emulation.placement_service import PlacementInProcess
from placement_traits import names
from placement_traits.client import PlacementClient, PlacementError, RetrySettings
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.known_providers import RootMissingError, child_uuid
from placement_traits.names import NeighbourTrait, PackingTrait, TierTrait
from placement_traits.offers import L3State, TreeSettings
from placement_traits.reader import read_tree
from placement_traits.reporter import Reporter
from placement_traits.tree import desired_tree
from placement_traits.view import FleetView
from tests.support.faults import FaultyAdapter, answer, every, lose_answer, lose_request, refuse
from tests.support.filled_placement import FilledPlacement, as_literal
from tests.support.hosts import SETTINGS, hosts

TREE = desired_tree("h1", four_nodes(), SETTINGS)


def test_the_first_run_makes_the_whole_tree(one_compute):
    """F-000-05, F-004-46: nodes, L3 domains, RDT and GPUs with traits and inventories, in a real Placement."""
    report = Reporter(one_compute.client).sync(TREE)
    assert one_compute.everything() == as_literal(TREE)
    assert report.problems == ()
    assert report.root_uuid == one_compute.root


def test_the_second_run_writes_nothing_and_asks_once(reported_compute):
    before = reported_compute.everything()
    report = reported_compute.reporter.sync(TREE)
    assert (report.writes, report.changes, report.requests) == (0, (), 1)
    assert reported_compute.everything() == before


def test_a_restarted_agent_reads_but_writes_nothing(reported_compute):
    report = Reporter(reported_compute.connect()).sync(TREE)
    assert (report.writes, report.changes) == (0, ())


def test_only_what_differs_is_written(reported_compute):
    state = {2: L3State(frozenset({NeighbourTrait.LC}), 1500)}
    tree = desired_tree("h1", four_nodes(), SETTINGS, state)
    report = reported_compute.reporter.sync(tree)
    assert [(c.provider, c.what, c.detail) for c in report.changes] == [
        ("h1:l3_2", "traits", "+CUSTOM_NUMA_EXT_HAS_LC"),
        ("h1:l3_2", "inventories", "~CUSTOM_MEMORY_BANDWIDTH_MBPS.reserved 0->1500"),
    ]
    assert reported_compute.everything() == as_literal(tree)


def test_a_restarted_agent_leaves_what_is_held_back_until_it_has_measured(reported_compute):
    """Else each restart puts on sale what undeclared traffic uses."""
    held = desired_tree("h1", four_nodes(), SETTINGS, {2: L3State(frozenset(), 1500)})
    reported_compute.reporter.sync(held)
    unknown = {l3: L3State(frozenset(), None) for l3 in range(4)}
    restarted = Reporter(reported_compute.connect())
    report = restarted.sync(desired_tree("h1", four_nodes(), SETTINGS, unknown))
    assert (report.writes, report.changes) == (0, ())
    assert reported_compute.everything() == as_literal(held)
    restarted.sync(TREE)
    assert reported_compute.everything() == as_literal(TREE), "measured: nothing"


def test_a_host_without_rdt_makes_our_resource_classes_known_too(one_compute):
    """Else nova breaks on a flavor that asks for them while no host in the cloud has any."""
    asked = f"/allocation_candidates?resources={names.RDT_CLOS}:1"
    with pytest.raises(PlacementError, match="Invalid resource class"):
        one_compute.client.get(asked)
    host = four_nodes(rdt=None, gpus=(), gpu_links=())
    Reporter(one_compute.client).sync(desired_tree("h1", host, SETTINGS))
    assert one_compute.client.get(asked)["allocation_requests"] == []
    there = one_compute.client.get("/resource_classes")["resource_classes"]
    assert {c["name"] for c in there} >= set(names.RESOURCE_CLASSES)


def test_what_is_gone_is_removed(reported_compute):
    """F-000-05: GPUs that are pulled out go with their providers."""
    host = four_nodes(gpus=(), gpu_links=(), rdt=None)
    tree = desired_tree("h1", host, SETTINGS)
    report = reported_compute.reporter.sync(tree)
    assert reported_compute.everything() == as_literal(tree)
    assert {c.provider for c in report.changes if c.what == "deleted"} == {
        "h1:rdt",
        "h1:gpu-0000:05:00.0",
        "h1:gpu-0000:85:00.0",
    }


def test_what_belongs_to_others_is_left_alone(shared_compute):
    before = shared_compute.everything()
    tree = desired_tree("h1", four_nodes(rdt=None, gpus=(), gpu_links=()), SETTINGS)
    assert shared_compute.reporter.sync(tree).problems == ()
    after = shared_compute.everything()
    assert after["h1_0000:05:00.0"] == before["h1_0000:05:00.0"]
    assert after["h1:licences"] == before["h1:licences"]
    assert after["h1"][1] >= {"CUSTOM_SITE_RACK_7", "HW_CPU_X86_AVX2"}
    assert after["h1"][2] == before["h1"][2]
    assert "CUSTOM_SITE_NOTE" in after["h1:l3_0"][1]
    ours = {names.MEMORY_BANDWIDTH_MBPS, names.LLC_NEIGHBOURHOOD, names.PROBE}
    assert set(after["h1:l3_0"][2]) == {"CUSTOM_SITE_TOKENS", *ours}


def test_a_root_that_nova_has_not_made_is_not_made_by_us(empty_cloud):
    with pytest.raises(RootMissingError, match="no provider h1; it appears when nova-compute"):
        Reporter(empty_cloud.client).sync(TREE)
    assert empty_cloud.everything() == {}


def test_a_name_that_is_a_child_elsewhere_is_not_a_compute_node(one_compute):
    one_compute.child(one_compute.root, "h2")
    with pytest.raises(RootMissingError, match="not the root"):
        Reporter(one_compute.client).sync(dataclasses.replace(TREE, root="h2"))


def test_a_compute_service_deleted_and_made_again_gets_ours_again(reported_compute):
    cloud = reported_compute
    for provider in cloud.client.get(f"/resource_providers?in_tree={cloud.root}")[
        "resource_providers"
    ]:
        if provider["uuid"] != cloud.root:
            cloud.client.delete(f"/resource_providers/{provider['uuid']}")
    cloud.client.delete(f"/resource_providers/{cloud.root}")
    with pytest.raises(RootMissingError):
        cloud.reporter.sync(TREE)
    new_root = cloud.compute("h1")
    assert cloud.reporter.sync(TREE).root_uuid == new_root
    assert cloud.everything() == as_literal(TREE)


def test_a_child_that_a_crash_left_without_traits_is_known_as_ours(one_compute):
    body = {
        "name": "h1:rdt",
        "uuid": child_uuid(one_compute.root, "h1:rdt"),
        "parent_provider_uuid": one_compute.root,
    }
    one_compute.client.post("/resource_providers", body)
    assert Reporter(one_compute.client).sync(TREE).problems == ()
    assert one_compute.everything() == as_literal(TREE)


def test_a_strangers_provider_with_our_name_is_reported_and_the_rest_goes_on(one_compute):
    one_compute.child(one_compute.root, "h1:rdt", "CUSTOM_SITE_NOTE")
    report = Reporter(one_compute.client).sync(TREE)
    assert len(report.problems) == 1
    assert "h1:rdt" in report.problems[0]
    assert "is not ours" in report.problems[0]
    rest = as_literal(TREE)
    rest["h1:rdt"] = ("h1", frozenset({"CUSTOM_SITE_NOTE"}), {})
    assert one_compute.everything() == rest


def test_a_name_taken_elsewhere_in_the_cloud_is_reported(one_compute):
    other = one_compute.compute("other")
    one_compute.child(other, "h1:l3_1")
    report = Reporter(one_compute.client).sync(TREE)
    assert report.problems == (
        "Provider h1:l3_1 cannot be created: the name is taken outside this host's tree.",
    )
    assert one_compute.everything()["h1:l3_1"][0] == "other"


def test_resources_that_servers_hold_are_closed_then_removed(reported_compute):
    cloud = reported_compute
    server = str(uuid.uuid4())
    cloud.claim(
        server,
        allocations={
            cloud.uuid("h1:l3_0"): {names.LLC_WAY: 4, names.MEMORY_BANDWIDTH_MBPS: 100},
            cloud.uuid("h1:rdt"): {names.RDT_CLOS: 1},
        },
    )
    tree = desired_tree("h1", four_nodes(rdt=None), SETTINGS)
    report = cloud.reporter.sync(tree)
    assert len(report.problems) == 3  # the ways; the provider of classes, and its inventory
    shown = cloud.everything()
    assert shown["h1:l3_0"][2][names.LLC_WAY] == (13, 13, 1, 13)
    assert shown["h1:rdt"][2][names.RDT_CLOS] == (6, 6, 1, 1)
    assert names.LLC_WAY not in shown["h1:l3_1"][2]
    again = cloud.reporter.sync(tree)
    assert (again.writes, again.problems) == (0, report.problems)

    cloud.client.delete(f"/allocations/{server}")
    assert cloud.reporter.sync(tree).problems == ()
    assert cloud.everything() == as_literal(tree)


def test_an_inventory_may_shrink_below_what_is_held(reported_compute):
    cloud = reported_compute
    cloud.claim(str(uuid.uuid4()), allocations={cloud.uuid("h1:l3_0"): {names.LLC_WAY: 10}})
    tree = desired_tree("h1", four_nodes(), dataclasses.replace(SETTINGS, min_be_ways=8))
    assert cloud.reporter.sync(tree).problems == ()
    assert cloud.everything() == as_literal(tree)


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.long)])
def test_many_writers_at_once_lose_nothing(reported_compute, count):
    """Threads add a trait of their own to the root and to h1:l3_0 while our tree changes under them."""
    cloud = reported_compute
    targets = [cloud.root, cloud.uuid("h1:l3_0")]
    start = threading.Barrier(count + 1)
    failures = []

    def write(number):
        client = cloud.connect()
        client.put(f"/traits/CUSTOM_SITE_{number}")
        start.wait()
        for target in targets:
            path = f"/resource_providers/{target}/traits"
            for _ in range(500):
                there = client.get(path)
                there["traits"].append(f"CUSTOM_SITE_{number}")
                answer = cloud.adapter.request(
                    path,
                    "PUT",
                    json=there,
                    headers={"OpenStack-API-Version": "placement 1.39"},
                    raise_exc=False,
                )
                if answer.status_code == 200:
                    break
            else:
                failures.append(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(count)]
    for writer in writers:
        writer.start()
    start.wait()
    everything = frozenset(NeighbourTrait)
    for i in range(6):
        state = {n: L3State(everything if i % 2 else frozenset(), 100 * i) for n in range(4)}
        tree = desired_tree(
            "h1",
            four_nodes(),
            TreeSettings(list(PackingTrait)[i % 2]),
            state,
        )
        cloud.reporter.sync(tree)
    for writer in writers:
        writer.join(60)
    assert not failures
    assert cloud.reporter.sync(tree).problems == ()
    site = {f"CUSTOM_SITE_{number}" for number in range(count)}
    shown = cloud.everything()
    assert shown["h1"][1] == tree.root_traits | site | {"HW_CPU_X86_AVX2"}
    assert shown["h1:l3_0"][1] == tree.child("h1:l3_0").traits | site


@pytest.mark.parametrize("count", [10, pytest.param(50, marks=pytest.mark.long)])
def test_many_reporters_of_one_host_agree(one_compute, count):
    """More agents than there should ever be: all at once, from nothing."""
    small = dataclasses.replace(TREE, children=TREE.children[-2:])
    start = threading.Barrier(count)
    failures = []

    def report():
        reporter = Reporter(one_compute.connect())
        start.wait()
        try:
            reporter.sync(small)
        except Exception as error:
            failures.append(error)
            raise

    agents = [threading.Thread(target=report) for _ in range(count)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join(120)
    assert not failures
    last = Reporter(one_compute.client).sync(small)
    assert last.problems == ()
    assert one_compute.everything() == as_literal(small)


@pytest.mark.parametrize(
    "fault", [refuse(503), refuse(500), refuse(429), lose_request, lose_answer]
)
def test_passing_trouble_at_any_request_is_survived(empty_cloud, fault):
    """Every single request of a first run fails once, in the worst way its kind allows."""
    root = empty_cloud.compute("h1")
    faulty = FaultyAdapter(empty_cloud.adapter, every(itertools.cycle([fault, None])))
    report = Reporter(empty_cloud.connect(faulty)).sync(TREE)
    assert (report.root_uuid, report.problems) == (root, ())
    assert empty_cloud.everything() == as_literal(TREE)


def test_answers_to_removals_may_get_lost(reported_compute):
    """The provider is gone when the request is sent again: that is what was wanted."""
    faulty = FaultyAdapter(
        reported_compute.adapter,
        lambda method, _url: next(lost, None) if method == "DELETE" else None,
    )
    lost = itertools.cycle([lose_answer, None])
    tree = desired_tree("h1", four_nodes(rdt=None, gpus=(), gpu_links=()), SETTINGS)
    assert Reporter(reported_compute.connect(faulty)).sync(tree).problems == ()
    assert reported_compute.everything() == as_literal(tree)


def test_placement_down_is_said_clearly_and_caught_up_later(one_compute):
    down = threading.Event()
    down.set()
    faulty = FaultyAdapter(
        one_compute.adapter, lambda _m, _u: lose_request if down.is_set() else None
    )
    reporter = Reporter(one_compute.connect(faulty, attempts=3))
    with pytest.raises(
        ServiceUnavailableError, match=r"did not answer GET .* in 3 tries: .*no route"
    ):
        reporter.sync(TREE)
    down.clear()
    assert reporter.sync(TREE).problems == ()
    assert one_compute.everything() == as_literal(TREE)


@pytest.mark.parametrize("stop_after", [3, 11, 27, 40])
def test_a_placement_that_restarts_in_the_middle_is_caught_up(one_compute, stop_after):
    faults = itertools.chain([None] * stop_after, [lose_request] * 3)
    faulty = FaultyAdapter(one_compute.adapter, every(faults))
    reporter = Reporter(one_compute.connect(faulty, attempts=3))
    with pytest.raises(ServiceUnavailableError):
        reporter.sync(TREE)
    assert reporter.sync(TREE).problems == ()
    assert one_compute.everything() == as_literal(TREE)


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("<html>\r\n<p>Sign in</p>", (0, 1, 11, 30)),
        *[(text, (11,)) for text in ("", "null", "{}", "[" * 10**5)],
    ],
)
def test_answers_of_another_server_are_one_sentence_and_caught_up(empty_cloud, text, stops):
    """A proxy in between answers 200 with a page of its own, to a request that never arrives."""
    for stop_after in stops:
        name = f"h{stop_after}"
        tree = desired_tree(name, four_nodes(), SETTINGS)
        empty_cloud.compute(name)
        faults = itertools.chain([None] * stop_after, [lambda _send: answer(200, text)])
        reporter = Reporter(empty_cloud.connect(FaultyAdapter(empty_cloud.adapter, every(faults))))
        with contextlib.suppress(NumaExtError):
            reporter.sync(tree)
        assert reporter.sync(tree).problems == ()
        assert read_tree(empty_cloud.client, name) == tree
    faulty = FaultyAdapter(empty_cloud.adapter, lambda _m, _u: lambda _send: answer(200, text))
    with pytest.raises(ServiceUnavailableError) as caught:
        Reporter(empty_cloud.connect(faulty)).sync(TREE)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("member", "value", "children"),
    [
        ("resource_providers", [7], TREE.children),
        ("traits", None, TREE.children),
        ("inventories", {"VCPU": {"total": "8"}}, TREE.children),
        ("usages", [], ()),
    ],
)
def test_answers_with_wrong_inner_parts_are_one_sentence_and_caught_up(
    reported_compute, member, value, children
):
    """What was read before it is not lost, and what was not read is read again."""
    wrong = {member: value}

    def spoil(send):
        found = send()
        if found.content and member in found.json():
            return answer(200, json.dumps(found.json() | wrong))
        return found

    faulty = FaultyAdapter(reported_compute.adapter, lambda _method, _path: spoil)
    reporter = Reporter(reported_compute.connect(faulty))
    with pytest.raises(ServiceUnavailableError, match=f"has {member} of another form") as caught:
        reporter.sync(dataclasses.replace(TREE, children=children))
    assert str(caught.value).isprintable()
    wrong.clear()
    assert reporter.sync(TREE).problems == ()
    assert reported_compute.everything() == as_literal(TREE)


def test_a_token_that_expires_is_renewed_by_the_session(one_compute):
    class ShortLived(token_endpoint.Token):
        """A token that Placement does not accept until it is renewed."""

        renewed = 0

        def get_headers(self, session):
            return super().get_headers(session) if self.renewed else {"X-Expired": "yes"}

        def invalidate(self):
            self.renewed += 1
            return True

    auth = ShortLived("http://placement.test", "admin")
    old = one_compute.adapter.session.session
    renewing = adapter.Adapter(session.Session(auth, session=old), service_type="placement")
    assert Reporter(one_compute.connect(renewing)).sync(TREE).problems == ()
    assert auth.renewed == 1
    assert one_compute.everything() == as_literal(TREE)


def test_a_trait_that_was_deleted_meanwhile_is_made_again(reported_compute):
    cloud = reported_compute
    busy = desired_tree("h1", four_nodes(), SETTINGS, {0: L3State(frozenset({NeighbourTrait.LC}))})
    cloud.reporter.sync(busy)
    cloud.reporter.sync(TREE)
    cloud.client.delete(f"/traits/{NeighbourTrait.LC}")
    assert "could not be written" in cloud.reporter.sync(busy).problems[0]
    assert cloud.reporter.sync(busy).problems == ()
    assert cloud.everything() == as_literal(busy)


def _spoil(cloud, root, data):
    """Change something under the root as nobody should: any start state."""
    providers = cloud.client.get(f"/resource_providers?in_tree={root}")["resource_providers"]
    for _ in range(data.draw(st.integers(0, 4), label="changes")):
        victim = data.draw(st.sampled_from(providers), label="provider")["uuid"]
        kind = data.draw(st.sampled_from(["delete", "traits", "inventories"]), label="kind")
        if kind == "delete" and victim != root:
            cloud.client.delete(f"/resource_providers/{victim}")
            providers = [provider for provider in providers if provider["uuid"] != victim]
        elif kind == "traits":
            chosen = st.sets(st.sampled_from([names.OWNER, *names.NeighbourTrait, names.GPU]))
            cloud.traits(victim, *data.draw(chosen, label="traits"))
        elif victim != root:
            totals = st.dictionaries(st.sampled_from(names.RESOURCE_CLASSES), st.integers(1, 99))
            cloud.inventories(victim, **data.draw(totals, label="totals"))


@pytest.fixture(scope="module")
def lasting_cloud():
    """One Placement for all examples; each example takes a compute node of its own."""
    with PlacementInProcess() as placement:
        yield FilledPlacement(placement.adapter), itertools.count()


def from_many(states):
    """So many random states and trees."""
    return settings(
        max_examples=states,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
        suppress_health_check=[HealthCheck.too_slow],
    )


@from_many(5)
@given(before=hosts(), after=hosts(), data=st.data())
def test_the_reporter_converges_from_any_state_to_any_tree(lasting_cloud, before, after, data):
    converge(lasting_cloud, before, after, data)


@pytest.mark.long
@from_many(60)
@given(before=hosts(), after=hosts(), data=st.data())
def test_the_reporter_converges_from_many_states(lasting_cloud, before, after, data):
    converge(lasting_cloud, before, after, data)


def converge(lasting_cloud, before, after, data):
    cloud, numbers = lasting_cloud
    name = f"n{next(numbers)}"
    root = cloud.compute(name)
    Reporter(cloud.client).sync(desired_tree(name, *before))
    _spoil(cloud, root, data)
    seed = data.draw(st.integers(0, 2**32), label="seed of faults")
    chance = random.Random(seed)
    faults = [*[None] * 7, refuse(503), lose_request, lose_answer]
    faulty = FaultyAdapter(cloud.adapter, lambda _m, _u: chance.choice(faults))
    reporter = Reporter(cloud.connect(faulty, attempts=40))
    wanted = desired_tree(name, *after)
    reporter.sync(wanted)
    assert reporter.sync(wanted).problems == ()
    assert read_tree(cloud.client, name) == wanted
    assert Reporter(cloud.client).sync(wanted).writes == 0


def test_retries_of_a_crowd_spread_out(empty_cloud, monkeypatch):
    """keystoneauth1 pauses as long for everybody: each request brings a length of its own."""
    slept = []
    monkeypatch.setattr("keystoneauth1.session.time.sleep", slept.append)
    for chance in (0.5, 0.999):
        client = PlacementClient(
            FaultyAdapter(empty_cloud.adapter, lambda _m, _p: lose_request),
            RetrySettings(attempts=5, first_s=0.5, longest_s=3.0),
            random=lambda chance=chance: chance,
        )
        with pytest.raises(ServiceUnavailableError):
            client.get("/resource_providers")
    assert slept == [1.0] * 4 + [pytest.approx(1.998)] * 4


def test_a_lost_race_is_tried_again_after_a_growing_random_pause():
    slept = []
    chances = iter([0.0, 0.5, 0.999, 0.5])
    client = PlacementClient(
        None,
        RetrySettings(first_s=1.0, longest_s=3.0),
        sleep=slept.append,
        random=lambda: next(chances),
    )
    for attempt in range(4):
        client.pause(attempt)
    assert slept == [0.0, 1.0, pytest.approx(2.997), 1.5]


def test_the_log_says_why_it_starts_over(reported_compute, caplog):
    caplog.set_level(logging.INFO)
    gone = child_uuid(reported_compute.root, "h1:l3_3")
    deleted = []

    def delete_once(_method, url):
        if gone in url and not deleted:
            deleted.append(url)
            reported_compute.client.delete(f"/resource_providers/{gone}")

    faulty = FaultyAdapter(reported_compute.adapter, delete_once)
    assert Reporter(reported_compute.connect(faulty)).sync(TREE).problems == ()
    assert reported_compute.everything() == as_literal(TREE)
    assert [r.message for r in caplog.records if "Starting over" in r.message]


def test_tiers_are_withdrawn_and_put_back(shared_compute):
    """Servers there keep what they hold; what is not ours stays."""
    before = shared_compute.everything()
    report = Reporter(shared_compute.connect()).withdraw_tiers("h1")
    assert report.problems == ()
    after = shared_compute.everything()
    parent, traits, inventories = before["h1"]
    assert after.pop("h1") == (parent, traits - frozenset(TierTrait), inventories)
    before.pop("h1")
    assert after == before
    asked = "/allocation_candidates?resources=MEMORY_MB:1&required=CUSTOM_NUMA_EXT_TIER_LC"
    assert shared_compute.client.get(asked)["allocation_requests"] == []
    assert Reporter(shared_compute.connect()).withdraw_tiers("h1").writes == 0
    shared_compute.reporter.sync(TREE)
    assert len(shared_compute.client.get(asked)["allocation_requests"]) == 1


def test_views_notice_at_once_that_traits_of_a_root_have_changed(reported_compute):
    """They compare our children: a root changes with every server, of whatever kind."""
    view = FleetView(reported_compute.adapter, background=False)

    def tiers():
        view.refresh()
        return view.snapshot().host(reported_compute.root).traits & frozenset(TierTrait)

    assert tiers() == frozenset(TierTrait)
    Reporter(reported_compute.connect()).withdraw_tiers("h1")
    assert tiers() == frozenset()
    reported_compute.reporter.sync(TREE)
    assert tiers() == frozenset(TierTrait)
    assert view.stats.full_reads == 1


def test_tiers_are_withdrawn_beside_other_writers(reported_compute):
    """A generation that is old by the time of the write is read again, of the root and of the child."""
    taken = []

    def disturbed(method, path):
        if method == "PUT" and path not in taken:
            taken.append(path)
            uuid_ = path.split("/")[2]
            reported_compute.traits(uuid_, f"CUSTOM_SITE_{len(taken)}")

    adapter_ = FaultyAdapter(reported_compute.adapter, disturbed)
    report = Reporter(reported_compute.connect(adapter_)).withdraw_tiers("h1")
    assert report.problems == ()
    assert [path.rpartition("/")[2] for path in taken] == ["traits", "inventories"]
    _, traits, _ = reported_compute.everything()["h1"]
    assert "CUSTOM_SITE_1" in traits
    assert not traits & frozenset(TierTrait)


def test_nothing_is_withdrawn_of_a_host_that_placement_does_not_know(empty_cloud):
    with pytest.raises(RootMissingError):
        Reporter(empty_cloud.client).withdraw_tiers("h1")
