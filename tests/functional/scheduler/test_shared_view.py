# SPDX-License-Identifier: Apache-2.0
"""One reader of Placement for all workers of a controller: real processes, a real lock, a real Placement over HTTP."""

import dataclasses
import fcntl
import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from nova.conf import CONF

from benchmarks.bench_view import placement
from nova_numa_ext import endpoints, metrics
from nova_numa_ext.conf import SchedulerOptions, view_settings
from nova_numa_ext.scheduler import NumaExtFilter, fleet, process, shared_view
from nova_numa_ext.scheduler.shared_view import SharedView, snapshot_path
from placement_traits import snapshot_file
from placement_traits.snapshot import ViewState
from placement_traits.snapshot_file import MappedSnapshot
from placement_traits.view import FleetView
from tests.support.ports import free_port

HOSTS = 3
PASSWORD = "a-word-that-nobody-must-see"
OPTIONS = SchedulerOptions(view_refresh_interval=0.2, view_max_age=30.0, view_wait=60.0)
IMPATIENT = SchedulerOptions(view_refresh_interval=0.2, view_max_age=30.0, view_wait=0.05)


@pytest.fixture(scope="module")
def url():
    with placement(HOSTS) as (adapter, _providers, _server):
        yield adapter.get_endpoint()


@pytest.fixture
def controller(tmp_path, url):
    """nova-scheduler's configuration file, and workers that are ended with the test."""

    class Controller:
        def __init__(self, endpoint):
            self.started = []
            self.state_path = tmp_path / "nova"
            self.state_path.mkdir()
            self.file = tmp_path / "nova.conf"
            self.configure(endpoint)

        def configure(self, endpoint, state_path=None):
            self.file.write_text(
                textwrap.dedent(f"""
                    [DEFAULT]
                    state_path = {state_path or self.state_path}
                    [placement]
                    auth_type = admin_token
                    endpoint = {endpoint}
                    token = admin
                    password = {PASSWORD}
                    [numa_ext]
                    view_refresh_interval = 0.2
                    view_max_age = 30
                    view_wait = 60
                """)
            )
            CONF([], project="nova", default_config_files=[str(self.file)])

        def worker(self, options=OPTIONS):
            view = fleet.from_nova(CONF, options)
            self.started.append(view)
            return view

        @property
        def stem(self):
            endpoints.placement(CONF)
            folder = self.state_path / fleet.FOLDER
            return shared_view.stem(CONF, folder, view_settings(OPTIONS))

    made = Controller(url)
    yield made
    for view in made.started:
        view.stop()


def reader_of(view):
    return view._reader


