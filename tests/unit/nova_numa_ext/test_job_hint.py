# SPDX-License-Identifier: Apache-2.0
"""What the job service seals, nova-scheduler opens; no one else does either."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_numa_ext.job_hint import LASTS_S, HintError, HintKeys, hint_keys
from placement_traits.errors import InvalidValueError
from tests.support.job_hints import KEY, KEYS, OTHER_KEY, job_hint

HINT = job_hint("host-1", "host-2", spare=("host-3",), extra_specs={"numa_ext:gpu_comm": "4"})
NOW = 1_700_000_000.5


def test_a_hint_is_what_it_was():
    assert KEYS.opened(KEYS.seal(HINT, NOW), NOW) == HINT


def test_its_owner_learns_no_host_from_it():
    """Nova shows it since microversion 2.100."""
    text = KEYS.seal(HINT, NOW)
    padded = text + "=" * (-len(text) % 4)
    assert b"host-1" not in base64.urlsafe_b64decode(padded)


def test_it_counts_for_an_hour_where_its_age_counts():
    text = KEYS.seal(HINT, NOW)
    assert KEYS.opened(text, NOW + LASTS_S) == HINT
    with pytest.raises(HintError, match="older than 3600 s"):
        KEYS.opened(text, NOW + LASTS_S + 1)
    assert KEYS.opened(text, None) == HINT


def test_keys_change_without_a_gap():
    both = hint_keys([KEY, OTHER_KEY], "numa_ext")
    new = hint_keys([OTHER_KEY], "numa_ext_jobs")
    assert both.opened(new.seal(HINT, NOW), NOW) == both.opened(KEYS.seal(HINT, NOW), NOW) == HINT
    with pytest.raises(HintError):
        new.opened(KEYS.seal(HINT, NOW), NOW)


def test_without_a_key_no_hint_counts():
    with pytest.raises(HintError, match="job_hint_keys is not set"):
        HintKeys().opened(KEYS.seal(HINT, NOW), NOW)


@given(st.text() | st.binary().map(lambda found: base64.urlsafe_b64encode(found).decode()))
def test_what_users_make_up_is_no_hint(text):
    with pytest.raises(HintError):
        KEYS.opened(text, NOW)


@given(st.integers(0), st.integers(1, 255))
def test_a_hint_with_any_changed_byte_is_none(at, change):
    found = bytearray(base64.urlsafe_b64decode(KEYS.seal(HINT, NOW)))
    found[at % len(found)] ^= change
    with pytest.raises(HintError):
        KEYS.opened(base64.urlsafe_b64encode(found).decode(), NOW)


@pytest.mark.parametrize("text", ["", "secret", KEY[:-4], "é" * 44])
def test_a_key_that_is_none_is_named_and_not_shown(text):
    with pytest.raises(InvalidValueError) as raised:
        hint_keys([KEY, text], "numa_ext")
    assert "[numa_ext]job_hint_keys" in str(raised.value)
    assert KEY not in str(raised.value)
    assert not text or text not in str(raised.value)
