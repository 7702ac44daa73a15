# SPDX-License-Identifier: Apache-2.0
"""A misspelt key of the job service's configuration is logged when a process starts."""

import os
import re
from pathlib import Path

import pytest

from nova_numa_ext.orchestrator import known_options, service, startup
from placement_traits import unknown_options
from placement_traits.oslo_options import ConfigurationError

SAMPLE = Path(__file__).parents[4] / "etc/numa-ext-jobs/numa-ext-jobs.conf.sample"


@pytest.fixture
def configure(tmp_path):
    def write(text):
        file = tmp_path / "jobs.conf"
        file.write_text(text)
        return str(file)

    return write


def reported(file, caplog):
    caplog.clear()
    known_options.report(startup.configured([file]))
    return [each.getMessage().removesuffix(f" in {file}") for each in caplog.records]


def test_keys_that_nothing_reads_are_logged_with_what_may_have_been_meant(configure, caplog):
    file = configure(
        "[numa_ext_jobs]\nworker = 4\nworkers = 4\n[database]\nconection = sqlite://\n"
        "[placement]\nusrname = jobs\nauth_type = password\n[keystone_authtokn]\nauth_url = x\n"
    )
    assert reported(file, caplog) == [
        "unknown in the configuration: [numa_ext_jobs]worker (workers was meant?)",
        "unknown in the configuration: [database]conection (connection was meant?)",
        "unknown in the configuration: [placement]usrname (username was meant?)",
        "unknown in the configuration: [keystone_authtokn] (keystone_authtoken was meant?)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[DEFAULT]\ndebug = true\ntransport_url = rabbit://\nuse_stderr = true\n",
        "[database]\nconnection = sqlite://\nmax_pool_size = 9\nmysql_sql_mode = TRADITIONAL\n",
        "[placement]\nauth_type = password\npassword = x\nregion_name = R\ntimeout = 9\n",
        "[keystone_authtoken]\nauth_type = password\npassword = x\nmemcached_servers = m:1\n",
        "[keystone_authtoken]\nauth_section = users\n[users]\nauth_type = password\nauth_url = x\n",
        "[keystone_authtoken]\nauth_section = placement\nservice_token_roles_required = true\n",
        "[healthcheck]\nbackends = disable_by_file\n[oslo_policy]\npolicy_file = p\n",
    ],
)
def test_keys_of_libraries_are_known(configure, caplog, text):
    assert reported(configure(text), caplog) == []


def test_every_option_of_the_sample_is_known(configure, caplog):
    """Each with the value that the sample shows, where it shows one."""
    text = re.sub(r"^#(\w+ = \S.*)$", r"\1", SAMPLE.read_text(), flags=re.M)
    file = configure(text)
    known = known_options.options(startup.configured([configure("")]))
    assert list(unknown_options.keys([file], known)) == []


def test_a_value_that_refers_to_no_option_is_one_sentence(configure):
    conf = startup.configured([configure("[placement]\nauth_type = $passwrd\n")])
    with pytest.raises(ConfigurationError, match=r"^\[placement\]: "):
        known_options.report(conf)


def test_the_engine_logs_them_before_it_ends_for_what_they_leave_out(
    configure, caplog, monkeypatch
):
    monkeypatch.setattr(startup, "log_to", lambda _conf: None)
    file = configure("[database]\nconection = sqlite://\n")
    assert service.main([f"--config-file={file}"]) == os.EX_CONFIG
    assert "[database]conection (connection was meant?)" in caplog.text
