# SPDX-License-Identifier: Apache-2.0
"""In which order processes that share the tests take whole files."""

from collections import Counter
from collections.abc import Sequence

import pytest


def in_order(items: Sequence[pytest.Item], first: Sequence[str]) -> list[pytest.Item]:
    """Return the tests with some files first, then those of the other files, the ones with many tests first.

    A file that takes long and is begun last is what all other processes wait for.

    :param first: paths from the root of the checkout
    """
    place = {file: number for number, file in enumerate(first)}
    tests = Counter(map(_file, items))

    def key(item: pytest.Item) -> tuple[int, int]:
        file = _file(item)
        return place.get(file, len(place)), -tests[file]

    return sorted(items, key=key)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
