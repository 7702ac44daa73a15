# SPDX-License-Identifier: Apache-2.0
"""What decisions leave in the metrics, in nova's real scheduler; and that they stand whatever happens to these."""

import pytest
from nova import exception
from nova.conf import CONF

from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.metrics import WorkerMetrics, of_workers
from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.scheduler import fleet, process, records, session
from nova_numa_ext.scheduler.measures import Measures
from placement_traits.journal import Journal
from placement_traits.names import Tier
from tests.functional.scheduler.conftest import BE, LC


@pytest.fixture
def counting(cloud, tmp_path):
    """Three hosts, and measures in files; returns what starts our part again and what reads its counts::

    nova-scheduler ── Measures ── view-1-abc…
    ├─ bare      no agent
    └─ h1, h2    with agents
    """
    cloud.host("bare", agent=False)
    cloud.host("h1")
    cloud.host("h2")
    stem = tmp_path / "view-1-abc"

    def start(journal=None, **options):
        cloud.measures = Measures(WorkerMetrics(stem))
        told = Journal(journal or cloud.journal_path, 2**20, 1, lost=cloud.measures.lost)
        made = SchedulerOptions(**options)
        process.use(session.Engine(CONF, made, cloud.view, told, measures=cloud.measures))

    def counts():
        """{(name without our prefix, label): number} of all workers, without zeros; for times, how many."""
        found = {}
        for metric, labels, value in of_workers(stem):
            key = (metric.name.removeprefix("numa_ext_scheduler_"), *labels[1:])
            number = sum(value[:-1]) if isinstance(value, list) else value
            if number:
                found[key] = found.get(key, 0) + number
        return found

    cloud.start, cloud.counts = start, counts
    start()
    return cloud


def test_a_decision_is_counted_with_its_time_and_its_refusals_by_term(counting):
    counting.boot(BE)
    assert counting.counts() == {
        ("decisions", "passed"): 1,
        ("refused_hosts", "agent"): 1,
        ("decision_seconds", "filter"): 1,
        ("decision_seconds", "weigher"): 1,
    }
    for name in ("h1", "h2"):
        counting.publish(name, tiers=frozenset({Tier.LC}))
    with pytest.raises(exception.NoValidHost):
        counting.boot(BE)
    counts = counting.counts()
    assert counts["decisions", "none"] == 1
    assert (counts["refused_hosts", "agent"], counts["refused_hosts", "tier"]) == (2, 2)


def test_a_request_without_a_key_of_ours_is_not_counted(counting):
    counting.boot({})
    assert counting.counts() == {}


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RANK])
def test_what_would_be_refused_is_counted_apart(counting, mode):
    counting.start(mode=mode)
    counting.boot(BE)
    counts = counting.counts()
    assert counts["would_refuse_hosts", "agent"] == 1
    assert not any(name == "refused_hosts" for name, *_ in counts)
    assert (("would_reorder", "host") in counts) == (mode is Mode.OBSERVE), "bare is nova's first"


@pytest.mark.parametrize(("hosts", "end"), [(7, "enough"), (0, "exhausted")])
def test_the_end_of_a_short_list_is_counted(counting, hosts, end):
    for number in range(hosts):
        counting.host(f"more{number}")
    counting.start(shortlist=2)
    counting.boot(BE)
    assert counting.counts()["shortlists", end] == 1


def test_a_journal_that_cannot_be_written_and_an_entry_that_cannot_be_made_are_counted(
    counting, monkeypatch, tmp_path
):
    (tmp_path / "file").touch()
    counting.start(journal=tmp_path / "file" / "journal")
    counting.boot(BE)
    assert counting.counts()["journal_failures",] == 2
    monkeypatch.setattr(records, "weigh_entry", lambda *_, **__: 1 / 0)
    counting.boot(BE)
    assert counting.counts()["faults", "record"] == 1


def test_a_fault_is_counted(counting, monkeypatch):
    monkeypatch.setattr(session, "judge", lambda *_: 1 / 0)
    monkeypatch.setattr(session, "decide", lambda *_: 1 / 0)
    counting.boot(LC)
    assert counting.counts() == {("faults", "filter"): 1, ("faults", "weigher"): 1}


@pytest.mark.parametrize("broken", ["count", "time", "save"])
def test_a_fault_in_the_metrics_changes_no_decision_and_is_logged_once(
    counting, monkeypatch, caplog, broken
):
    """Were the filter's answer lost, nova would take the host that comes first, which has no agent."""
    monkeypatch.setattr(WorkerMetrics, broken, lambda *_: 1 / 0)
    for _ in range(2):
        [(host, _)] = counting.boot(BE)
        assert host in {"h1", "h2"}
    assert not process.engine().faults
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_metrics_are_off_unless_a_port_is_given(nova_configuration):
    assert fleet.worker_metrics(CONF, SchedulerOptions()) is None


def test_without_a_folder_there_are_no_metrics_which_is_said(nova_configuration, tmp_path, caplog):
    (tmp_path / "file").touch()
    CONF.set_override("state_path", str(tmp_path / "file"))
    assert fleet.worker_metrics(CONF, SchedulerOptions(metrics_port=9178)) is None
    assert "There are no metrics of this worker" in caplog.text
