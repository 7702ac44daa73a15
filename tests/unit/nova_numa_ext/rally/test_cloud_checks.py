# SPDX-License-Identifier: Apache-2.0
"""What scenarios ask: commands that fail in one sentence, hosts that are waited for, flavors that are checked."""

import json
from typing import Any

import pytest

from nova_numa_ext.rally.asking import NoAnswerError, ask, words_of
from nova_numa_ext.rally.checked_flavors import checked
from nova_numa_ext.rally.cloud_checks import CloudChecks, Commands, NotInTimeError
from nova_numa_ext.rally.samples import Topic
from placement_traits.errors import InvalidValueError
from tests.support.partitioned_host import (
    BE,
    LC1,
    SERVERS,
    empty,
    explained,
    host,
    paused,
)


def test_a_value_is_one_word_whatever_it_holds() -> None:
    assert words_of("ssh {host} 'cat a b'", host="h1; rm x") == ["ssh", "h1; rm x", "cat a b"]


@pytest.mark.parametrize("command", ["ssh {machine}", "ssh {0}", "ssh 'h1"])
def test_a_command_that_cannot_be_filled_in_is_refused(command: str) -> None:
    with pytest.raises(InvalidValueError, match=r"words with \{host\}"):
        ask(command, 1.0, host="h1")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("false", "exit status 1"),
        ("echo no", "did not print JSON"),
        ("no-such-program-anywhere", "No such file"),
        ("sleep 5", "not done after 0.2 s"),
    ],
)
def test_a_command_without_an_answer_is_one_sentence(command: str, sentence: str) -> None:
    with pytest.raises(NoAnswerError, match=sentence):
        ask(command, 0.2)


def test_an_answer_is_json() -> None:
    assert ask("echo '[1, {host}]'", 10.0, host="2") == [1, 2]


class Placement:
    """Placement's answers by path; unknown paths fail the test."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def request(self, url: str, method: str, **_: Any) -> Any:
        return Answer(self.answers[url.strip("/").partition("?")[0].replace("/", "_")])


class Answer:
    """An HTTP answer."""

    status_code = 200

    def __init__(self, body: Any) -> None:
        self.body = body
        self.content = json.dumps(body).encode()

    def json(self) -> Any:
        return self.body


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class ScriptedCloud(CloudChecks):
    """A cloud whose hosts show one thing after the other, the last one for ever."""

    def __init__(self, *shown: Any, decisions: bool = True) -> None:
        clock = Clock()
        super().__init__(Placement(usages={"usages": {}}), Commands(""), clock, clock.sleep)
        self.clock = clock
        self._shown = list(shown)
        self._decisions = decisions

    def read_back(self, host: str) -> Any:
        return self._shown.pop(0) if len(self._shown) > 1 else self._shown[0]

    def explained(self, uuid: str) -> Any:
        server = next(one for one in SERVERS if one.uuid == uuid)
        return explained(server) if self._decisions else []


def test_hosts_are_waited_for_until_they_do_what_was_allocated() -> None:
    late = host()
    paused(late)
    cloud = ScriptedCloud(late, late, host())
    assert cloud.settled(SERVERS, 60.0) == {"h1": host()}
    assert 0 < cloud.clock.now_s < 60.0


def counts(cloud: ScriptedCloud) -> dict[str, list[int]]:
    """Samples after half a minute, [looked at, faults] by topic."""
    found = cloud.findings(SERVERS, cloud.settled(SERVERS, 30.0))
    return {chart["title"]: [value for _, value in chart["data"]] for chart in found.charts()}


def test_each_negative_run_is_a_fault_of_its_sla_only() -> None:
    stopped, overlapping = host(), host()
    paused(stopped)
    overlapping["resctrl"]["numa_ext-lc-2"]["schemata"]["L3"]["0"] = "f"
    right = {Topic.PLACEMENT: [3, 0], Topic.READ_BACK: [3, 0], Topic.OVERLAP: [1, 0]}
    assert counts(ScriptedCloud(host())) == right
    assert counts(ScriptedCloud(host(), decisions=False)) == right | {Topic.PLACEMENT: [3, 3]}
    assert counts(ScriptedCloud(stopped)) == right | {Topic.READ_BACK: [3, 1]}
    assert counts(ScriptedCloud(overlapping)) == right | {Topic.OVERLAP: [1, 4]}


def test_what_is_wrong_is_told_in_words() -> None:
    cloud = ScriptedCloud(host(), decisions=False)
    told = cloud.findings(SERVERS, {"h1": host()}).sentences()
    assert [sentence.partition(":")[0] for sentence in told] == [one.uuid for one in SERVERS]


def test_what_is_left_is_waited_for_no_longer_than_said() -> None:
    cloud = ScriptedCloud(host())
    cloud.held = lambda uuid, host: next(one for one in SERVERS if one.uuid == uuid)  # type: ignore[method-assign]
    left = cloud.left(SERVERS, {"h1": host()}, 10.0)
    assert f"{LC1}: its domain still runs on h1" in left
    assert 10.0 <= cloud.clock.now_s < 15.0
    assert ScriptedCloud(empty()).left([], {"h1": host()}, 10.0) == ()


def test_allocations_are_named_by_their_providers() -> None:
    placement = Placement(
        **{
            f"allocations_{LC1}": {"allocations": {"u1": {"resources": {"CUSTOM_LLC_WAY": 4}}}},
            "resource_providers_u1": {"name": "h1:l3_2"},
        }
    )
    held = CloudChecks(placement, Commands("")).held(LC1, "h1")
    assert (held.ways, held.l3_domains, held.latency_critical) == (4, {2}, True)
    assert held.providers == {"u1"}


def test_scheduling_is_over_when_placement_counts_all_servers() -> None:
    usages = {"INSTANCE": {"consumer_count": 3, "VCPU": 3}, "unknown": {"consumer_count": 1}}
    clock = Clock()
    cloud = CloudChecks(Placement(usages={"usages": usages}), Commands(""), clock, clock.sleep)
    cloud.wait_for_consumers("p", 4, 1.0)
    with pytest.raises(NotInTimeError, match="4 of 5 servers were scheduled within 1 s"):
        cloud.wait_for_consumers("p", 5, 1.0)


def test_a_server_without_a_decision_has_none_whatever_else_is_printed() -> None:
    """``numa-ext-explain`` answers with a what-if then: rows of hosts, or a flavor's problems."""
    for told in ([{"host": "h1", "possible": True}], {"problems": ["x"]}):
        cloud = CloudChecks(
            Placement(),
            Commands("", f"echo '{json.dumps(told)}'".replace("{", "{{").replace("}", "}}")),
        )
        assert cloud.explained(BE) == []


def test_flavors_are_checked_before_any_is_made() -> None:
    (flavor,) = checked([{"name": "lc", "extra_specs": {"hw:cpu_policy": "dedicated"}}])
    assert (flavor.vcpus, flavor.ram, flavor.disk) == (1, 128, 1)
    with pytest.raises(InvalidValueError, match=r"numa_ext:teir.*did you mean|no key of numa_ext"):
        checked([{"name": "lc", "extra_specs": {"numa_ext:teir": "LC"}}])
    with pytest.raises(InvalidValueError, match="each name once"):
        checked([{"name": "a"}, {"name": "a"}])
