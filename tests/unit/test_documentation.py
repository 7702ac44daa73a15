# SPDX-License-Identifier: Apache-2.0
"""What users type is in the documentation, each thing under its own name."""

import re
from pathlib import Path

import pytest

from nova_numa_ext.request import InvalidRequestError, parse
from placement_traits.names import Key

PAGE = (Path(__file__).parents[2] / "doc/source/user/extra-specs.rst").read_text()
SECTIONS = dict(re.findall(r"^``(numa_ext:\w+)``\n=+\n(.*?)(?=^``numa_ext:|\Z)", PAGE, re.M | re.S))


def test_every_extra_spec_has_a_section() -> None:
    """Issue 3: user page per extra spec with an example."""
    assert set(SECTIONS) == set(Key)


@pytest.mark.parametrize("key", sorted(Key))
def test_every_example_holds_its_key_and_no_value_that_is_refused(key: Key) -> None:
    (example,) = re.findall(r"^::\n\n((?:    .*\n)+)", SECTIONS[key], re.M)
    specs = dict(word.split("=", 1) for word in example.split())
    assert key in specs
    try:
        parse(specs, vcpus=2, memory_mb=512)
    except InvalidRequestError as error:
        pytest.fail(str(error))
