# SPDX-License-Identifier: Apache-2.0
"""Nova's functional test bed with our filter and weigher in its scheduler."""

import importlib.metadata
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

if "oslo_service" in sys.modules:
    raise pytest.UsageError("tests/in_nova needs a process of its own: pytest tests/in_nova")

# Nova 33's test fixtures expect eventlet; from 34 on they run with the threads that nova is moving to.
_RELEASE = int(importlib.metadata.version("nova").partition(".")[0])
os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1" if _RELEASE >= 34 else "0")

# Before anything else of nova or oslo: this import decides how threads work.
import nova.tests.functional  # noqa: E402
from keystoneauth1 import adapter, session, token_endpoint  # noqa: E402
from nova import test as nova_test  # noqa: E402
from nova.conf import CONF  # noqa: E402
from nova.scheduler.host_manager import HostManager  # noqa: E402
from nova.tests.fixtures.conf import ConfFixture  # noqa: E402
from nova.tests.functional.fixtures import PlacementFixture  # noqa: E402
from placement.context import RequestContext as PlacementContext  # noqa: E402

from emulation.made_once import (  # noqa: E402
    AliasesMadeOnce,
    SchemasCheckedOnce,
    SignaturesReadOnce,
    StatementsCompiledOnce,
)
from nova_numa_ext import conf as our_conf  # noqa: E402
from nova_numa_ext.fabrics import PlacementFabrics  # noqa: E402
from nova_numa_ext.policy.network.planner import plan  # noqa: E402
from nova_numa_ext.scheduler import process  # noqa: E402
from nova_numa_ext.scheduler.group_plan import GroupPlanner  # noqa: E402
from nova_numa_ext.scheduler.remote_gpus import RemoteGpuSource  # noqa: E402
from nova_numa_ext.scheduler.session import BeyondHosts, Engine  # noqa: E402
from placement_traits.client import PlacementClient  # noqa: E402
from placement_traits.journal import Journal  # noqa: E402
from tests.in_nova.cloud import LiveView  # noqa: E402
from tests.support.job_hints import KEY  # noqa: E402

SLOW_FILTERS = ("NUMATopologyFilter", "PciPassthroughFilter")
_PLUGINS = {
    "available_filters": "nova_numa_ext.scheduler.NumaExtFilter",
    "weight_classes": "nova_numa_ext.scheduler.NumaExtWeigher",
}


def _api_paste() -> str:
    """Where the wheel's data file is: beside the package or in the environment."""
    places = (Path(nova.__file__).parents[1], Path(sys.prefix))
    return str(next(file for p in places if (file := p / "etc/nova/api-paste.ini").exists()))


@pytest.fixture(autouse=True)
def ours_enabled(monkeypatch, tmp_path):
    """Every test: our plug-ins after all of nova's; the engine reads the test's own Placement::

    nova-api ── nova-conductor ── nova-scheduler            NumaExtFilter before nova's slow filters
                      │                 ├─ Engine ── journal   all of nova's weighers, then NumaExtWeigher
                      │                 └─ LiveView ─┐
                nova-compute (fake libvirt) ──── Placement in process
    """
    our_conf.register_opts(CONF)
    configure, place = ConfFixture.setUp, PlacementFixture.setUp
    load_filters = HostManager._load_filters

    def with_our_plugins(fixture):
        configure(fixture)
        fixture.conf.set_default("api_paste_config", _api_paste(), group="wsgi")
        for option, ours in _PLUGINS.items():
            novas = fixture.conf.filter_scheduler[option]
            fixture.conf.set_default(option, [*novas, ours], group="filter_scheduler")

    def with_our_engine(fixture):
        place(fixture)
        http = adapter.Adapter(
            session.Session(token_endpoint.Token(fixture.endpoint, fixture.token)),
            service_type="placement",
        )
        journal = Journal(tmp_path / "decisions.jsonl", 2**20, 1)
        options = replace(our_conf.read(CONF), job_hint_keys=(KEY,))
        groups = GroupPlanner(lambda: PlacementFabrics(PlacementClient(http)), plan)
        remote = RemoteGpuSource(http, 0.0, 3600.0)
        engine = Engine(CONF, options, LiveView(http), journal, beyond=BeyondHosts(groups, remote))
        process.use(engine)

    monkeypatch.setattr(ConfFixture, "setUp", with_our_plugins)
    monkeypatch.setattr(PlacementFixture, "setUp", with_our_engine)

    def with_our_filter(manager):
        enabled = load_filters(manager)
        if "NumaExtFilter" in enabled:
            return enabled
        slow = [at for at, name in enumerate(enabled) if name in SLOW_FILTERS]
        at = min(slow, default=len(enabled))
        names = [*enabled[:at], "NumaExtFilter", *enabled[at:]]
        CONF.set_override("enabled_filters", names, "filter_scheduler")
        return names

    monkeypatch.setattr(HostManager, "_load_filters", with_our_filter)
    # Placement runs in nova's thread here and would leave its own request as the current one.
    monkeypatch.setattr(PlacementContext, "update_store", lambda _self: None)
    monkeypatch.setattr(
        "placement.requestlog.context", SimpleNamespace(RequestContext=PlacementContext)
    )
    # It would take away what pytest has put on the test, too.
    monkeypatch.setattr(nova_test.TestCase, "_clear_attrs", lambda _self: None)
    with SchemasCheckedOnce(), AliasesMadeOnce(), SignaturesReadOnce(), StatementsCompiledOnce():
        yield
    process.use(None)
