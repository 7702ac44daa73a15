# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-manage`` on real databases, and a sentence for each configuration that cannot be used."""

import os
import subprocess
import uuid

import pytest

from benchmarks import mariadb
from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.manage import main
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.jobs.terms import JobTerm
from nova_numa_ext.policy.remote_gpu import leases as life
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.oslo_options import ConfigurationError
from placement_traits.reason import Reason
from tests.support.documented_commands import ROOT, commands
from tests.support.jobs_database import new_job

PAGE = ROOT / "doc/source/operator/jobs.rst"
PLACEMENT = (
    "[placement]\nauth_type = password\nauth_url = http://k/v3\nusername = jobs\npassword = s\n"
)
APPLICATION = (
    "[placement]\nauth_type = v3applicationcredential\nauth_url = http://k/v3\n"
    "application_credential_id = a\napplication_credential_secret = s\n"
)


def of_database(url):
    return f"[database]\nconnection = {url}\n"


def test_tables_are_made_once_and_again_does_nothing(empty_url, configure, capsys):
    conf = configure(of_database(empty_url))
    assert main([conf, "db", "version"]) == 1
    assert "There are no tables; this release wants version" in capsys.readouterr().out
    for _ in range(2):
        assert main([conf, "db", "sync"]) == 0
    newest = Database(empty_url).version()[1]
    assert capsys.readouterr().out == f"The tables have version {newest}.\n" * 2
    assert main([conf, "db", "version"]) == 0
    assert "which this release wants" in capsys.readouterr().out


def test_what_the_page_shows_succeeds_as_it_is_typed(url, configure, capsys):
    """On a database that is there; what asks Keystone and Placement, too, test_recover.py runs."""
    conf = configure(of_database(url))
    shown = [each.words[1:] for each in commands(PAGE) if each.program == "numa-ext-manage"]
    elsewhere = {("recover",), ("recover", "--commit")}
    here = [each for each in shown if each not in elsewhere]
    assert {each[0] for each in here} == {"db", "purge", "recover"}
    for words in here:
        assert main([conf, *words]) == 0
        assert capsys.readouterr().out


def test_a_backup_is_made_and_loaded_as_the_page_says(server):
    """Of a database that is in use: its tables, what is in them, and their version."""
    name = f"backup_{uuid.uuid4().hex}"
    mariadb.create(server, name)
    database = Database(server.url.format(name))
    database.sync()
    jobs = Jobs(database)
    first = jobs.create(new_job("Gräte 🐟"))
    login = ("--no-defaults", f"--socket={server.socket}", "--user=root")

    def run(words, **more):
        program, *options = [name if word == "numa_ext" else word for word in words]
        command = (program, *login, *options)
        return subprocess.run(command, check=True, capture_output=True, **more).stdout

    shown = [each.words for each in commands(PAGE) if each.program.startswith("mariadb")]
    (dump, load) = shown
    backup = run(dump)
    later = jobs.create(new_job("later"))
    jobs.set(first, Actor("u"), (Reason(JobTerm.HELD, "u"),), held=True)
    run(load, input=backup)
    assert database.version()[0] == database.version()[1]
    assert [jobs.read(each.uuid) for each in (first, later)] == [first, None]
    assert [each.what for each in jobs.events(first)] == ["state"]


def test_only_jobs_that_ended_long_ago_are_purged(url, configure, capsys):
    conf, jobs = configure(of_database(url)), Jobs(Database(url))
    waits, ended = jobs.create(new_job("waits")), jobs.create(new_job("ended"))
    jobs.move(ended, JobState.CANCELLED, (Reason(JobTerm.CANCELLED, "u"),), Actor("u"))
    assert main([conf, "purge", "--older-than", "1"]) == 0
    assert capsys.readouterr().out.startswith("Deleted 0 jobs that ended more than 1 d ago")
    assert main([conf, "purge", "--older-than", "0"]) == 0
    assert capsys.readouterr().out.startswith("Deleted 1 job that")
    assert [job.uuid for job in jobs.find()] == [waits.uuid]


def test_leases_that_ended_are_purged_with_jobs(url, configure, capsys):
    leases = Leases(Database(url))
    spec = LeaseSpec(1, ServiceLevel.GOLD, RemoteGpuApi.CUDA)
    lives, ended = (leases.create("p", "u", spec) for _ in range(2))
    leases.change(leases.change(ended, life.release, Actor("u")), life.end, Actor("u"))
    assert main([configure(of_database(url)), "purge", "--older-than", "0"]) == 0
    out = capsys.readouterr().out
    assert "\nDeleted 1 lease that ended" in out
    assert "with the jobs of which none is left" in out
    assert leases.find() == [lives]
    assert [each.uuid for each in Jobs(Database(url)).find()] == [lives.job]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "[database]connection is not set"),
        ("[database]\nconnection = mysql:\n", "[database]connection"),
        ("[database]\nconnection = oracel://u:secret@h/x\n", "[database]connection"),
        ("[database]\nconnection = sqlite://\nmax_retries = many\n", "max_retries"),
        ("[numa_ext_jobs]\nworkers = 0\n", "[numa_ext_jobs]workers = 0"),
        ("no section\n", "no section"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_a_sentence(configure, capsys, text, sentence):
    assert main([configure(text), "db", "sync"]) == os.EX_CONFIG
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("numa-ext-manage: ")
    assert sentence in error
    assert "secret" not in error


def test_a_file_that_is_not_there_is_named(capsys, tmp_path):
    assert main([f"--config-file={tmp_path}/none", "db", "sync"]) == os.EX_CONFIG
    assert f"{tmp_path}/none" in capsys.readouterr().err


def test_a_database_that_does_not_answer_is_no_fault_of_the_configuration(configure, capsys):
    conf = configure(of_database("mysql+pymysql://u:secret@127.0.0.1:1/x") + "max_retries = 0\n")
    assert main([conf, "db", "sync"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "secret" not in error


def test_a_process_reads_the_files_that_the_environment_names_and_no_arguments(
    tmp_path, monkeypatch
):
    """Below a WSGI server, ``sys.argv`` holds the server's options."""
    first, second = tmp_path / "1.conf", tmp_path / "2.conf"
    first.write_text("[numa_ext_jobs]\nworkers = 3\nwatchers = 3\n")
    second.write_text("[numa_ext_jobs]\nworkers = 5\n")
    monkeypatch.setenv(startup.CONFIG_VARIABLE, f"{first}:{second}")
    monkeypatch.setattr("sys.argv", ["gunicorn", "--workers", "4", "--config-file", "none"])
    conf = startup.configured()
    assert (conf.numa_ext_jobs.workers, conf.numa_ext_jobs.watchers) == (5, 3)


def test_the_user_that_acts_for_users_is_that_of_placement(tmp_path):
    file = tmp_path / "jobs.conf"
    file.write_text(f"{PLACEMENT}user_domain_name = Default\nproject_name = service\n")
    trusts = startup.trusts(startup.configured([str(file)]))
    assert trusts._credentials == {
        "auth_url": "http://k/v3",
        "username": "jobs",
        "password": "s",
        "user_domain_name": "Default",
    }
    assert trusts._transport.timeout == 10.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "auth_type is not set"),
        (APPLICATION, "auth_type = v3applicationcredential in"),
        ("[placement]\nauth_type = pasword\n", "pasword"),
        (f"{PLACEMENT}user_id = $none\n", "[placement]"),
    ],
)
def test_a_service_without_a_password_can_use_no_trust(tmp_path, text, sentence):
    file = tmp_path / "jobs.conf"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        startup.trusts(startup.configured([str(file)]))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
