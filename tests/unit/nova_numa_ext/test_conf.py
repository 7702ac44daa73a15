# SPDX-License-Identifier: Apache-2.0
"""Options: each explained, each registered, each term with a multiplier."""

from oslo_config import cfg

from nova_numa_ext.conf import GROUP, OPTIONS, list_opts, register_opts
from nova_numa_ext.policy.numa.score import SCORED


def test_every_option_says_what_it_is_for():
    assert all(len(option.help.strip()) > 40 for option in OPTIONS)


def test_options_register_twice_without_harm_and_are_listed_for_the_sample():
    conf = cfg.ConfigOpts()
    register_opts(conf)
    register_opts(conf)
    conf([])
    assert conf[GROUP].on_error == "pass"
    assert list_opts() == [(GROUP, OPTIONS)]


def test_every_term_of_the_score_has_a_multiplier():
    names = {option.name for option in OPTIONS}
    assert {f"{term}_multiplier" for term in SCORED} <= names
