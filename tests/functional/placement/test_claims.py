# SPDX-License-Identifier: Apache-2.0
"""What consumers of our own hold, in a real Placement: all or nothing, one winner, and nothing that is not ours."""

import json
import uuid
from dataclasses import replace

import pytest

from placement_traits.claim_store import ClaimStore, ForeignConsumerError, NoRoomError
from placement_traits.claims import Claim, emptied
from placement_traits.client import (
    CODE_CONCURRENT,
    GenerationConflictError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.names import OWNER
from tests.support.at_once import at_once
from tests.support.faults import FaultyAdapter, answer, lose_answer

SLOT = "CUSTOM_SLOT"
TYPE = "NUMA_EXT_TEST"


@pytest.fixture
def pools(empty_cloud):
    """Two providers of ours with slots::

    pool1   CUSTOM_SLOT 4
    pool2   CUSTOM_SLOT 4
    """
    for name in ("pool1", "pool2"):
        provider = empty_cloud.compute(name, **{SLOT: 4})
        setattr(empty_cloud, name, provider)
    return empty_cloud


@pytest.fixture
def claims(pools):
    return ClaimStore(pools.client)


def claim(**slots):
    amounts = {provider: {SLOT: count} for provider, count in slots.pop("amounts").items()}
    return Claim(str(uuid.uuid4()), TYPE, "project", "user", amounts, **slots)


def used(pools, name):
    path = f"/resource_providers/{getattr(pools, name)}/usages"
    return pools.client.get(path)["usages"][SLOT]


def test_a_claim_over_two_providers_is_read_as_it_was_written(pools, claims):
    job = claim(amounts={pools.pool1: 3, pools.pool2: 1})
    assert claims.read(job.consumer) is None
    claims.write(job)
    held = claims.read(job.consumer)
    assert held == replace(job, generation=held.generation)
    assert held.generation is not None
    assert list(claims.of_provider(pools.pool2)) == [held]
    claims.write(emptied(held))
    assert claims.read(job.consumer) is None
    assert (used(pools, "pool1"), used(pools, "pool2")) == (0, 0)


def test_claims_are_found_on_our_providers_and_counted_by_project(pools, claims):
    pools.traits(pools.pool1, OWNER)
    over_both, on_one = (
        claim(amounts={pools.pool1: 1, pools.pool2: 1}),
        claim(amounts={pools.pool1: 1}),
    )
    claims.write(over_both, on_one)
    claims.write(claim(amounts={pools.pool2: 1}))
    found = sorted(each.consumer for each in claims.all())
    assert found == sorted([over_both.consumer, on_one.consumer])
    assert (claims.consumers("project"), claims.consumers("other")) == ({TYPE: 3}, {})


def test_of_two_claims_of_which_one_does_not_fit_none_is_made(pools, claims):
    fits, not_both = claim(amounts={pools.pool1: 3}), claim(amounts={pools.pool1: 2})
    with pytest.raises(NoRoomError, match="SLOT"):
        claims.write(fits, not_both)
    assert used(pools, "pool1") == 0
    assert claims.read(fits.consumer) is None


def test_a_move_keeps_the_source_until_it_is_released(pools, claims):
    job = claim(amounts={pools.pool1: 3})
    claims.write(job)
    held = claims.read(job.consumer)
    source = claim(amounts={pools.pool1: 3})
    claims.write(replace(held, amounts={pools.pool2: {SLOT: 3}}), source)
    assert (used(pools, "pool1"), used(pools, "pool2")) == (3, 3)
    claims.write(emptied(claims.read(source.consumer)))
    assert (used(pools, "pool1"), used(pools, "pool2")) == (0, 3)


def test_who_read_before_another_wrote_changes_nothing(pools, claims):
    job = claim(amounts={pools.pool1: 1})
    claims.write(job)
    early = claims.read(job.consumer)
    claims.write(replace(early, amounts={pools.pool1: {SLOT: 2}}))
    for late in (
        emptied(early),
        replace(early, amounts={pools.pool1: {SLOT: 4}}),
        replace(early, amounts={pools.pool1: {SLOT: 4}}, generation=None),
    ):
        with pytest.raises(GenerationConflictError):
            claims.write(late)
    assert used(pools, "pool1") == 2


def test_an_answer_that_was_lost_is_no_conflict(pools):
    faults = [lose_answer]
    adapter = FaultyAdapter(
        pools.adapter, lambda method, _url: faults.pop() if faults and method == "POST" else None
    )
    claims = ClaimStore(pools.connect(adapter))
    job = claim(amounts={pools.pool1: 3})
    claims.write(job)
    assert faults == []
    assert used(pools, "pool1") == 3
    faults.append(lose_answer)
    claims.write(emptied(claims.read(job.consumer)))
    assert faults == []
    assert used(pools, "pool1") == 0


def test_who_may_not_write_any_more_sends_nothing_again(pools):
    """A writer of the same provider is faster, and while this process pauses, it loses its term."""

    class OverError(NumaExtError):
        pass

    def faster(_send):
        ClaimStore(pools.client).write(claim(amounts={pools.pool1: 1}))
        return answer(409, json.dumps({"errors": [{"code": CODE_CONCURRENT, "detail": "late"}]}))

    faults = [faster]
    adapter = FaultyAdapter(
        pools.adapter, lambda method, _url: faults.pop() if faults and method == "POST" else None
    )
    answers = iter([None, OverError("the term is over")])

    def may():
        if error := next(answers):
            raise error

    job = claim(amounts={pools.pool1: 3})
    with pytest.raises(OverError):
        ClaimStore(pools.connect(adapter)).write(job, may=may)
    assert faults == []
    assert [method for method, _url in adapter.log].count("POST") == 1
    assert used(pools, "pool1") == 1


def test_of_sixteen_that_want_the_last_slots_one_wins(pools):
    def run(_number):
        try:
            ClaimStore(pools.connect()).write(claim(amounts={pools.pool1: 3}))
        except NoRoomError:
            return "no room"
        return "won"

    results = at_once(16, run)
    assert sorted(results) == ["no room"] * 15 + ["won"]
    assert used(pools, "pool1") == 3


def test_a_servers_allocation_is_neither_read_nor_written(pools, claims):
    server = str(uuid.uuid4())
    pools.claim(server, allocations={pools.pool1: {SLOT: 1}})
    with pytest.raises(ForeignConsumerError, match=f"{server} is of type INSTANCE"):
        claims.read(server)
    theirs = Claim(server, "INSTANCE", "project", "user", {}, 1)
    with pytest.raises(ForeignConsumerError, match="INSTANCE"):
        claims.write(theirs)
    with pytest.raises(GenerationConflictError):
        claims.write(replace(theirs, type=TYPE, amounts={pools.pool2: {SLOT: 1}}, generation=None))
    assert list(claims.of_provider(pools.pool1)) == []
    assert (used(pools, "pool1"), used(pools, "pool2")) == (1, 0)


def test_what_cannot_be_claimed_is_a_sentence(pools, claims):
    with pytest.raises(InvalidValueError, match="amounts of one or more providers"):
        claims.write(claim(amounts={}))
    nowhere = str(uuid.uuid4())
    with pytest.raises(PlacementError, match=nowhere):
        claims.write(claim(amounts={nowhere: 1}))
    assert list(claims.of_provider(nowhere)) == []


def test_a_claim_that_was_refused_as_malformed_can_be_made_later(pools, claims):
    """Placement keeps its consumer, of which no write as a new one would succeed."""
    job = claim(amounts={pools.pool1: 1})
    with pytest.raises(PlacementError, match="400"):
        claims.write(replace(job, amounts={pools.pool1: {"CUSTOM_UNKNOWN": 1}}))
    claims.write(job)
    assert claims.read(job.consumer).amounts == job.amounts


def test_each_consumer_is_read_once_whatever_the_number_of_its_providers(pools):
    adapter = FaultyAdapter(pools.adapter, lambda _method, _path: None)
    claims = ClaimStore(PlacementClient(adapter))
    job = claim(amounts={pools.pool1: 1, pools.pool2: 1})
    claims.write(job)
    adapter.log.clear()
    assert [each.consumer for each in claims.of_providers([pools.pool1, pools.pool2])] == [
        job.consumer
    ]
    assert adapter.log.count(("GET", f"/allocations/{job.consumer}")) == 1
