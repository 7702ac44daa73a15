# SPDX-License-Identifier: Apache-2.0
"""What hosts have heard by LLDP: which switch is at the other end of their cables.

lldpd hears it, with the privileges that this needs, and nothing of ours opens a raw socket. Its answers are collected
under the names of the hosts as nova knows them::

    {"cmp001": <what lldpcli -f json show neighbors prints there>, "cmp002": …}

This verifies a plan and makes none: it shows leafs, and no pods.
"""

import json
from collections.abc import Sequence

from placement_traits.errors import InvalidValueError, cut
from placement_traits.lldp import SwitchPort, neighbours

_FORM = "an object of what lldpcli -f json show neighbors prints, by hosts"


def read(text: str, where: str) -> dict[str, tuple[SwitchPort, ...]]:
    """Return the neighbours of each host.

    :raises InvalidValueError: this is no such file
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValueError(where, cut(str(error)), _FORM) from None
    if not isinstance(found, dict):
        raise InvalidValueError(where, type(found).__name__, _FORM)
    return {
        cut(host): tuple(neighbours(said, f"{where}, {cut(host)}")) for host, said in found.items()
    }


def seen_on(heard: Sequence[SwitchPort], planned: str, leafs: Sequence[str]) -> SwitchPort | None:
    """Return the neighbour that tells on which leaf a host hangs; None: it has heard none.

    A host hears switches of other networks, too: its planned leaf among them is enough. Else another leaf of the plan
    counts before a switch that no plan names.
    """
    known = [each for each in heard if any(each.is_node(leaf) for leaf in leafs)]
    own = [each for each in known if each.is_node(planned)]
    return next(iter((*own, *known, *heard)), None)
