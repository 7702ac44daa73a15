# SPDX-License-Identifier: Apache-2.0
"""The names of everything a placement decision looks at, each with the sentence that explains it to people."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class Term(StrEnum):
    """Requirements, ranks of candidates and terms of the score."""

    # Requirements: a host that fails one is refused.
    FLAVOR = "flavor"
    JOB_HINT = "job_hint"
    GROUP = "group"
    QUIET_LEAF = "quiet_leaf"
    VIEW = "view"
    COMPUTE_DISABLED = "compute_disabled"
    AGENT = "agent"
    DRAINED = "drained"
    TIER = "tier"
    SILENT = "silent"
    CACHE_ALLOCATION = "cache_allocation"
    CLASSES_OF_SERVICE = "classes_of_service"
    L3_WAYS = "l3_ways"
    MEMORY_BANDWIDTH = "memory_bandwidth_mbps"
    LLC_NEIGHBOURHOOD = "llc_neighbourhood"
    L3_DOMAINS = "l3_domains"
    DEDICATED_CPUS = "dedicated_cpus"
    SHARED_CPUS = "shared_cpus"
    MEMORY = "memory_mb"
    NUMA_CELLS = "numa_cells"
    LOCAL_MEMORY = "local_memory"
    CANDIDATES = "candidates"
    GPUS_FREE = "gpus_free"
    GPU_BELOW_MINIMUM = "gpu_utility_below_minimum"
    GPU_UNKNOWN = "gpu_utility_unknown"
    GPU_NEEDED = "gpu_needed"
    GPU_NOT_OFFERED = "gpu_not_offered"
    GPU_NEVER = "gpu_never"
    GPU_POSTPONED = "gpu_postponed"
    GPU_COMMUNICATION = "gpu_communication"
    GPU_INTERFERENCE = "gpu_interference"
    GPU_FRAGMENTATION = "gpu_fragmentation"
    LEASE_HINT = "lease_hint"
    REMOTE_GPU_CLIENT = "remote_gpu_client"
    REMOTE_GPU_FABRIC = "remote_gpu_fabric"
    REMOTE_GPU_KIND = "remote_gpu_kind"
    REMOTE_GPU_ROOM = "remote_gpu_room"
    REMOTE_GPU_NETWORK = "remote_gpu_network_mbps"
    # Ranks: why one allocation candidate comes before another.
    NO_CELLS = "no_cells"
    FALLBACK_CPUS = "fallback_cpus"
    TAKEN = "taken"
    GPU_BELOW = "gpu_below"
    GPU_POLICY = "gpu_policy"
    GPU_UTILITY = "gpu_utility"
    OFF_NODE = "off_node"
    CLASS_PENALTY = "class_penalty"
    DEVIL_PACKING = "devil_packing"
    SHARED_TIERS = "shared_tiers"
    GPU = "gpu"
    WAYS_FREE = "ways_free"
    BANDWIDTH_FREE = "bandwidth_free_mbps"
    L3_IDS = "l3_ids"
    PROVIDERS = "providers"
    # Terms of the score that are not among the above.
    SLICES = "slices"
    NEIGHBOURS = "neighbours"
    WAYS = "ways"
    BANDWIDTH = "bandwidth"
    CROSS_SOCKET_BANDWIDTH = "cross_socket_bandwidth"
    FRAGMENTATION = "fragmentation"
    NET_BLOCK = "net_block"
    REFUSED = "refused"
    SPARE = "spare"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Term.FLAVOR: "{value}",
        Term.JOB_HINT: "only the job service can make the scheduler hint numa_ext_job, and did not make this: {value}",
        Term.GROUP: "its server group cannot be placed on the fabric: {value}",
        Term.QUIET_LEAF: "a server group has the uplinks of its leaf alone, and [numa_ext]net_singles is {value}",
        Term.VIEW: "the view of Placement is {value}; [numa_ext]on_stale is {against}",
        Term.COMPUTE_DISABLED: "its nova-compute is disabled: trait {against} is {value}",
        Term.AGENT: "no host agent has published this host to Placement",
        Term.DRAINED: "operators have drained it: trait {against} is {value}",
        Term.TIER: "its agent does not accept the tier: trait {against} is {value}",
        Term.SILENT: "its agent has not beaten for a long time, and [numa_ext]on_silent is {value}",
        Term.CACHE_ALLOCATION: "no L3 cache allocation: trait {against} is {value}",
        Term.CLASSES_OF_SERVICE: "classes of service free: {value}, requested: {against}",
        Term.L3_WAYS: "L3 ways free in the best domain: {value}, requested: {against}",
        Term.MEMORY_BANDWIDTH: "memory bandwidth free in the best L3 domain: {value} MB/s, requested: {against} MB/s",
        Term.LLC_NEIGHBOURHOOD: "cache neighbourhood free in the best L3 domain: {value}, requested: {against}",
        Term.L3_DOMAINS: "L3 domains that can hold it: {value}, requested: {against}",
        Term.DEDICATED_CPUS: "dedicated CPUs free: {value}, requested: {against}",
        Term.SHARED_CPUS: "shared CPUs free: {value}, requested: {against}",
        Term.MEMORY: "memory free: {value} MiB, requested: {against} MiB",
        Term.NUMA_CELLS: "no set of {against} NUMA nodes has enough free CPUs and memory",
        Term.LOCAL_MEMORY: "remote memory slows this server, and no NUMA node holds it whole: {value} vCPUs, {against}",
        Term.CANDIDATES: "no allocation candidate is left",
        Term.GPUS_FREE: "GPUs free in Placement: {value}, requested: {against}",
        Term.GPU_BELOW_MINIMUM: "the best GPUs it offers have utility {value}, numa_ext:min_utility is {against}",
        Term.GPU_UNKNOWN: "numa_ext:min_utility={value} cannot be judged: Placement does not count its GPUs, or no "
        "host agent reports where they are",
        Term.GPU_NEEDED: "needed: GPUs {where} with utility {value}, when the jobs on {against} end",
        Term.GPU_NOT_OFFERED: "needed: a candidate with the free GPUs {value}",
        Term.GPU_NEVER: "no set of its GPUs reaches numa_ext:min_utility={value}, even when it is empty",
        Term.GPU_POSTPONED: "nothing waits in nova, with numa_ext:gpu_policy={value} neither: create the server again "
        "when that is free",
        Term.GPU_COMMUNICATION: "the distance between these GPUs costs {value} of 1",
        Term.GPU_INTERFERENCE: "interference with jobs beside these GPUs costs {value} of 1",
        Term.GPU_FRAGMENTATION: "breaking up the free GPUs of a socket costs {value} of 1",
        Term.LEASE_HINT: "the scheduler hint numa_ext_lease names no lease of the server's project: {value}",
        Term.REMOTE_GPU_CLIENT: "its servers reach no remote GPU: trait {against} is {value}",
        Term.REMOTE_GPU_FABRIC: "no pool of remote GPUs that counts is in its fabrics ({value})",
        Term.REMOTE_GPU_KIND: "no GPU of the pools that it reaches is what numa_ext:remote_gpu_… asks for: {value}",
        Term.REMOTE_GPU_ROOM: "remote GPUs free in the pools that it reaches: {value}, requested: {against}",
        Term.REMOTE_GPU_NETWORK: "less than {value} MB/s are free on its NIC to remote GPUs",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason of refusal means, for people; terms without a sentence show their figures."""
    return reasons.sentence(reason, SENTENCES)
