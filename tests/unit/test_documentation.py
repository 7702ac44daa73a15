# SPDX-License-Identifier: Apache-2.0
"""What users type is in the documentation, each thing under its own name."""

import re
from pathlib import Path

import pytest

from placement_traits.names import Key
from placement_traits.request import EXTRA_SPECS, InvalidRequestError, parse

USER_GUIDE = Path(__file__).parents[2] / "doc/source/user"
PAGE = (USER_GUIDE / "extra-specs.rst").read_text()
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


def table_of_keys() -> str:
    """The table of all keys as the user guide shows it: plain text, readable where the page is not built."""
    rows = [("key", "allowed", "default", "meaning")]
    rows += [
        (f"``{key}``", spec.allowed, spec.default, spec.description)
        for key, spec in EXTRA_SPECS.items()
    ]
    items = "".join("   * - " + "\n     - ".join(row) + "\n" for row in rows)
    return f".. list-table::\n   :header-rows: 1\n   :widths: 25 25 20 30\n\n{items}"


def test_the_table_of_keys_is_current() -> None:
    """A key, value or default that changes in the code changes there: print ``table_of_keys()`` into the page."""
    page = (USER_GUIDE / "flavors.rst").read_text()
    (shown,) = re.findall(r"^\.\. list-table::\n(?:(?:   .*)?\n)*?(?=\n\S)", page, re.M)
    assert shown == table_of_keys()
