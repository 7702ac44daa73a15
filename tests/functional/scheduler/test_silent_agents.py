# SPDX-License-Identifier: Apache-2.0
"""Hosts whose agent is not there, in nova's real scheduler: Placement leaves them out, or they come last."""

from math import inf

import pytest
from nova import exception

from nova_numa_ext.cli.explain_command import main as explain
from placement_traits.beats import BeatWriter
from placement_traits.reporter import Reporter
from placement_traits.view import FleetView, ViewSettings
from tests.functional.scheduler.conftest import BE, LC

GUARDED = {**LC, "trait:CUSTOM_NUMA_EXT_TIER_LC": "required"}


@pytest.fixture
def pair(cloud):
    """Two hosts; the agent of the emptier one is silent::

    silent    empty
    living    one dedicated CPU of each node is taken
    """
    cloud.host("silent")
    cloud.host("living", used=dict.fromkeys(range(4), (1, 512)))
    return cloud


def read_beats(cloud, *hosts, **options):
    """Let these agents beat and the scheduler read the whole fleet again."""
    for host in hosts:
        BeatWriter(cloud.placement, host).beat()
    cloud.view = FleetView(cloud.adapter, ViewSettings(max_age_s=inf), background=False)
    cloud.view.refresh()
    cloud.configure(**options)


def fill(cloud, extra_specs):
    """Take all six classes of service of a host; returns the hosts that were used."""
    return {host for _ in range(2) for host, _ in cloud.boot(extra_specs, count=3)}


def test_a_host_whose_agent_is_silent_comes_last_for_lc(pair):
    ((host, _),) = pair.boot(LC)
    assert host == "silent", "it is the better one"
    read_beats(pair, "living")
    assert fill(pair, LC) == {"living"}
    ((host, _),) = pair.boot(LC)
    assert host == "silent", "the other one is full: last is not refused"
    ((host, _),) = pair.boot(BE)
    assert host == "silent", "best-effort servers do not count on an agent"


def test_it_is_refused_only_where_that_is_configured(pair):
    read_beats(pair, "living", on_silent="refuse")
    assert fill(pair, LC) == {"living"}
    with pytest.raises(exception.NoValidHost):
        pair.boot(LC)
    pair.boot(BE)


def test_the_explanation_shows_it(pair, capsys):
    read_beats(pair, "living")
    pair.boot(LC)
    assert explain([pair.last_servers[0], "--journal", str(pair.journal_path)]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines() if "|" not in line)
    del head
    (names,) = [row for row in rows if "silent" in row and "slices" in row]
    column = names.index("silent")
    shown = {row[0]: row[column] for row in rows if row and row[0] in ("living", "silent")}
    assert (float(shown["silent"]), abs(float(shown["living"]))) == (-1.0, 0.0)


def test_placement_itself_leaves_out_a_host_whose_tiers_were_withdrawn(pair):
    """For any scheduler: no filter of ours is asked, and the view need not have noticed."""
    Reporter(pair.placement).withdraw_tiers("silent")
    offered = pair.placement.get(
        "/allocation_candidates?resources=MEMORY_MB:1&required=CUSTOM_NUMA_EXT_TIER_LC"
    )
    roots = {summary["root_provider_uuid"] for summary in offered["provider_summaries"].values()}
    names = [pair.placement.get(f"/resource_providers/{root}")["name"] for root in roots]
    assert names == ["living"]
    assert fill(pair, GUARDED) == {"living"}
    with pytest.raises(exception.NoValidHost):
        pair.boot(GUARDED)
    pair.publish("silent")
    ((host, _),) = pair.boot(GUARDED)
    assert host == "silent", "its agent is back"
