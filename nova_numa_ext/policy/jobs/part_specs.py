# SPDX-License-Identifier: Apache-2.0
"""Extra specs that a part of a job may add to those of its flavor.

A server is made of its flavor: Placement counts, nova-compute builds and the host agent enforces what stands there. A
part may add only what nova-scheduler alone decides, which learns of it by a scheduler hint. What the operator has set
in the flavor stays as it is, and the tier, for which other jobs may have to stop, is the operator's.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from placement_traits import request
from placement_traits.errors import cut
from placement_traits.names import Key
from placement_traits.request import InvalidRequestError

PART_KEYS: Final = frozenset({Key.GPU_POLICY, Key.GPU_COMM, Key.MIN_UTILITY})
_FLAVOR_KEYS: Final = frozenset(Key) - PART_KEYS


def of_part(flavor: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return what a part requests: the extra specs of its flavor, and those that it adds.

    :raises InvalidRequestError: a key that a part may not set, or a value that is not allowed
    """
    problems = tuple(_problems(flavor, added))
    if problems:
        raise InvalidRequestError(problems[: request.MOST_PROBLEMS])
    return {**flavor, **added}


def for_scheduler(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Return those extra specs of a part that nova-scheduler has to learn, whether its flavor has them or not."""
    return {key: value for key, value in extra_specs.items() if key in PART_KEYS}


def _problems(flavor: Mapping[str, str], added: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(added.items()):
        wrong = None if key in _FLAVOR_KEYS else request.problem(key, value)
        if wrong is not None:
            yield wrong
        elif key not in PART_KEYS:
            allowed = ", ".join(sorted(PART_KEYS))
            yield f"{cut(key)} is for flavors only; a part of a job may set: {allowed}."
        elif key in flavor and flavor[key] != value:
            yield f"{cut(key)}={cut(value)} is not allowed: the flavor sets {cut(flavor[key])}."
