# SPDX-License-Identifier: Apache-2.0
"""What holds for every decision, over random fleets: on nova's HostStates, without Placement."""

from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nova.conf import CONF
from nova.scheduler import host_manager

from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.policy.numa import requirements
from nova_numa_ext.scheduler import process, session
from nova_numa_ext.scheduler.decision import parse_spec
from placement_traits.fleet import HostView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import NeighbourTrait, RdtTrait, TierTrait
from placement_traits.snapshot import FleetSnapshot, ViewState
from tests.functional.scheduler.conftest import BE, LC, compute_node, request_spec
from tests.support.fleet import domain, hosts

FLAVORS = (
    LC,
    BE,
    {**LC, "numa_ext:interference_class": "rabbit"},
    {**LC, "numa_ext:interference_class": "devil"},
    {**BE, "numa_ext:remote_memory": "sensitive"},
    {**BE, "hw:numa_nodes": "1", "numa_ext:interference_class": "rabbit"},
)
HAS_LC = NeighbourTrait.LC
TRAITS = [TierTrait.LC, TierTrait.BE, RdtTrait.L3_CAT]


class Fleet:
    """A view that is what the test says."""

    def __init__(self, views=(), state=ViewState.FRESH):
        self.shown = FleetSnapshot(FleetArrays.of(views), 1.0, state)

    def snapshot(self):
        return self.shown


def state_of(view, used=None):
    """A HostState of the host, with one candidate for each of its L3 domains."""
    state = host_manager.HostState(view.name, view.name, "cell")
    state.update(compute=compute_node(view.name, used=used), aggregates=[], inst_dict={})
    state.uuid = view.root_uuid
    state.allocation_candidates = [
        {
            "allocations": {
                view.root_uuid: {"resources": {"PCPU": 1}},
                each.uuid: {"resources": {"CUSTOM_LLC_WAY": 4}},
            },
            "mappings": {"": [view.root_uuid], "_NODE": [each.uuid]},
        }
        for each in view.l3
    ]
    return state


@st.composite
def fleets(draw):
    """Up to four hosts in any state, some without an agent, with random use of their NUMA nodes."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        shape = draw(hosts())
        traits = draw(st.frozensets(st.sampled_from(TRAITS), min_size=1))
        view = HostView(f"root{number}", f"h{number}", traits, shape.rdt, shape.l3)
        use = st.tuples(st.integers(0, 2), st.sampled_from([0, 1024, 2048]))
        used = {node: draw(use) for node in range(4)}
        found.append((view, used, draw(st.booleans()) or number == 0))
    return found


def decide(views, states, flavor):
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet(views), None))
    return process.engine().filter(states, request_spec(flavor))


def asking(questions):
    """So many random fleets and flavors."""
    return settings(
        max_examples=questions,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@asking(50)
@given(fleets(), st.sampled_from(FLAVORS))
def test_no_accepted_host_violates_a_requirement(nova_configuration, fleet, flavor):
    look_at_accepted(fleet, flavor)


@pytest.mark.long
@asking(1000)
@given(fleets(), st.sampled_from(FLAVORS))
def test_no_accepted_host_of_many_fleets_violates_a_requirement(nova_configuration, fleet, flavor):
    look_at_accepted(fleet, flavor)


def look_at_accepted(fleet, flavor):
    views = [view for view, _, known in fleet if known]
    states = [state_of(view, used) for view, used, _ in fleet]
    passed = decide(views, states, flavor)
    request = parse_spec(request_spec(flavor)).request
    by_root = {view.root_uuid: view for view in views}
    for state in passed:
        view = by_root[state.uuid]
        assert requirements.capabilities(request, view) == ()
        claimed = [each for raw in state.allocation_candidates for each in raw["allocations"]]
        assert sorted(claimed) == sorted(
            [*[each.uuid for each in view.l3], *[state.uuid] * len(view.l3)]
        )


@asking(35)
@given(fleets(), st.sampled_from(FLAVORS))
def test_the_same_question_gets_the_same_answer(nova_configuration, fleet, flavor):
    ask_twice(fleet, flavor)


@pytest.mark.long
@asking(500)
@given(fleets(), st.sampled_from(FLAVORS))
def test_the_same_questions_about_many_fleets_get_the_same_answers(
    nova_configuration, fleet, flavor
):
    ask_twice(fleet, flavor)


def ask_twice(fleet, flavor):
    views = [view for view, _, known in fleet if known]

    def answer(order):
        states = [state_of(view, used) for view, used, _ in fleet]
        for state in states:
            state.allocation_candidates = order(state.allocation_candidates)
        passed = decide(views, states, flavor)
        return {state.uuid: state.allocation_candidates for state in passed}

    assert answer(list) == answer(lambda candidates: candidates[::-1])


@pytest.mark.parametrize(("answer", "passes"), [("neutral", True), ("refuse", False)])
@pytest.mark.parametrize("state", [ViewState.STALE, ViewState.EMPTY])
def test_a_stale_view_gets_the_configured_answer(nova_configuration, state, answer, passes):
    view = HostView("root", "h1", frozenset(), None, (domain(0),))
    process.use(session.Engine(CONF, SchedulerOptions(on_stale=answer), Fleet([view], state), None))
    states = [state_of(view)]
    assert process.engine().filter(states, request_spec(LC)) == (states if passes else [])
    assert process.engine().filter(states, request_spec({})) == states
    without_tier = {"numa_ext:interference_class": "devil"}
    assert process.engine().filter(states, request_spec(without_tier)) == states


def test_an_aggregate_changes_the_weight_of_a_term_for_its_hosts(nova_configuration):
    lonely = HostView("root1", "h1", frozenset(TRAITS), None, (domain(0),))
    shared = HostView("root2", "h2", frozenset(TRAITS), None, (domain(0, neighbours=[HAS_LC]),))
    states = [state_of(lonely), state_of(shared)]
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet([lonely, shared]), None))

    def scores():
        spec = request_spec(BE)
        process.engine().filter(states, spec)
        return process.engine().weigh([SimpleNamespace(obj=s, weight=0.0) for s in states], spec)

    before = scores()
    assert before[0] > before[1]
    states[1].aggregates = [SimpleNamespace(metadata={"numa_ext_neighbours_multiplier": "0"})]
    after = scores()
    assert after[0] == before[0]
    assert after[1] > before[1]


TWINS = [
    HostView(f"root{number}", f"h{number}", frozenset(TRAITS), None, (domain(0),))
    for number in (1, 2)
]
RABBIT = {**LC, "numa_ext:interference_class": "rabbit"}


def scores(states, spec, others=(0.0, 0.0)):
    """Let our filter and our weigher look at hosts for which nova's own weighers have summed up ``others``."""
    assert process.engine().filter(states, spec) == states, "a pick only ranks"
    weighed = [
        SimpleNamespace(obj=state, weight=weight)
        for state, weight in zip(states, others, strict=True)
    ]
    return process.engine().weigh(weighed, spec)


