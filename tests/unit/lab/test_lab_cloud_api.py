# SPDX-License-Identifier: Apache-2.0
"""The few questions that the lab itself asks the cloud."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import pytest
from numa_lab.cloud_api import CloudApi, SchedulerView
from numa_lab.settings import Settings

from nova_numa_ext import metrics
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.names import TierTrait
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.view import ViewStats
from tests.support.fleet import host


class Placement(BaseHTTPRequestHandler):
    """Answers as Placement does: it refuses a trait that no agent has made."""

    published: tuple[str, ...] = ()

    def do_GET(self) -> None:
        """Which providers have this name and this trait?"""
        query = parse_qs(urlsplit(self.path).query)
        assert query["required"] == [TierTrait.BE]
        name = query["name"][0]
        found = [{"name": name}] if name in self.published else []
        self.send_response(200 if self.published else 400)
        self.end_headers()
        self.wfile.write(json.dumps({"resource_providers": found}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def placement(settings: Settings) -> Iterator[type[Placement]]:
    server = HTTPServer(("127.0.0.1", settings.ports.placement), Placement)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Placement
    Placement.published = ()
    server.shutdown()
    server.server_close()


def test_a_host_has_an_agent_once_it_is_published(
    settings: Settings, placement: type[Placement], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CloudApi, "_new_token", lambda _: "token")
    api = CloudApi(settings)
    assert not api.has_agent("h1")
    placement.published = ("h2",)
    assert not api.has_agent("h1")
    assert api.has_agent("h2")


def test_a_placement_that_is_silent_shows_no_agent(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CloudApi, "_new_token", lambda _: "token")
    assert not CloudApi(settings).has_agent("h1")


def test_the_schedulers_view_is_known_by_its_own_metrics(settings: Settings) -> None:
    """A reader that has just begun, or has not, knows nothing."""
    api = CloudApi(settings)
    assert api.scheduler_view() == SchedulerView()
    hosts = FleetArrays.of([host(name=f"h{number}") for number in range(3)])
    view = mock.Mock(stats=ViewStats(refreshes=7))
    view.snapshot.return_value = FleetSnapshot(hosts, 1.0, ViewState.FRESH)
    exporter = metrics.Exporter(lambda: metrics.of_view(view))
    server = metrics.serve(exporter, "127.0.0.1", settings.ports.scheduler_metrics)
    try:
        assert api.scheduler_view() == SchedulerView(fresh=True, hosts=3, readings=7)
        view.snapshot.return_value = FleetSnapshot(hosts, 99.0, ViewState.STALE)
        assert not api.scheduler_view().fresh
    finally:
        server.shutdown()
        server.server_close()
