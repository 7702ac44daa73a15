# SPDX-License-Identifier: Apache-2.0
"""Which mode of several counts on a host. Pure."""

from typing import Final

from host_agent.conf.options import Options
from host_agent.model.modes import Feature, Modes
from nova_numa_ext.policy.modes import Mode, of_host

# Levels are written into the groups that partitioning makes.
_NEEDS: Final = {Feature.SLO: Feature.RDT}


def in_effect(options: Options, placement_mode: Mode) -> Modes:
    """Return the mode of each feature: of the host's, the feature's and the fleet's, the one that does the least.

    :param placement_mode: what the operators of the cloud have set for this host
    """
    named = {
        Feature.PINNING: options.pinning.mode,
        Feature.MEMORY: options.memory.mode,
        Feature.RDT: options.rdt.mode,
        Feature.SLO: options.slo.mode,
    }
    return Modes(
        {
            feature: of_host(
                Mode.ENFORCE,
                (placement_mode, options.agent.mode, mode, named[_NEEDS.get(feature, feature)]),
            )
            for feature, mode in named.items()
        }
    )
