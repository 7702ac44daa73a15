# SPDX-License-Identifier: Apache-2.0
"""What a decision takes in the journal is what the documentation says."""

import re
from pathlib import Path

import pytest
from nova.conf import CONF

from benchmarks import nova_scheduler
from benchmarks.cloud import FLAVORS, Cloud
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.scheduler import fleet, session
from placement_traits.journal import Journal

ROOT = Path(__file__).resolve().parents[3]
HOSTS = 200  # more than the short list has
SENTENCE = re.compile(
    r"with four candidates per host is (\d+) kB at the default of (\d+) where a short list is made; the (\d+) MiB of "
    r"four journals hold ([\d,]+) of them"
)


@pytest.mark.usefixtures("nova_configuration")
def test_the_documentation_says_how_many_decisions_the_journals_hold(monkeypatch, tmp_path):
    text = " ".join((ROOT / "doc/source/operator/decisions.rst").read_text().split())
    kilobytes, hosts, mebibytes, decisions = (
        int(number.replace(",", "")) for number in SENTENCE.search(text).groups()
    )
    options = SchedulerOptions()
    assert hosts == options.journal_hosts
    assert (options.journal_backups, options.journal_max_mb * 4) == (3, mebibytes)
    monkeypatch.setattr(fleet, "from_nova", fleet.from_nova)
    CONF.set_override("service_down_time", 10**9)
    cloud, path = Cloud(HOSTS, 1), tmp_path / "decisions.jsonl"
    scheduler = nova_scheduler.Scheduler(cloud, ours=True)
    scheduler.engine = session.Engine(CONF, options, cloud, Journal(path, 2**24, 1))
    asked = 4
    for number in range(asked):
        assert scheduler.schedule(number, FLAVORS[0]).selected
    size = path.stat().st_size / asked
    assert size / 1000 == pytest.approx(kilobytes, rel=0.1)
    assert mebibytes * 2**20 / size == pytest.approx(decisions, rel=0.1)
