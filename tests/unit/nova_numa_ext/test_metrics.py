# SPDX-License-Identifier: Apache-2.0
"""Metrics of nova-scheduler: counted by each worker, read from its file, rendered for Prometheus."""

import json
import logging
import os
import threading
import uuid
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from host_agent.report.metrics import METRICS as OF_THE_AGENT
from nova_numa_ext import metrics
from nova_numa_ext.metrics import METRICS, Exporter, WorkerMetrics, of_view, of_workers
from placement_traits import names
from placement_traits.fleet import HostView
from placement_traits.fleet_arrays import FleetArrays
from placement_traits.snapshot import FleetSnapshot, ViewState
from placement_traits.view import ViewStats


@pytest.fixture
def stem(tmp_path):
    return tmp_path / "view-00000001-abc"


def rendered(*sources):
    """Samples as Prometheus reads them: {(name, sorted labels): value}."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exporter(*sources))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted(stem):
    return [(metric.name, labels[1:], value) for metric, labels, value in of_workers(stem) if value]


def test_names_belong_to_the_scheduler_and_have_labels_that_are_known():
    assert not METRICS.keys() & OF_THE_AGENT.keys()
    for metric in METRICS.values():
        assert metric.name.startswith("numa_ext_scheduler_")
        assert metric.kind in {"gauge", "counter", "histogram"}
        assert len(metric.help) > 15


def test_what_workers_count_is_rendered_worker_by_worker(stem):
    first, second = WorkerMetrics(stem), WorkerMetrics(stem)
    first.count(metrics.REFUSED, "tier", 3)
    first.count(metrics.REFUSED, "tier")
    first.count(metrics.JOURNAL)
    for seconds in (0.001, 0.002, 99.0):
        first.time(metrics.SECONDS, "filter", seconds)
    second.count(metrics.FAULTS, "filter")
    first.save()
    second.save()
    found = rendered(lambda: of_workers(stem))
    workers = {dict(labels)["worker"] for _, labels in found}
    assert len(workers) == 2
    assert all(worker.startswith(f"{os.getpid()}-") for worker in workers)
    by_name = {}
    for (name, labels), value in found.items():
        rest = tuple(value for key, value in labels if key != "worker")
        by_name[name, *rest] = by_name.get((name, *rest), 0) + value
    assert by_name["numa_ext_scheduler_refused_hosts_total", "tier"] == 4
    assert by_name["numa_ext_scheduler_journal_failures_total",] == 1
    assert by_name["numa_ext_scheduler_faults_total", "filter"] == 1
    buckets = {key[1]: value for key, value in by_name.items() if key[0].endswith("seconds_bucket")}
    assert (buckets["0.001"], buckets["0.003"], buckets["30.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert by_name["numa_ext_scheduler_decision_seconds_sum", "filter"] == pytest.approx(99.003)


def test_counters_of_a_worker_that_has_done_nothing_are_at_0(stem):
    """The rate of a counter that begins at 1 misses the 1: a fault of ours, for example."""
    WorkerMetrics(stem).save()
    found = [(metric.name, labels[1:], value) for metric, labels, value in of_workers(stem)]
    assert found == [
        (name, (label,) if label else (), 0)
        for name, labels in metrics.BEGIN_AT_0
        for label in labels
    ]
    assert all(metric.kind == "counter" for metric, *_ in of_workers(stem))


def test_the_file_of_a_worker_that_has_ended_is_removed(stem):
    ended, living = WorkerMetrics(stem), WorkerMetrics(stem)
    for each in (ended, living):
        each.count(metrics.JOURNAL)
        each.save()
    os.close(ended._file)
    assert len(counted(stem)) == 1
    assert [path.name for path in stem.parent.iterdir()] == [living._path.name]


def test_files_and_drafts_of_ended_workers_of_any_cloud_are_removed(stem):
    """Nobody scrapes, or the settings have changed since."""
    living = WorkerMetrics(stem)
    living.save()
    before = [stem.with_name("view-other.worker-7-a"), stem.with_name(".view-other.worker-7-a")]
    just_made, foreign = stem.with_name(".view-x.worker-8-b"), stem.with_name("notes")
    for path in (*before, just_made, foreign):
        path.write_text("[]")
    for path in (*before, living._path, foreign):
        os.utime(path, (0, 0))
    metrics.remove_ended(stem.parent)
    assert set(stem.parent.iterdir()) == {living._path, just_made, foreign}


def test_a_reader_that_meets_a_file_just_being_replaced_reads_the_next_one(stem, monkeypatch):
    worker = WorkerMetrics(stem)
    worker.count(metrics.JOURNAL)
    worker.save()
    real = metrics._is_locked

    def replaced_meanwhile(file):
        monkeypatch.setattr(metrics, "_is_locked", real)
        worker.count(metrics.JOURNAL)
        worker.save()
        return real(file)

    monkeypatch.setattr(metrics, "_is_locked", replaced_meanwhile)
    assert counted(stem) == [(metrics.JOURNAL, (), 2)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "3",
        '[["numa_ext_scheduler_refused_hosts"]]',
        '[["of_another_release", "", 1]]',
        '[["numa_ext_scheduler_journal_failures", "label of another release", 1]]',
        '[["numa_ext_scheduler_faults", "filter", "many"]]',
        '[["numa_ext_scheduler_decision_seconds", "filter", 1.5]]',
        '[["numa_ext_scheduler_decision_seconds", "filter", [1, 2]]]',
        json.dumps([["numa_ext_scheduler_decision_seconds", "filter", ["1"] * 12]]),
    ],
)
def test_what_cannot_be_read_or_is_not_known_is_left_out(stem, text):
    worker = WorkerMetrics(stem)
    worker.save()
    worker._path.write_text(text)
    assert counted(stem) == []


def test_a_disk_that_is_full_is_one_line_in_the_log(stem, caplog):
    caplog.set_level(logging.INFO)
    worker = WorkerMetrics(stem.parent / "gone" / stem.name)
    for _ in range(3):
        worker.count(metrics.JOURNAL)
        worker.save()
    assert len(caplog.records) == 1
    (stem.parent / "gone").mkdir()
    worker.save()
    assert counted(stem.parent / "gone" / stem.name) == [(metrics.JOURNAL, (), 3)]


def test_many_threads_lose_no_count_while_they_save_and_another_process_reads(stem):
    worker = WorkerMetrics(stem)

    def work():
        for _ in range(50):
            worker.count(metrics.FAULTS, "filter")
            worker.time(metrics.SECONDS, "weigher", 0.5)
            worker.save()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    seen = []
    while any(thread.is_alive() for thread in threads):
        seen += [value for name, _, value in counted(stem) if name == metrics.FAULTS]
    assert seen == sorted(seen)
    assert (metrics.FAULTS, ("filter",), 800) in counted(stem)


class View:
    def __init__(self, age_s, state):
        self.shown = FleetSnapshot(FleetArrays.of(()), age_s, state)
        self.stats = ViewStats(refreshes=5, failures=2)

    def snapshot(self):
        return self.shown


def test_the_view_shows_age_and_state():
    found = rendered(lambda: of_view(View(12.5, ViewState.STALE)))
    assert found["numa_ext_scheduler_view_age_seconds", ()] == 12.5
    states = {
        dict(labels)["state"]: value
        for (name, labels), value in found.items()
        if name == "numa_ext_scheduler_view_state"
    }
    assert states == {"empty": 0, "fresh": 0, "stale": 1}
    assert found["numa_ext_scheduler_view_readings_total", (("result", "failed"),)] == 2


def test_hosts_that_hang_on_another_leaf_are_counted():
    view = View(1.0, ViewState.FRESH)
    traits = {"h1": (), "h2": (names.MISCABLED,), "h3": (names.MISCABLED, names.HOST), "h4": ()}
    hosts = [
        HostView(str(uuid.uuid4()), host, frozenset(of), None, ()) for host, of in traits.items()
    ]
    view.shown = replace(view.shown, arrays=FleetArrays.of(hosts))
    found = rendered(lambda: of_view(view))
    assert found["numa_ext_scheduler_miscabled_hosts", ()] == 2
    assert found["numa_ext_scheduler_view_hosts", ()] == 4


def test_a_view_that_was_never_read_has_no_age():
    found = rendered(lambda: of_view(View(float("inf"), ViewState.EMPTY)))
    assert ("numa_ext_scheduler_view_age_seconds", ()) not in found


@pytest.mark.parametrize(
    ("troubles", "sentences"),
    [
        ([ImportError("No module named 'prometheus_client'")], ["install the extra 'metrics'"]),
        (
            [OSError("in use"), OSError("in use"), None],
            ["on 127.0.0.1 port 9178 yet: in use", "Metrics are on"],
        ),
    ],
)
def test_what_keeps_the_endpoint_from_starting_is_one_sentence(
    monkeypatch, caplog, troubles, sentences
):
    """The reader goes on, and the port is tried again until it is free."""
    caplog.set_level(logging.INFO)
    left = iter(troubles)

    def serve(*_):
        if (trouble := next(left)) is not None:
            raise trouble

    monkeypatch.setattr(metrics, "serve", serve)
    monkeypatch.setattr(metrics, "SECONDS_BETWEEN_TRIES", 0.0)
    metrics.keep_serving(Exporter(), "127.0.0.1", 9178)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(sentences)
    assert all(part in message for part, message in zip(sentences, messages, strict=True))
    assert list(left) == []