def test_a_single_host_needs_no_weigher_to_be_remembered(nova_configuration):
    """With one host left nova does not call weighers; the pick is noted by the filter."""
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet(TWINS), None))
    process.engine().filter([state_of(TWINS[0])], request_spec(RABBIT))
    taken, free = scores([state_of(view) for view in TWINS], request_spec(RABBIT))
    assert taken < free


def test_a_server_that_is_scheduled_again_is_not_its_own_neighbour(nova_configuration):
    """It failed to build, or it moves: what was remembered of it is where it no longer is."""
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet(TWINS), None))
    process.engine().filter([state_of(TWINS[0])], request_spec(RABBIT, instance_uuid="server"))
    again = request_spec(RABBIT, instance_uuid="server")
    left, other = scores([state_of(view) for view in TWINS], again)
    assert left == other


def test_a_request_that_gets_no_host_leaves_no_neighbour_behind(nova_configuration):
    """H3 a: nova undoes the claims of its earlier servers; what they were is not held against the next request."""
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet(TWINS), None))
    states, spec = [state_of(view) for view in TWINS], request_spec(RABBIT)
    process.engine().filter(states[:1], spec)
    states[0].num_instances += 1  # nova takes it for the first server
    spec.instance_uuid = "second"
    assert process.engine().filter([], spec) == [], "none is left for the second"
    one, other = scores([state_of(view) for view in TWINS], request_spec(RABBIT))
    assert one == other


@pytest.mark.parametrize(("others", "taken"), [(0.0, "h2"), (9.0, "h1")])
def test_the_best_host_by_all_weights_is_remembered(nova_configuration, others, taken):
    """Ours speak for h2, where no LC lives; those of nova's weighers for h1."""
    views = [
        HostView("root1", "h1", frozenset(TRAITS), None, (domain(0, neighbours=[HAS_LC]),)),
        HostView("root2", "h2", frozenset(TRAITS), None, (domain(0),)),
    ]
    process.use(session.Engine(CONF, SchedulerOptions(), Fleet(views), None))
    states = [state_of(view) for view in views]
    rabbit = {**BE, "numa_ext:interference_class": "rabbit"}
    before = scores(states, request_spec(rabbit), others=(others, 0.0))
    after = scores(states, request_spec(rabbit))
    worse = [state.host for state, a, b in zip(states, before, after, strict=True) if b < a]
    assert worse == [taken]
