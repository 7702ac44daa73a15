# SPDX-License-Identifier: Apache-2.0
"""Extra specs that a part of a job may add to those of its flavor.

A server is made of its flavor: Placement counts, nova-compute builds and the host agent enforces what stands there. A
part may add only what nova-scheduler alone decides, which learns of it by a scheduler hint. What the operator has set
in the flavor stays as it is, and the tier, for which other jobs may have to stop, is the operator's.

What servers request of the network makes a group of them where it binds, or where no two may be on one host anyway. A
part may request less than its flavor: a group that shares more, or smaller slices.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from placement_traits import request
from placement_traits.errors import cut
from placement_traits.names import Key, UplinkShare
from placement_traits.network_request import HINTS, NetworkRequest, network_request
from placement_traits.request import InvalidRequestError

_SEALED_KEYS: Final = frozenset({Key.GPU_POLICY, Key.GPU_COMM, Key.MIN_UTILITY})
PART_KEYS: Final = _SEALED_KEYS | {Key.NET_WITHIN, Key.NET_SHARE, Key.NET_SLICE}
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
    return {key: value for key, value in extra_specs.items() if key in _SEALED_KEYS}


def group_hints(extra_specs: Mapping[str, str]) -> dict[str, str]:
    """Return what nova-scheduler learns of a group on the fabric: hints that it knows of any user."""
    return {name: extra_specs[key] for name, key in HINTS.items() if key in extra_specs}


def group_of(extra_specs: Mapping[str, str], count: int, *, apart: bool) -> NetworkRequest | None:
    """Return what the servers of a part request of the fabric as one group, None where they are no group.

    :param extra_specs: of the flavor, with those that the part adds
    :param count: servers of the part
    :param apart: no two of them may be on one host
    :raises InvalidRequestError: a value is not allowed
    """
    found = network_request(extra_specs)
    if found is None or not (apart or (found.binds and count > 1)):
        return None
    return found


def _problems(flavor: Mapping[str, str], added: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(added.items()):
        wrong = None if key in _FLAVOR_KEYS else request.problem(key, value)
        if wrong is not None:
            yield wrong
        elif key not in PART_KEYS:
            allowed = ", ".join(sorted(PART_KEYS))
            yield f"{cut(key)} is for flavors only; a part of a job may set: {allowed}."
        elif key in flavor and flavor[key] != value and not _is_less(Key(key), flavor[key], value):
            yield f"{cut(key)}={cut(value)} is not allowed: the flavor sets {cut(flavor[key])}."
        elif key == Key.NET_SHARE and key not in flavor and value != UplinkShare.SHARED:
            yield f"{cut(key)}={cut(value)} is not allowed: the flavor does not set it."


def _is_less(key: Key, of_flavor: str, value: str) -> bool:
    """Return whether a part requests less of the network than its flavor; both values are valid."""
    if key is Key.NET_SHARE:
        shares = list(UplinkShare)
        return shares.index(UplinkShare(value)) < shares.index(UplinkShare(of_flavor))
    return key is Key.NET_SLICE and int(value) < int(of_flavor)
