# SPDX-License-Identifier: Apache-2.0
"""Differences between releases of nova."""

import subprocess
import sys

import pytest
from nova import version
from nova.objects import service

from nova_numa_ext.scheduler import compat


@pytest.mark.parametrize(
    ("release", "requested", "considered"),
    [(33, False, False), (33, True, True), (34, False, True), (34, True, True)],
)
def test_who_is_kept_away_from_devices(release, requested, considered):
    free = {0: 1}
    found = compat.devices_in_claim(free, requested=requested, release=release)
    assert found == (free if considered else None)


def test_the_release_is_that_of_novas_package_where_it_was_built_of_a_tag():
    assert int(version.version_string().partition(".")[0]) == compat.RELEASE


@pytest.mark.parametrize(("service_version", "release"), [(71, 33), (72, 33), (73, 34), (74, 34)])
def test_the_release_follows_from_novas_code(service_version, release):
    assert compat.release_of(service_version) == release


def test_the_last_service_version_of_33_is_novas():
    aliases = service.SERVICE_VERSION_ALIASES
    assert compat.release_of(aliases["Gazpacho"]) == 33
    assert compat.release_of(aliases["Gazpacho"] + 1) == 34


def test_a_nova_that_was_built_without_tags_is_not_taken_for_an_old_one():
    program = (
        "from nova import version; version.version_info.version = '0.0.1.dev7'; "
        "version.version_string = lambda: '0.0.1.dev7'; "
        "from nova_numa_ext.scheduler import compat; print(compat.RELEASE)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert int(found.stdout) == compat.RELEASE
