# SPDX-License-Identifier: Apache-2.0
"""Differences between releases of nova."""

import pytest

from nova_numa_ext.scheduler import compat


@pytest.mark.parametrize(
    ("release", "requested", "considered"),
    [(33, False, False), (33, True, True), (34, False, True), (34, True, True)],
)
def test_who_is_kept_away_from_devices(release, requested, considered):
    free = {0: 1}
    found = compat.devices_in_claim(free, requested=requested, release=release)
    assert found == (free if considered else None)


def test_the_release_is_one_that_we_know():
    assert compat.RELEASE in (33, 34)
