# SPDX-License-Identifier: Apache-2.0
"""Recent picks are few, and forgotten in time."""

from nova_numa_ext.policy.picks import Pick
from nova_numa_ext.scheduler.ledger import Ledger
from placement_traits.names import InterferenceClass, Tier


def pick(server, host="h1"):
    return Pick(server, host, Tier.BE, InterferenceClass.SHEEP)


def remembered(ledger, now_s, without=""):
    hosts = ledger.by_host(now_s, without=without)
    return {host: [each.server for each in picks] for host, picks in hosts.items()}


def test_a_pick_is_forgotten_after_its_time():
    ledger = Ledger(ttl_s=10.0, limit=5)
    ledger.record(pick("a"), 0.0)
    ledger.record(pick("b", "h2"), 5.0)
    assert remembered(ledger, 9.9) == {"h1": ["a"], "h2": ["b"]}
    assert remembered(ledger, 10.0) == {"h2": ["b"]}
    assert remembered(ledger, 15.0) == {}


def test_the_oldest_picks_go_first_when_there_are_too_many():
    ledger = Ledger(ttl_s=10.0, limit=2)
    for server in "abc":
        ledger.record(pick(server), 0.0)
    assert remembered(ledger, 1.0) == {"h1": ["b", "c"]}


def test_a_newer_pick_of_a_server_takes_the_place_of_the_older_one():
    ledger = Ledger(ttl_s=10.0, limit=5)
    ledger.record(pick("a"), 0.0)
    ledger.record(pick("a", "h2"), 6.0)
    assert remembered(ledger, 12.0) == {"h2": ["a"]}


def test_a_server_does_not_see_itself():
    ledger = Ledger(ttl_s=10.0, limit=5)
    ledger.record(pick("a"), 0.0)
    ledger.record(pick("b"), 0.0)
    assert remembered(ledger, 1.0, without="a") == {"h1": ["b"]}
