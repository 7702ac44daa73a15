# SPDX-License-Identifier: Apache-2.0
"""The host of an explanation is the one that nova took, whatever the totals were.

Nova's own scheduler chooses; the compute API shows of it what nova's would.
"""

from types import SimpleNamespace
from unittest import mock

import pytest
from keystoneauth1 import exceptions as keystone_errors
from nova import exception
from nova.conf import CONF
from nova.scheduler import utils as scheduler_utils

from nova_numa_ext import endpoints
from nova_numa_ext.cli import explain_command
from placement_traits.names import NeighbourTrait
from placement_traits.offers import L3State
from tests.functional.scheduler.conftest import LC

WITH_BE = L3State(frozenset({NeighbourTrait.BE}))
DRAWN = "[filter_scheduler]host_subset_size"


class NovaApi:
    """The compute API after nova-computes have begun to build servers on hosts.

    :param builds: hosts by server, in order of time
    """

    def __init__(self, cloud, builds, status="ACTIVE", **event):
        self._request, self._builds = cloud.context.request_id, builds
        self._status, self._event = status, event

    def get(self, url, **_query):
        _, _, server, *action = url.split("/")
        if server not in self._builds:
            return SimpleNamespace(status_code=404)
        hosts = self._builds[server]
        now = hosts[-1] if hosts else None
        body = {"server": {"status": self._status, "OS-EXT-SRV-ATTR:host": now}}
        if action:
            assert action == ["os-instance-actions", self._request]
            body = {"instanceAction": {"events": [self._built(host) for host in reversed(hosts)]}}
        return SimpleNamespace(status_code=200, json=lambda: body)

    def _built(self, host):
        event = {"event": "compute__do_build_and_run_instance", "result": "Success"}
        return {**event, "start_time": "2026-01-01T00:00:00.000000", "host": host, **self._event}


@pytest.fixture
def told(cloud, capsys, monkeypatch):
    """Lines about a server by their first word, as numa-ext-explain prints them while nova shows ``builds``."""

    def explain(server, builds, *words, **shown):
        api = NovaApi(cloud, builds, **shown)
        monkeypatch.setattr(endpoints, "compute", lambda _conf: api)
        assert (
            explain_command.main([server, "--journal", str(cloud.journal_path), "--last", *words])
            == 0
        )
        lines = capsys.readouterr().out.splitlines()
        return {line[:8].strip(): line[9:] for line in lines if line[:1].strip()} | {
            "all": "\n".join(lines)
        }

    return explain


def test_with_a_subset_of_hosts_it_is_the_one_that_nova_drew(cloud, told):
    """M10: of twelve servers, ten explanations named a host where the server was not."""
    CONF.set_override("host_subset_size", 4, "filter_scheduler")
    for number in range(4):
        cloud.host(f"h{number}")
        cloud.publish(f"h{number}", state=dict.fromkeys(range(number), WITH_BE))
    not_the_best = 0
    for _ in range(12):
        [(host, _)] = cloud.boot(LC)
        [server] = cloud.last_servers
        lines = told(server, {server: [host]})
        totals = {each["node"]: each["total"] for each in cloud.entries("weigh")[-1]["scores"]}
        place = 1 + sum(total > totals[host] for total in totals.values())
        not_the_best += place > 1
        assert lines["host"] == f"{host} (number {place} by total)"
        assert (DRAWN in lines["all"]) == (place > 1)
        assert lines["now"] == f"ACTIVE, on {host}"
    assert not_the_best


@pytest.fixture
def two_hosts(cloud):
    """Best-effort servers live on h2: h1 is the better one for others::

    h1                     empty
    h2
    └─ h2:l3_0 … h2:l3_3   each with best-effort servers
    """
    for name in ("h1", "h2"):
        cloud.host(name)
    cloud.publish("h2", state=dict.fromkeys(range(4), WITH_BE))


@pytest.mark.usefixtures("two_hosts")
def test_after_a_lost_claim_it_is_the_host_that_nova_claimed_next(cloud, told):
    claim, lost = scheduler_utils.claim_resources, []

    def first_is_lost(*arguments, **options):
        lost.append(arguments)
        return len(lost) > 1 and claim(*arguments, **options)

    with mock.patch("nova.scheduler.utils.claim_resources", first_is_lost):
        [(host, _)] = cloud.boot(LC)
    [server] = cloud.last_servers
    lines = told(server, {server: [host]})
    assert lines["best"].startswith("h1: the highest total")
    assert (host, lines["host"]) == ("h2", "h2 (number 2 by total)")
    assert DRAWN in lines["all"]


@pytest.mark.usefixtures("two_hosts")
def test_after_a_failed_build_it_is_the_alternate_and_where_it_failed_is_told(cloud, told):
    [(first, _)] = cloud.boot(LC)
    [server] = cloud.last_servers
    [[_, alternate]] = cloud.last_selections
    cloud.placement.delete(f"/allocations/{server}")
    cloud.claim_alternate(server, alternate)
    lines = told(server, {server: [first, alternate.service_host]})
    assert lines["host"] == "h2 (number 2 by total); tried before: h1 (number 1 by total)"
    assert DRAWN not in lines["all"]


def test_a_request_that_nova_gave_up_took_no_host_though_one_was_best(cloud, told):
    """Of five servers four find room: nova gives all of them up."""
    cloud.host("h1")
    with pytest.raises(exception.NoValidHost):
        cloud.boot({**LC, "resources_NODE:CUSTOM_LLC_WAY": "13"}, vcpus=2, count=5)
    for server in cloud.last_servers[:4]:
        lines = told(server, {server: []}, status="ERROR")
        assert lines["best"].startswith("h1: one host was left")
        assert lines["host"] == "none: nova has sent the server to no host for this request"
        assert lines["now"] == "ERROR, on no host"


def test_what_nova_does_not_show_is_told_and_never_guessed(cloud, told, monkeypatch):
    cloud.host("h1")
    cloud.boot(LC)
    [server] = cloud.last_servers
    assert told(server, {})["host"].startswith("unknown: nova shows no action of req-")
    hidden = SimpleNamespace(status_code=200, json=lambda: {"instanceAction": {"events": [{}]}})
    with mock.patch.object(NovaApi, "get", lambda *_arguments, **_options: hidden):
        assert told(server, {})["host"].startswith("unknown: nova shows this user no hosts")
    gone = mock.Mock(side_effect=keystone_errors.ConnectFailure("no route"))
    with mock.patch.object(NovaApi, "get", gone):
        assert told(server, {})["host"] == "unknown: nova does not answer: no route"
        assert "host" not in told(server, {}, "--offline")
