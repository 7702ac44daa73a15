# SPDX-License-Identifier: Apache-2.0
"""Servers of jobs go where the queue has planned them, with what their part requests; no user does that by a hint."""

import uuid
from types import SimpleNamespace

import pytest
from nova import exception, objects

from nova_numa_ext.cli import explain_command
from nova_numa_ext.job_hint import HINT, LASTS_S, hint_keys
from nova_numa_ext.scheduler import decision, planned, process, session
from nova_numa_ext.scheduler.decision import parse_spec
from tests.functional.scheduler.conftest import BE, request_spec
from tests.support.job_hints import KEY, OTHER_KEY, hints, sealed

PLAIN = {}
SERVER = str(uuid.uuid4())


@pytest.fixture
def three(cloud):
    """Three hosts as ``cloud`` draws them, and a scheduler that reads jobs' hints; returns the cloud::

    nova-scheduler   job_hint_keys = KEY
    └─ h1, h2, h3    with agents, empty
    """
    cloud.configure(job_hint_keys=(KEY,))
    cloud.root = {name: cloud.host(name).uuid for name in ("h1", "h2", "h3")}
    return cloud


def hosts(cloud, *args, **fields):
    return [host for host, _ in cloud.boot(*args, **fields)]


def test_a_server_without_the_hint_costs_one_look_into_its_hints(three, monkeypatch):
    def never(*_arguments):
        raise AssertionError("it was looked at")

    monkeypatch.setattr(session.Engine, "_filter", never)
    for given in ({}, {"group": ["one"]}, None):
        states = [object()]
        spec = request_spec(PLAIN, hints=given)
        assert decision.asks_us(spec) is False
        assert process.engine().filter(states, spec) is states


@pytest.mark.parametrize("flavor", [PLAIN, BE])
@pytest.mark.parametrize("name", ["h1", "h2", "h3"])
def test_a_server_goes_to_the_planned_host(three, flavor, name, capsys):
    assert hosts(three, flavor, hints=hints(sealed(three.root[name]))) == [name]
    [server] = three.last_servers
    assert explain_command.main([server, "--journal", str(three.journal_path)]) == 0
    told = capsys.readouterr().out
    assert "job-1, part workers: its plan limits the server to 1 planned and 0 spare hosts" in told
    assert "2 others are left out" in told


def test_a_spare_host_comes_after_all_planned_ones(three):
    """Nova has its alternates among them, and takes one where the planned host is full."""
    text = sealed(three.root["h2"], spare=(three.root["h1"], three.root["h3"]))
    assert hosts(three, BE, hints=hints(text)) == ["h2"]
    [selections] = three.last_selections
    assert {each.service_host for each in selections} == {"h1", "h2", "h3"}
    scores = {each["node"]: each["terms"]["spare"] for each in three.entries("weigh")[-1]["scores"]}
    assert scores == {"h1": -1.0, "h2": 0.0, "h3": -1.0}


def test_a_hint_without_hosts_leaves_the_choice_to_nova(three):
    assert hosts(three, BE, hints=hints(sealed()))[0] in three.root


def test_servers_of_one_request_are_limited_alike(three):
    text = sealed(three.root["h1"], three.root["h3"])
    placed = hosts(three, BE, count=3, vcpus=2, num_instances=3, hints=hints(text))
    assert set(placed) <= {"h1", "h3"}


def test_a_plan_of_which_nova_offers_no_host_leaves_the_choice_to_nova(three, capsys):
    """Of a large fleet a create sees a part; what is planned is seldom in it."""
    text = sealed(str(uuid.uuid4()), spare=(str(uuid.uuid4()),))
    assert hosts(three, PLAIN, hints=hints(text))[0] in three.root
    job = three.entries("filter")[-1]["job"]
    assert (job["absent"], job["left_out"]) == (2, 0)
    [server] = three.last_servers
    explain_command.main([server, "--journal", str(three.journal_path)])
    assert "nova offers no host of the 2 of its plan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("h3", "no key of [numa_ext]job_hint_keys opens it"),
        (sealed("h3", keys=hint_keys([OTHER_KEY], "other")), "no key of"),
        (sealed("h3", age_s=LASTS_S + 60), "older than 3600 s"),
        (sealed("h3", project="other"), "it was made for another project"),
        (sealed("h3", flavor="other"), "it was made for another flavor"),
    ],
)
def test_a_hint_that_does_not_count_gains_nothing_and_says_why(three, given, sentence):
    with pytest.raises(exception.NoValidHost):
        three.boot(PLAIN, hints=hints(given))
    [group] = three.entries("filter")[-1]["refused"]
    assert group["count"] == 3
    assert group["reason"].startswith(
        "only the job service can make the scheduler hint numa_ext_job"
    )
    assert sentence in group["reason"]


def test_several_texts_are_no_hint(three):
    text = sealed(three.root["h1"])
    with pytest.raises(exception.NoValidHost):
        three.boot(PLAIN, hints={HINT: [text, text]})


def test_without_a_key_no_hint_counts(three):
    three.configure()
    with pytest.raises(exception.NoValidHost):
        three.boot(PLAIN, hints=hints(sealed(three.root["h1"])))


def moving(**more):
    """What nova's conductor makes of a server's RequestSpec when it moves the server."""
    cell = objects.CellMapping(uuid=str(uuid.uuid4()))
    return {"servers": [SERVER], "requested_destination": objects.Destination(cell=cell), **more}


@pytest.mark.parametrize("age_s", [0, 10 * LASTS_S])
def test_a_move_is_not_bound_to_the_planned_hosts(three, age_s):
    text = sealed(three.root["h1"], age_s=age_s)
    assert hosts(three, PLAIN, hints=hints(text), **moving(ignore_hosts=["h1"])) != ["h1"]
    assert three.entries("filter")[-1]["job"]["planned"] is None


def test_a_move_whose_hint_cannot_be_read_any_more_goes_on(three, caplog):
    three.configure(job_hint_keys=(OTHER_KEY,))
    assert three.boot(PLAIN, hints=hints(sealed("h1")), **moving())
    assert f"hint numa_ext_job of server {SERVER} does not count any more" in caplog.text


def test_a_server_that_a_host_knows_is_moved(three):
    known = {SERVER: SimpleNamespace(flavor=SimpleNamespace(id=1))}
    three.hosts.servers["h1"] = known
    assert hosts(three, PLAIN, servers=[SERVER], hints=hints(sealed("a host that is gone")))


def test_a_part_adds_to_its_flavor_and_overrides_nothing():
    """Whatever the flavor has got since the job was submitted."""
    part = {"numa_ext:gpu_policy": "pack", "numa_ext:min_utility": "0.5"}
    flavor = {"numa_ext:min_utility": "0.7"}
    found = parse_spec(request_spec(flavor), (), planned.Planned("job", extra_specs=part)).request
    assert (found.gpu_policy, found.min_utility) == ("pack", 0.7)
    last = planned.Planned("job", extra_specs=part, any_utility=True)
    assert parse_spec(request_spec(flavor), (), last).request.min_utility == 0.0
