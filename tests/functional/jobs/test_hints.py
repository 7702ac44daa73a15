# SPDX-License-Identifier: Apache-2.0
"""What nova-scheduler learns of the servers that an engine asks nova for."""

import time
from dataclasses import replace

import pytest

from nova_numa_ext.job_hint import HINT, HintKeys
from nova_numa_ext.orchestrator.hints import PlanHints
from nova_numa_ext.policy.jobs import postponing
from nova_numa_ext.policy.jobs.job import Scope, ScopeWait
from nova_numa_ext.policy.jobs.plan import HostPlace, Plan
from tests.support.job_hints import KEYS
from tests.support.jobs_database import new_job, part, stored_job
from tests.support.jobs_world import World

PARTS = (
    part("gpu", count=2, extra_specs={"numa_ext:gpu_policy": "topo_p", "numa_ext:tier": "BE"}),
    part("cpu", count=1, apart=True, extra_specs={}),
)


def test_a_part_of_one_leaf_is_bound_to_its_plan_however_often_nova_refused():
    """Nova keeps servers on one host by a server group, and knows nothing of leafs."""
    hints, where = PlanHints(KEYS), Plan((HostPlace("p", "h1", 2),))
    bound = {}
    for scope in Scope:
        asked = part("p", wait_for=(ScopeWait(scope),))
        job = stored_job(parts=(asked,), plan=where, refusals=postponing.BINDING_REFUSALS)
        bound[scope] = KEYS.opened(hints.text(job, asked), time.time()).hosts
    assert bound == {Scope.HOST: (), Scope.LEAF: ("h1",), Scope.POD: ("h1",), Scope.FLEET: ()}


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Returns the scheduler hints of all servers that a job asks nova for; takes the engine's keys."""

    def asked(keys):
        world = World(tmp_path)
        world.hint_keys = keys
        world.start()
        bodies, request = [], world.api.request

        def noted(path, method, *, json=None, **more):
            if (method, path) == ("POST", "/servers"):
                bodies.append(json)
            return request(path, method, json=json, **more)

        world.api.request = noted
        job = world.jobs.create(new_job(parts=PARTS))
        world.rounds(4)
        return job, [body.get("os:scheduler_hints", {}) for body in bodies]

    return asked


def test_each_server_carries_where_its_part_was_planned(asked):
    job, given = asked(KEYS)
    found = [KEYS.opened(each[HINT], time.time()) for each in given]
    assert [each.part for each in found] == ["gpu", "gpu", "cpu"]
    assert {(each.job, each.project, each.flavor) for each in found} == {
        (job.uuid, job.project, "flavor-1")
    }
    assert {each.hosts for each in found} == {("h1",)}
    assert [dict(each.extra_specs) for each in found] == [
        {"numa_ext:gpu_policy": "topo_p"},
        {"numa_ext:gpu_policy": "topo_p"},
        {},
    ]
    assert not any(each.any_utility for each in found)
    assert set(given[2]) == {HINT, "group"}


def test_without_a_key_servers_carry_none(asked):
    _, given = asked(HintKeys())
    assert [set(each) for each in given] == [set(), set(), {"group"}]


@pytest.mark.parametrize(
    ("policy", "postponed", "most", "any_utility"),
    [
        ("topo_p", 9, 10, False),
        ("topo_p", 10, 10, True),
        ("topo_p", 99, None, False),
        ("topo_p", 0, 0, True),
        ("topo", 99, 10, False),
        ("topo", 0, 0, False),
        ("pack", 10, 10, False),
    ],
)
def test_the_last_postponement_leaves_the_choice_of_gpus_to_nova(
    tmp_path, policy, postponed, most, any_utility
):
    """Only where the part asked to be postponed: to all others their minimum is promised."""
    specs = {"numa_ext:gpu_policy": policy, "numa_ext:min_utility": "0.8"}
    parts = (part("gpu", count=2, extra_specs=specs), PARTS[1])
    world = World(tmp_path)
    job = replace(world.jobs.create(new_job(parts=parts)), postponed=postponed)
    plan = replace(world.plan(job), spare=(HostPlace("gpu", "h2", 1), HostPlace("cpu", "h3", 1)))
    job = replace(job, plan=plan)
    hint = KEYS.opened(PlanHints(KEYS, most).text(job, job.parts[0]), time.time())
    assert hint.any_utility == any_utility
    assert hint.spare == ("h2",)


def test_after_some_refusals_in_a_row_nova_chooses_among_all_hosts(tmp_path):
    """It may refuse all that is ever planned, for what a plan does not know."""
    world = World(tmp_path)
    job = world.jobs.create(new_job(parts=PARTS))
    job = replace(job, plan=replace(world.plan(job), spare=(HostPlace("gpu", "h2", 1),)))
    found = []
    for refusals in range(6):
        text = PlanHints(KEYS).text(replace(job, refusals=refusals), job.parts[0])
        hint = KEYS.opened(text, time.time())
        found.append((hint.hosts, hint.spare))
    assert found == [(("h1",), ("h2",))] * 4 + [((), ())] * 2
