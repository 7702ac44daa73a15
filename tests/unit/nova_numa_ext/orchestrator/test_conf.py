# SPDX-License-Identifier: Apache-2.0
"""Options of the engine that decide which leases move."""

import pytest

from nova_numa_ext.orchestrator import conf, startup
from nova_numa_ext.policy.remote_gpu.making_room import UsePolicy
from placement_traits.oslo_options import ConfigurationError


@pytest.fixture
def read(tmp_path):
    def of(text):
        file = tmp_path / "jobs.conf"
        file.write_text(f"[numa_ext_jobs]\n{text}\n")
        return conf.read(startup.configured([str(file)])).engine

    return of


def test_a_policy_that_is_not_there_is_refused_at_the_start(read):
    """F-002-88."""
    for policy in UsePolicy:
        assert read(f"remote_gpu_by_use = {policy}").remote_gpu_by_use is policy
    with pytest.raises(ConfigurationError, match="remote_gpu_by_use"):
        read("remote_gpu_by_use = hottest")


def test_speeds_are_numbers_of_models(read):
    assert read("remote_gpu_speeds = k20:100,p100:338").remote_gpu_speeds == {
        "k20": 100,
        "p100": 338,
    }
    with pytest.raises(ConfigurationError, match="remote_gpu_speeds"):
        read("remote_gpu_speeds = k20:fast")
