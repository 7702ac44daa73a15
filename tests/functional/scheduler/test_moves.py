# SPDX-License-Identifier: Apache-2.0
"""A flavor that we find wrong refuses creates and resizes; no server is held where it is by it."""

import contextlib
import uuid
from types import SimpleNamespace

import pytest
from nova import context, exception, objects

from tests.functional.scheduler.conftest import BE

SERVER = str(uuid.uuid4())
WRONG = {**BE, "numa_ext:slo_p99_us": "500"}  # an objective is for latency-critical servers only


@pytest.fixture
def database(monkeypatch):
    """Nova's database knows the server with flavor 1."""
    found = SimpleNamespace(flavor=SimpleNamespace(id=1))

    @contextlib.contextmanager
    def target_cell(_context, _cell):
        yield None

    monkeypatch.setattr(context, "target_cell", target_cell)
    monkeypatch.setattr(objects.Instance, "get_by_uuid", lambda *_args, **_options: found)
    return found


def same_cell():
    """What nova asks for when it moves a server."""
    return objects.Destination(cell=objects.CellMapping(uuid=str(uuid.uuid4())))


def test_an_evacuation_finds_a_host(cloud, database, caplog):
    cloud.host("h1")
    assert cloud.boot(WRONG, servers=[SERVER], requested_destination=same_cell())
    assert f"Server {SERVER} may move although its flavor is wrong" in caplog.text


def test_a_server_that_a_host_knows_moves_without_a_cell(cloud):
    """A migration to a named host of another cell."""
    cloud.host("h1")
    cloud.hosts.servers["h1"] = {SERVER: SimpleNamespace(flavor=SimpleNamespace(id=1))}
    assert cloud.boot(WRONG, servers=[SERVER])


def test_a_create_and_a_resize_are_refused(cloud, database):
    cloud.host("h1")
    with pytest.raises(exception.NoValidHost):
        cloud.boot(WRONG)
    database.flavor.id = 2
    with pytest.raises(exception.NoValidHost):
        cloud.boot(WRONG, servers=[SERVER], requested_destination=same_cell())
    [refused] = cloud.entries("filter")[-1]["refused"]
    assert "numa_ext:tier=LC only" in refused["reason"]


def test_a_database_that_does_not_answer_holds_no_server(cloud, monkeypatch, caplog):
    def fails(*_arguments, **_options):
        raise exception.CellTimeout

    cloud.host("h1")
    monkeypatch.setattr(context, "target_cell", fails)
    assert cloud.boot(WRONG, servers=[SERVER], requested_destination=same_cell())
    assert "is unknown; it may move" in caplog.text
