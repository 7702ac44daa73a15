# SPDX-License-Identifier: Apache-2.0
"""Options: each explained, each registered, each term with a multiplier."""

import pytest
from oslo_config import cfg

from nova_numa_ext.conf import GROUP, SchedulerOptions, list_opts, read, register_opts
from nova_numa_ext.policy.numa.score import SCORED
from placement_traits.oslo_options import ConfigurationError


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


def test_a_mistake_is_told_with_the_option_and_the_file(tmp_path):
    """nova-scheduler does not start with it: a misspelt weight would place every server of the cloud."""
    file = tmp_path / "nova.conf"
    file.write_text(f"[{GROUP}]\non_error = refuse\nways_multiplier = much\n")
    conf = cfg.ConfigOpts()
    register_opts(conf)
    conf([], default_config_files=[str(file)])
    with pytest.raises(ConfigurationError, match=rf"\[{GROUP}\]ways_multiplier = much in {file}"):
        read(conf)


def test_every_term_of_the_score_has_a_multiplier():
    assert all(SchedulerOptions().multiplier(term) > 0 for term in (*SCORED, "weight"))
