# SPDX-License-Identifier: Apache-2.0
"""Lines for nova.conf that give nova's own GPU providers our traits.

Nova replaces the traits of its PCI providers at each update, so they cannot be added from outside; ``traits`` of
``[pci]device_spec`` is the way in. With ``[pci]report_in_placement = true`` a flavor can then ask for GPUs with a link
between them: ``resources1:CUSTOM_GPU=1, trait1:CUSTOM_GPU_LINK_NV2_0_1=required, …``.
"""

import json
from collections.abc import Iterator

from placement_traits.topology import HostTopology
from placement_traits.tree import gpu_traits


def device_spec_lines(topology: HostTopology, resource_class: str) -> Iterator[str]:
    """Yield one ``device_spec`` line per GPU.

    :param topology: the host
    :param resource_class: what nova counts these devices as, such as ``CUSTOM_GPU``
    """
    for gpu in topology.gpus:
        spec = {
            "address": gpu.address,
            "resource_class": resource_class,
            "traits": ",".join(sorted(gpu_traits(topology, gpu))),
        }
        yield f"device_spec = {json.dumps(spec)}"
