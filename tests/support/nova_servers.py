# SPDX-License-Identifier: Apache-2.0
"""Servers as nova shows them to programs of the controller."""

from nova_numa_ext.heal.nova_servers import NovaServer
from nova_numa_ext.policy.numa.nova_part import FlavorSizes
from placement_traits.names import Tier


def server_of(uuid: str, tier: Tier | None, **specs: str) -> NovaServer:
    """A server on h1, of a tier.

    :param specs: more of its flavor's extra specs, by their names after ``numa_ext:``
    """
    asked = {f"numa_ext:{name}": value for name, value in specs.items()}
    if tier is not None:
        asked["numa_ext:tier"] = str(tier)
    if tier is Tier.LC:
        asked |= {
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": "1",
            "resources:CUSTOM_RDT_CLOS": "1",
        }
    return NovaServer(
        uuid, "web", "h1", "", "tenant", "user", FlavorSizes(1, 512), asked, {}, from_volume=False
    )
