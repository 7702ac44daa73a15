# SPDX-License-Identifier: Apache-2.0
"""Where plans of fabrics come from, and what verifies them.

Each module reads one form, and refuses what it cannot use in one sentence.

:mod:`.native`
    our own YAML, read and written
:mod:`.slurm`
    Slurm's ``topology.conf`` and ``topology.yaml``, which topograph writes, too
:mod:`.ibnetdiscover`
    what ``ibnetdiscover`` prints
:mod:`.aggregates`
    nova's aggregates with ``numa_ext:leaf`` and ``numa_ext:pod``, and those that Neutron makes of segments
:mod:`.lldp`
    what ``lldpcli`` of the hosts prints; it only verifies
"""
