# SPDX-License-Identifier: Apache-2.0
"""Trusts that are to be deleted are remembered until they are, and tried less and less often."""

import pytest
from sqlalchemy import select, update

from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts


@pytest.fixture
def trusts(database):
    return EndedTrusts(database)


def test_a_trust_is_due_until_it_is_deleted(trusts):
    for trust in ("first", "second", "first"):
        trusts.add(trust)
    assert sorted(trusts.due()) == ["first", "second"]
    assert len(trusts.due(most=1)) == 1
    trusts.deleted("first")
    assert trusts.due() == ["second"]


def test_a_trust_that_cannot_be_deleted_is_tried_again_less_and_less_often(trusts, database):
    trusts.add("trust")
    waits = []
    for tries in range(1, 15):
        assert trusts.refused("trust") == tries
        with database.transaction() as connection:
            until = connection.execute(select(tables.trust.c.not_before)).scalar_one()
        waits.append(round((until - database.now()) / 60))
    assert waits == [1, 2, 4, 8, 16, 32, *[60] * 8]
    assert trusts.due() == []
    with database.transaction() as connection:
        connection.execute(update(tables.trust).values(not_before=0.0))
    assert trusts.due() == ["trust"]
