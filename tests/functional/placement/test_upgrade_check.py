# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-status upgrade check``: what stands between two releases, each by its cause."""

import json

import pytest

from nova_numa_ext import endpoints
from nova_numa_ext.cli import status_command
from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.store.database import Database
from placement_traits import formats, names
from tests.support.allocations import SPECS, server_on
from tests.support.faults import lose_request
from tests.support.job_hints import KEY, OTHER_KEY

STRICT = {
    "numa_ext:tier": "LC",
    "hw:cpu_policy": "dedicated",
    "hw:numa_nodes": "1",
    "numa_ext:interference_class": "rabbit",
    "resources:CUSTOM_RDT_CLOS": "1",
    "resources_NODE:CUSTOM_LLC_WAY": "4",
    "resources_NODE:CUSTOM_LLC_NEIGHBOURHOOD": "1000",
}


@pytest.fixture
def check(host, monkeypatch, capsys, tmp_path):
    """``numa-ext-status upgrade check`` over the two computes; returns status and details by check."""
    file = tmp_path / "nova.conf"
    file.write_text("[numa_ext]\n")
    monkeypatch.setattr(endpoints, "placement", lambda _conf: host.adapter)
    monkeypatch.setattr(endpoints, "compute", lambda _conf: host.api)
    monkeypatch.setenv(startup.CONFIG_VARIABLE, str(tmp_path / "jobs.conf"))

    def run():
        status = status_command.main([f"--config-file={file}", "upgrade", "check", "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return status, {each["check"]: each["details"] for each in checks if each["result"]}

    run.file = file  # type: ignore[attr-defined]
    return run


def flavor(host, name, specs):
    host.api.flavors.append(
        {"id": name, "name": name, "vcpus": 1, "ram": 512, "extra_specs": specs}
    )


def speak_first_format(host):
    """Leave both hosts as agents of the first format publish them."""
    for name in ("h1", "h2"):
        _replace_traits(host, name, lambda traits: traits - {formats.TRAIT})
        for l3 in range(4):
            path = f"/resource_providers/{host.cloud.uuid(f'{name}:l3_{l3}')}/inventories"
            body = host.cloud.client.get(path)
            del body["inventories"][names.LLC_NEIGHBOURHOOD]
            host.cloud.client.put(path, body)


def _replace_traits(host, name, change):
    path = f"/resource_providers/{host.cloud.uuid(name)}/traits"
    body = host.cloud.client.get(path)
    body["traits"] = sorted(change(set(body["traits"])))
    host.cloud.client.put(path, body)


def test_a_cloud_of_this_release_is_ready(host, check):
    flavor(host, "strict", STRICT)
    server = server_on(node=1)
    host.claim(server, l3=1)
    host.api.add(server)
    assert check() == (0, {})


def test_agents_of_the_first_format_are_a_warning_as_long_as_no_flavor_needs_more(host, check):
    speak_first_format(host)
    flavor(host, "plain", SPECS)
    status, found = check()
    assert (status, list(found)) == (1, ["Formats of hosts"])
    assert (
        "h1, h2: published in format 1 by agents of an earlier release" in found["Formats of hosts"]
    )
    flavor(host, "strict", STRICT)
    status, found = check()
    assert (status, list(found)) == (2, ["Formats of hosts", "Flavors"])
    assert "which no host offers" in found["Flavors"]


def test_a_class_that_only_newer_agents_make_does_not_stop_controllers_first(host, check):
    speak_first_format(host)
    host.cloud.client.delete(f"/resource_classes/{names.LLC_NEIGHBOURHOOD}")
    status, found = check()
    assert status == 1
    assert found["Placement"].startswith("CUSTOM_LLC_NEIGHBOURHOOD unknown")


def test_an_agent_of_a_later_release_stops_the_controllers(host, check):
    newer = names.numbered("FORMAT", formats.CURRENT + 1)
    host.cloud.traits(host.cloud.uuid("h2"), newer)
    status, found = check()
    assert (status, list(found)) == (2, ["Formats of hosts"])
    assert found["Formats of hosts"].startswith("h2: published in format 3 by agents of a later")


def test_servers_that_hold_other_amounts_are_counted(host, check):
    server = server_on(node=2)
    host.claim(server, l3=0)
    host.api.add(server)
    status, found = check()
    assert status == 1
    assert found["Allocations of servers"].startswith("1 hold other amounts")
    assert server.title in found["Allocations of servers"]


def test_a_flavor_that_is_not_allowed_any_more_is_named(host, check):
    flavor(host, "wrong", {"numa_ext:tier": "GOLD"})
    status, found = check()
    assert (status, list(found)) == (2, ["Flavors"])
    assert "GOLD" in found["Flavors"]


def test_an_option_that_is_gone_is_a_warning_and_a_wrong_one_a_failure(check):
    check.file.write_text("[numa_ext]\nview_refresh_intervall = 2\n[another_program]\nx = 1\n")
    status, found = check()
    assert status == 1
    assert found["[numa_ext] of nova.conf"].startswith(
        "this release does not read [numa_ext]view_refresh_intervall (view_refresh_interval was meant?)"
    )
    check.file.write_text("[numa_ext]\nmode = sometimes\n")
    status, found = check()
    assert status == 2
    assert "[numa_ext]mode = sometimes" in found["[numa_ext] of nova.conf"]


def test_without_placement_each_check_says_so_in_a_sentence(host, check):
    host.fault = lambda _method, _path: lose_request
    status, found = check()
    assert status == 2
    assert set(found) == {
        "Placement",
        "Formats of hosts",
        "Flavors",
        "Allocations of servers",
    }
    assert not [told for told in found.values() if "Traceback" in told or "\n" in told]


def test_without_a_command_the_usage_is_shown(capsys):
    with pytest.raises(SystemExit) as ended:
        status_command.main([])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_a_configuration_that_is_not_there_is_one_sentence(capsys):
    assert status_command.main(["--config-file=/nowhere.conf", "upgrade", "check"]) == 255
    assert capsys.readouterr().err.startswith("numa-ext-status: Failed to find some config files")


def test_the_job_service_of_this_controller_is_looked_at(check, tmp_path):
    conf, database = tmp_path / "jobs.conf", Database(f"sqlite:///{tmp_path}/jobs.db")
    conf.write_text(f"[database]\nconnection = sqlite:///{tmp_path}/jobs.db\n")
    status, found = check()
    assert status == 1
    assert found["Job service"].startswith("tables of jobs are not there, this release wants")
    database.sync()
    conf.write_text(f"{conf.read_text()}[numa_ext_jobs]\njob_hint_keys = {KEY}\n")
    check.file.write_text(f"[numa_ext]\njob_hint_keys = {KEY}\n")
    assert check() == (0, {})
    conf.write_text(f"{conf.read_text()}workres = 1\n")
    status, found = check()
    assert (status, "[numa_ext_jobs]workres (workers was meant?)" in found["Job service"]) == (
        1,
        True,
    )
    conf.write_text("[numa_ext_jobs]\nworkers = 0\n")
    status, found = check()
    assert (status, "[numa_ext_jobs]workers = 0" in found["Job service"]) == (2, True)


@pytest.mark.parametrize(
    ("engine", "scheduler", "sentence"),
    [
        ("", "", "there are no job_hint_keys"),
        ("", KEY, "[numa_ext_jobs]job_hint_keys is not set"),
        (KEY, "", "which nova-scheduler has not (it has none)"),
        (f"{OTHER_KEY},{KEY}", KEY, "which nova-scheduler has not"),
        (KEY, f"{OTHER_KEY},{KEY}", ""),
    ],
)
def test_engine_and_nova_scheduler_need_the_same_keys(check, tmp_path, engine, scheduler, sentence):
    """What the engine seals with, the scheduler opens; no key is shown."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    Database(url).sync()
    (tmp_path / "jobs.conf").write_text(
        f"[database]\nconnection = {url}\n[numa_ext_jobs]\njob_hint_keys = {engine}\n"
    )
    check.file.write_text(f"[numa_ext]\njob_hint_keys = {scheduler}\n")
    status, found = check()
    assert (status, sentence in found.get("Job service", "")) == (bool(sentence), True)
    assert KEY not in str(found)
