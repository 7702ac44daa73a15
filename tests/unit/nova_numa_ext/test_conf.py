# SPDX-License-Identifier: Apache-2.0
"""Options: each explained, each registered, each term with a multiplier."""

from oslo_config import cfg

from nova_numa_ext.conf import GROUP, SchedulerOptions, list_opts, read, register_opts
from nova_numa_ext.policy.numa.score import SCORED


def test_every_option_says_what_it_is_for():
    [(group, options)] = list_opts()
    assert group == GROUP
    assert all(len(option.help.strip()) > 40 for option in options)


def test_options_register_twice_without_harm_and_have_the_defaults_of_the_dataclass():
    conf = cfg.ConfigOpts()
    register_opts(conf)
    register_opts(conf)
    conf([])
    assert read(conf) == SchedulerOptions()


def test_a_mistake_in_one_option_is_logged_and_the_others_count(tmp_path, caplog):
    """A misspelt weight must not keep every server of the cloud from being scheduled."""
    file = tmp_path / "nova.conf"
    file.write_text(f"[{GROUP}]\non_error = refuse\nways_multiplier = much\n")
    conf = cfg.ConfigOpts()
    register_opts(conf)
    conf([], default_config_files=[str(file)])
    assert read(conf) == SchedulerOptions(on_error="refuse")
    (record,) = caplog.records
    assert f"[{GROUP}]ways_multiplier = much in {file}" in record.getMessage()


def test_every_term_of_the_score_has_a_multiplier():
    assert all(SchedulerOptions().multiplier(term) > 0 for term in (*SCORED, "weight"))