def eventually(what, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


def test_all_workers_see_the_fleet_by_one_reader(controller):
    views = [controller.worker() for _ in range(3)]
    for view in views:
        shown = view.snapshot()
        assert (shown.state, len(shown.hosts)) == (ViewState.FRESH, HOSTS)
    assert [view._reader is not None for view in views] == [True, False, False]
    first = views[0].snapshot()
    assert views[0].snapshot().arrays is first.arrays
    file = snapshot_path(controller.stem)
    assert file.stat().st_mode & 0o777 == 0o640
    read_at_s = MappedSnapshot(file).read_at_s
    eventually(lambda: MappedSnapshot(file).read_at_s > read_at_s)


def test_metrics_of_all_workers_are_on_one_port_of_the_reader(controller):
    """Each worker is a process of its own; the counts of one that has gone go with it."""
    port = free_port()
    controller.file.write_text(f"{controller.file.read_text()}\nmetrics_port = {port}\n")
    CONF([], project="nova", default_config_files=[str(controller.file)])
    options = dataclasses.replace(OPTIONS, metrics_port=port)
    controller.worker(options).snapshot()
    context = multiprocessing.get_context("fork")
    counted = context.SimpleQueue()

    def work():
        kept = fleet.worker_metrics(CONF, options)
        kept.count(metrics.REFUSED, "tier", 7)
        kept.save()
        counted.put(True)
        time.sleep(600)

    workers = [context.Process(target=work, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
        counted.get()

    def scraped():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                return answer.read().decode().splitlines()
        except OSError:
            return []

    def refusals():
        return [line for line in scraped() if line.startswith(f"{metrics.REFUSED}_total")]

    lines = eventually(scraped)
    assert 'numa_ext_scheduler_view_state{state="fresh"} 1.0' in lines
    assert f"numa_ext_scheduler_view_hosts {float(HOSTS)}" in lines
    assert [line.rpartition(" ")[2] for line in refusals()] == ["7.0", "7.0"]
    workers[0].kill()
    workers[0].join()
    [left] = refusals()
    assert f'worker="{workers[1].pid}-' in left
    workers[1].kill()
    workers[1].join()


def test_nothing_secret_leaves_the_configuration_file(controller):
    view = controller.worker()
    view.snapshot()
    proc = Path("/proc") / str(reader_of(view).pid)
    assert PASSWORD not in (proc / "cmdline").read_text()
    assert PASSWORD not in (proc / "environ").read_text()
    assert str(controller.file) in (proc / "cmdline").read_text()
    for file in (controller.state_path / fleet.FOLDER).iterdir():
        assert PASSWORD.encode() not in file.read_bytes()


def test_nothing_starts_and_nothing_is_locked_before_the_first_look(controller):
    """nova-scheduler forks its workers first: a thread would be lost there, a lock would be everybody's."""
    threads = threading.active_count()
    view = controller.worker()
    assert threading.active_count() == threads
    assert list((controller.state_path / fleet.FOLDER).iterdir()) == []
    context = multiprocessing.get_context("fork")
    seen = context.SimpleQueue()

    def forked():
        seen.put(len(view.snapshot().hosts))
        view.stop()

    worker = context.Process(target=forked)
    worker.start()
    assert seen.get() == HOSTS
    worker.join()


def test_a_worker_has_a_view_before_its_first_request(controller):
    """Nova makes filter and weigher before it forks, so the worker begins by itself; its first request never waits."""
    CONF.set_override("view_wait", 0.05, "numa_ext")
    process.use(None)
    NumaExtFilter()
    context = multiprocessing.get_context("fork")
    seen = context.SimpleQueue()

    def work():
        view = eventually(lambda: getattr(process._process._engine, "_view", None))
        eventually(view._path.exists)
        shown = view.snapshot()
        seen.put((shown.state, len(shown.hosts)))
        view.stop()

    try:
        worker = context.Process(target=work)
        worker.start()
        assert seen.get() == (ViewState.FRESH, HOSTS)
        worker.join()
        assert process._process._engine is None  # in the parent
    finally:
        process.use(None)


def test_when_the_leading_worker_is_killed_another_leads_within_two_seconds(controller):
    context = multiprocessing.get_context("fork")
    pids = context.SimpleQueue()

    def lead():
        view = fleet.from_nova(CONF, OPTIONS)
        view.snapshot()
        pids.put(reader_of(view).pid)
        time.sleep(600)

    leader = context.Process(target=lead)
    leader.start()
    old = pids.get()
    next_one = controller.worker()
    next_one.snapshot()
    assert reader_of(next_one) is None
    killed_at = time.monotonic()
    os.kill(leader.pid, signal.SIGKILL)
    eventually(lambda: reader_of(next_one) is not None)
    assert time.monotonic() - killed_at <= 2.0
    leader.join()
    eventually(lambda: not Path(f"/proc/{old}/cmdline").exists() or not _running(old))
    file = snapshot_path(controller.stem)
    inode = MappedSnapshot(file).inode
    eventually(lambda: MappedSnapshot(file).inode != inode)
    assert len(next_one.snapshot().hosts) == HOSTS


def _running(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"


HANGING = """
    import sys, time
    from pathlib import Path
    from nova_numa_ext import view_reader
    class Hangs:
        def request(self, *_arguments, **_more):
            time.sleep(600)
    view_reader.run(Path(sys.argv[1]), Hangs(), None, 0.3)
"""


def test_a_reader_that_hangs_with_the_lock_ends_itself(controller, capfd):
    real = functools.partial(shared_view.start_reader, CONF, controller.stem)
    readers = []

    def first_hangs(lock):
        if readers:
            readers.append(real(lock))
        else:
            words = [sys.executable, "-c", textwrap.dedent(HANGING), str(controller.stem)]
            readers.append(subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(lock,)))
        return readers[-1]

    (controller.state_path / fleet.FOLDER).mkdir()
    view = SharedView(controller.stem, view_settings(OPTIONS), first_hangs)
    controller.started.append(view)
    assert len(view.snapshot().hosts) == HOSTS
    assert [reader.poll() for reader in readers] == [1, None]
    assert "in request" in capfd.readouterr().err, "the traceback says where it hung"


def test_a_reader_that_is_stopped_with_the_lock_is_killed_and_followed(controller, monkeypatch):
    """Its own watchdog is stopped with it; the worker that started it misses its beats."""
    leading, other = controller.worker(), controller.worker()
    assert [len(view.snapshot().hosts) for view in (leading, other)] == [HOSTS, HOSTS]
    stopped, file = reader_of(leading), snapshot_path(controller.stem)
    monkeypatch.setattr(shared_view, "_LOOKS_WITHOUT_BEAT", 2)
    stopped.send_signal(signal.SIGSTOP)
    inode = MappedSnapshot(file).inode
    eventually(lambda: stopped.poll() == -signal.SIGKILL, 20.0)
    # The next one takes its time to start.
    monkeypatch.setattr(shared_view, "_LOOKS_WITHOUT_BEAT", 30)
    eventually(lambda: MappedSnapshot(file).inode != inode)
    assert other.snapshot().state is ViewState.FRESH


def test_files_that_no_reader_keeps_any_more_are_removed(controller):
    """Of another release, cloud or setting: its lock is free, and nothing has been written for long."""
    folder = controller.stem.parent
    folder.mkdir()
    stems = [
        shared_view.stem(CONF, folder, view_settings(o)) for o in (IMPATIENT, SchedulerOptions())
    ]
    old, kept = stems[0], stems[1]
    young = folder / "view-00000000-000000000000"
    for stem in (old, kept, young):
        shared_view.lock_path(stem).touch()
        snapshot_path(stem).write_bytes(b"fleet")
    for stem in (old, kept):
        for path in folder.glob(f"{stem.name}.*"):
            os.utime(path, (0, 0))
    with shared_view.lock_path(kept).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        controller.worker().snapshot()
    left = {path.name.partition(".")[0] for path in folder.iterdir()}
    assert left == {kept.name, young.name, controller.stem.name}


def test_a_reader_that_cannot_live_is_started_more_and_more_rarely(controller, caplog):
    (controller.state_path / fleet.FOLDER).mkdir()
    started = []

    def dies(_lock):
        started.append(time.monotonic())
        return subprocess.Popen(
            [sys.executable, "-c", "raise SystemExit(3)"], stdin=subprocess.PIPE
        )

    now = [1000.0]
    view = SharedView(controller.stem, view_settings(IMPATIENT), dies, lambda: now[0])
    for _ in range(200):
        view._lead()
        if view._reader is not None:
            view._reader.wait()
        now[0] += 1.0
    assert 4 <= len(started) <= 10
    assert "has ended with 3" in caplog.text


def test_a_sighup_to_the_process_group_of_nova_scheduler_does_not_end_the_reader(controller):
    view = controller.worker()
    view.snapshot()
    reader, file = reader_of(view), snapshot_path(controller.stem)
    reader.send_signal(signal.SIGHUP)
    read_at_s = MappedSnapshot(file).read_at_s
    eventually(lambda: MappedSnapshot(file).read_at_s > read_at_s)
    assert reader.poll() is None


def test_a_mistake_written_after_the_start_keeps_no_reader_from_starting(controller, capfd):
    controller.file.write_text(f"{controller.file.read_text()}\nmode = sometimes\n")
    assert controller.worker().snapshot().state is ViewState.FRESH
    assert "[numa_ext]mode = sometimes in" in capfd.readouterr().err


def test_a_half_file_is_empty_until_the_reader_has_written_another(controller, caplog):
    (controller.state_path / fleet.FOLDER).mkdir()
    file = snapshot_path(controller.stem)
    file.write_bytes(b"NUMAVIEW and then the disk was full")
    view = SharedView(
        controller.stem, view_settings(IMPATIENT), lambda _lock: subprocess.Popen(["true"])
    )
    controller.started.append(view)
    for _ in range(3):
        assert view.snapshot().state is ViewState.EMPTY
    said = [each.message for each in caplog.records if "is not used" in each.message]
    assert said == [
        f"The view of Placement is empty: {file} is not used: it is shorter than a header."
    ]
    other = controller.worker()
    eventually(lambda: len(other.snapshot().hosts) == HOSTS)
    assert len(view.snapshot().hosts) == HOSTS


def test_after_a_restart_of_nova_scheduler_the_first_request_waits_for_nothing(controller):
    before = controller.worker()
    before.snapshot()
    before.stop()
    after = controller.worker()
    began = time.monotonic()
    assert len(after.snapshot().hosts) == HOSTS
    assert time.monotonic() - began < 2.0


def test_only_the_first_seconds_wait_for_a_placement_that_is_silent(controller):
    controller.configure("http://127.0.0.1:9")
    view = controller.worker(IMPATIENT)
    assert view.snapshot().state is ViewState.EMPTY
    began = time.monotonic()
    for _ in range(100):
        assert view.snapshot().state is ViewState.EMPTY
    assert time.monotonic() - began < 0.05 * 100 / 4


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_reading_that_is_not_of_our_time_is_stale(controller, jump_s, caplog):
    """The clock counts from the boot and nobody sets it; a container with a clock of its own must not trust it."""
    worker = controller.worker()
    worker.snapshot()
    (controller.state_path / fleet.FOLDER).mkdir(exist_ok=True)
    settings = view_settings(OPTIONS)
    odd = SharedView(controller.stem, settings, subprocess.Popen, lambda: worker._clock() + jump_s)
    controller.started.append(odd)
    shown = odd.snapshot()
    assert (shown.state, len(shown.hosts)) == (ViewState.STALE, HOSTS)


def test_a_wall_clock_that_jumps_changes_nothing(controller, monkeypatch):
    view = controller.worker()
    view.snapshot()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert view.snapshot().state is ViewState.FRESH


def test_clouds_regions_settings_and_releases_do_not_meet(controller, monkeypatch, url):
    def stem(options=OPTIONS):
        endpoints.placement(CONF)
        return shared_view.stem(CONF, Path("/"), view_settings(options)).name

    names = {stem(), stem(IMPATIENT)}
    CONF.set_override("region_name", "other", "placement")
    names.add(stem())
    controller.configure("http://other.cloud:8778")
    names.add(stem())
    CONF.set_override("endpoint_override", "http://third.cloud:8778", "placement")
    names.add(stem())
    monkeypatch.setattr(shared_view, "FORMAT", snapshot_file.FORMAT ^ 1)
    names.add(stem())
    assert len(names) == 6


def test_workers_without_a_common_volume_have_a_reader_each(controller, tmp_path, url):
    views = []
    for name in ("a", "b"):
        state_path = tmp_path / name
        state_path.mkdir()
        controller.configure(url, state_path)
        views.append(controller.worker())
    assert [len(view.snapshot().hosts) for view in views] == [HOSTS, HOSTS]
    assert len({reader_of(view).pid for view in views}) == 2


def test_without_any_folder_each_worker_reads_for_itself(controller, tmp_path, url, caplog):
    caplog.set_level(logging.WARNING)
    controller.configure(url, controller.file)
    view = controller.worker()
    assert isinstance(view, FleetView)
    assert len(view.snapshot().hosts) == HOSTS
    assert "Each worker of nova-scheduler reads Placement for itself" in caplog.text
