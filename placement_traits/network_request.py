# SPDX-License-Identifier: Apache-2.0
"""What a server group requests of the network: the flavor sets defaults and bounds, scheduler hints choose within them.

Nova keeps hints as they are given and checks none, so they are checked here::

    flavor  numa_ext:net_share=quiet     the most that may be asked for, and what is asked for without a hint
    hint    numa_ext_share=shared        less is always allowed

    flavor  numa_ext:net_within=pod      each group must fit into one pod
    hint    numa_ext_within=leaf         narrower is always allowed

    flavor  numa_ext:net_slice=8         so many servers together on a leaf
    hint    numa_ext_slice=4             smaller slices are always allowed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from placement_traits.errors import cut
from placement_traits.names import Key, NetClass, Tier, UplinkShare
from placement_traits.request import EXTRA_SPECS, InvalidRequestError

HINT_PREFIX: Final = "numa_ext_"
HINTS: Final[Mapping[str, Key]] = MappingProxyType(
    {
        "numa_ext_within": Key.NET_WITHIN,
        "numa_ext_share": Key.NET_SHARE,
        "numa_ext_slice": Key.NET_SLICE,
    }
)
KEYS: Final = frozenset(
    {Key.NET_WITHIN, Key.NET_SHARE, Key.NET_SLICE, Key.NET_BALANCE, Key.NET_CLASS}
)
_SHARES: Final = tuple(UplinkShare)


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """What is requested for a group of servers, each on a host of its own.

    :param within: level of the fabric below one node of which all servers must be, '' for any
    :param bound: the same as the flavor demands it; ``within`` must be no wider
    :param share: with whom the group shares the uplinks of its leafs
    :param slice_size: servers that must be on one leaf; the number of servers is a multiple of it
    :param balance: each leaf of the group has as many of its servers
    :param net_class: how much each server uses the network
    """

    within: str = ""
    bound: str = ""
    share: UplinkShare = UplinkShare.SHARED
    slice_size: int = 1
    balance: bool = False
    net_class: NetClass = NetClass.MODERATE

    @property
    def claims(self) -> bool:
        """Leafs are claimed in Placement."""
        return self.share is not UplinkShare.SHARED

    @property
    def binds(self) -> bool:
        """The group is refused where it cannot have this; else it is only packed as well as can be."""
        return self.claims or bool(self.within) or self.slice_size > 1 or self.balance


def network_request(
    extra_specs: Mapping[str, str], hints: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> NetworkRequest | None:
    """Return what flavor and hints request of the network, None when they say nothing about it.

    :param extra_specs: of the flavor
    :param hints: scheduler hints as nova keeps them: a list of texts each
    :raises InvalidRequestError: a value is not allowed, or a hint asks for more than the flavor allows
    """
    given = {HINTS[name]: _text(name, hints[name]) for name in HINTS if name in hints}
    asked = {Key(key): text for key, text in extra_specs.items() if key in KEYS}
    if not given and not asked:
        return None
    problems = [found for key, text in asked.items() if (found := EXTRA_SPECS[key].problem(text))]
    problems += [
        f"The scheduler hint {name}={cut(given[key])} is not allowed; allowed: {EXTRA_SPECS[key].allowed}."
        for name, key in HINTS.items()
        if key in given and EXTRA_SPECS[key].problem(given[key])
    ]
    if problems:
        raise InvalidRequestError(tuple(problems))
    flavor = {key: EXTRA_SPECS[key].parse(text) for key, text in asked.items()}
    hinted = {key: EXTRA_SPECS[key].parse(text) for key, text in given.items()}
    _check_bounds(flavor, hinted)
    tier = extra_specs.get(Key.TIER)
    chosen: dict[Key, Any] = {**flavor, **hinted}
    return NetworkRequest(
        within=chosen.get(Key.NET_WITHIN, ""),
        bound=flavor.get(Key.NET_WITHIN, ""),
        share=chosen.get(Key.NET_SHARE, UplinkShare.SHARED),
        slice_size=chosen.get(Key.NET_SLICE, 1),
        balance=chosen.get(Key.NET_BALANCE, False),
        net_class=chosen.get(Key.NET_CLASS, NetClass.LOW if tier == Tier.LC else NetClass.MODERATE),
    )


def _text(name: str, texts: Sequence[str]) -> str:
    if isinstance(texts, str):
        return texts
    if len(texts) != 1:
        raise InvalidRequestError(
            (f"The scheduler hint {name} is given {len(texts)} times; allowed: once.",)
        )
    return str(texts[0])


def _check_bounds(flavor: Mapping[Key, Any], hinted: Mapping[Key, Any]) -> None:
    problems = []
    most = flavor.get(Key.NET_SHARE, UplinkShare.SHARED)
    share = hinted.get(Key.NET_SHARE, most)
    if _SHARES.index(share) > _SHARES.index(most):
        allowed = ", ".join(_SHARES[: _SHARES.index(most) + 1])
        problems.append(
            f"The scheduler hint numa_ext_share={share} is more than the flavor allows; allowed: {allowed}."
        )
    longest = flavor.get(Key.NET_SLICE)
    size = hinted.get(Key.NET_SLICE, 1)
    if longest is not None and size > longest:
        problems.append(
            f"The scheduler hint numa_ext_slice={size} is more than the flavor allows; allowed: 1 to {longest}."
        )
    if problems:
        raise InvalidRequestError(tuple(problems))
