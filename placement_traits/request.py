# SPDX-License-Identifier: Apache-2.0
"""Flavor extra specs -> :class:`WorkloadRequest`, with the same sentences everywhere.

The table :data:`EXTRA_SPECS` is the only place that knows keys, types, limits and defaults: nova-api's validators, the
filter, ``openstack numa flavor check``, the host agent and the documentation are all made from it. :func:`parse` checks
single values first and combinations after, and reports every problem at once.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from placement_traits import devices, names, remote_gpu_request
from placement_traits.amounts import RESOURCE_KEY, amounts_by_group, parse_amount
from placement_traits.errors import NumaExtError, cut
from placement_traits.guest_topology import NUMA_NODES, GuestTopology, guest_topology
from placement_traits.interference import NEIGHBOURHOOD_UNITS
from placement_traits.names import (
    GpuPolicy,
    InterferenceClass,
    Key,
    MemoryPolicy,
    NetClass,
    RemoteGpu,
    RemoteGpuApi,
    RemoteMemory,
    ServiceLevel,
    SloSource,
    Tier,
    UplinkShare,
)
from placement_traits.remote_gpu_request import RemoteGpuRequest
from placement_traits.request_checks import combination_problems
from placement_traits.workload_request import L3Amount, WorkloadRequest

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
MOST_PROBLEMS: Final = 10
"""So many sentences are enough for a person, and a flavor of thousands of keys takes no time."""


class InvalidRequestError(NumaExtError):
    """A flavor asks for something that has no meaning.

    :param problems: one sentence per problem, never empty
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return " ".join(self.problems)


@dataclass(frozen=True, slots=True)
class ExtraSpec:
    """One key of our namespace.

    :param key: the key as users type it
    :param kind: ``int``, ``float``, ``bool``, a :class:`~enum.StrEnum` of the allowed values or ``str``: a name
    :param description: one sentence for nova's API and the documentation
    :param minimum: smallest value of a number, None where there is no limit
    :param maximum: largest value of a number, None where there is no limit
    :param default: what an absent key means, as text
    """

    key: Key
    kind: type[int] | type[float] | type[bool] | type[str]
    description: str
    default: str
    minimum: int | float | None = None
    maximum: int | float | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, empty for a number or a bool."""
        return tuple(self.kind) if issubclass(self.kind, StrEnum) else ()

    @property
    def allowed(self) -> str:
        """What a user may write, as text."""
        if self.choices:
            return ", ".join(self.choices)
        if self.kind is bool:
            return "true, false"
        if self.kind is str:
            return "a name of small letters, digits and _, 31 at most"
        noun = "an integer" if self.kind is int else "a number"
        if self.maximum is None:
            return f"{noun} >= {self.minimum}"
        return f"{noun} from {self.minimum} to {self.maximum}"

    def parse(self, value: str) -> Any:
        """Return the typed value; raises ValueError when ``value`` is not allowed."""
        if issubclass(self.kind, StrEnum):
            return self.kind(value)
        if self.kind is bool:
            return {"true": True, "false": False}[value.strip().lower()]
        if self.kind is str:
            if _NAME.fullmatch(value) is None:
                raise ValueError(value)
            return value
        pattern = r"\d+" if self.kind is int else r"\d+(\.\d*)?|\.\d+"
        if re.fullmatch(pattern, value.strip()) is None:
            raise ValueError(value)
        number = int(value) if self.kind is int else float(value)
        below = self.minimum is not None and number < self.minimum
        above = self.maximum is not None and number > self.maximum
        if below or above:
            raise ValueError(value)
        return number

    def problem(self, value: str) -> str | None:
        """Return the sentence about a value that is not allowed, None when it is."""
        try:
            self.parse(value)
        except (ValueError, KeyError):
            return f"{self.key}={cut(value)} is not allowed; allowed: {self.allowed}."
        return None


EXTRA_SPECS: Final[Mapping[str, ExtraSpec]] = {
    spec.key.value: spec
    for spec in (
        ExtraSpec(
            Key.TIER,
            Tier,
            "Latency-critical (LC) or best-effort (BE).",
            "none: cache and bandwidth are not managed",
        ),
        ExtraSpec(
            Key.SLO_P99_US,
            int,
            "99th percentile latency objective of an LC server, microseconds.",
            "no objective",
            minimum=1,
        ),
        ExtraSpec(
            Key.SLO_SOURCE, SloSource, "Where the agent reads the latency of an LC server.", "auto"
        ),
        ExtraSpec(
            Key.INTERFERENCE_CLASS,
            InterferenceClass,
            "Cache behaviour: sheep (indifferent), rabbit (delicate), devil (disturbs).",
            "sheep",
        ),
        ExtraSpec(
            Key.REMOTE_MEMORY,
            RemoteMemory,
            "How much remote memory slows the server down.",
            "insensitive",
        ),
        ExtraSpec(
            Key.MEMORY_POLICY,
            MemoryPolicy,
            "Placement of the guest's memory over NUMA nodes; spreading applies to guests without a NUMA topology.",
            "local for LC and for BE with a NUMA topology; bwap for other BE; first_touch without a tier",
        ),
        ExtraSpec(Key.GPU_POLICY, GpuPolicy, "How local GPUs are chosen.", "topo"),
        ExtraSpec(
            Key.GPU_COMM,
            int,
            "GPU-to-GPU communication weight (4 = smallest batch).",
            "0",
            minimum=0,
            maximum=4,
        ),
        ExtraSpec(
            Key.MIN_UTILITY,
            float,
            "Placements whose utility is lower are refused.",
            "0.0",
            minimum=0.0,
            maximum=1.0,
        ),
        ExtraSpec(
            Key.REMOTE_GPU,
            RemoteGpu,
            "May the server use GPUs of other hosts; required: it is refused where none can be had.",
            "never",
        ),
        ExtraSpec(
            Key.REMOTE_GPU_COUNT,
            int,
            "Remote GPUs, each a GPU of its own.",
            "1",
            minimum=1,
            maximum=16,
        ),
        ExtraSpec(
            Key.REMOTE_GPU_MEMORY_MB,
            int,
            "Memory of each remote GPU, MiB; without it none is asked for.",
            "none",
            minimum=1,
        ),
        ExtraSpec(
            Key.REMOTE_GPU_SERVICE_LEVEL,
            ServiceLevel,
            "How many share a remote GPU: gold alone, silver two, bronze three, scavenger six.",
            "gold for LC, silver for others",
        ),
        ExtraSpec(
            Key.REMOTE_GPU_API,
            RemoteGpuApi,
            "The interface by which the guest uses a remote GPU.",
            "opencl",
        ),
        ExtraSpec(
            Key.REMOTE_GPU_NETWORK_MBPS,
            int,
            "Network bandwidth that is promised for each remote GPU, MB/s; 0 for what others leave.",
            "0",
            minimum=0,
        ),
        ExtraSpec(
            Key.REMOTE_GPU_NETWORK_SHARE,
            float,
            "Part of the run time spent on the network when the GPU is remote (job profile).",
            "0.0",
            minimum=0.0,
            maximum=1.0,
        ),
        ExtraSpec(
            Key.REMOTE_GPU_VGPUS_PER_GPU,
            int,
            "As how many GPUs the guest sees each remote GPU.",
            "1",
            minimum=1,
            maximum=12,
        ),
        ExtraSpec(
            Key.REMOTE_GPU_PRIORITY,
            int,
            "Place among servers that wait for remote GPUs (9 = first).",
            "0",
            minimum=0,
            maximum=9,
        ),
        ExtraSpec(
            Key.REMOTE_GPU_MIGRATABLE,
            bool,
            "true: only GPUs whose leases can move while they are used.",
            "false",
        ),
        ExtraSpec(Key.MANAGED, bool, "false: the host agent leaves this server alone.", "true"),
        ExtraSpec(
            Key.NET_WITHIN,
            str,
            "Level of the fabric: a server group is refused that does not fit below one node of it.",
            "none: anywhere",
        ),
        ExtraSpec(
            Key.NET_SHARE,
            UplinkShare,
            "The most that a server group may ask of its leafs' uplinks: shared, quiet (no other group), "
            "exclusive (whole pods).",
            "shared",
        ),
        ExtraSpec(
            Key.NET_SLICE,
            int,
            "Servers of a group that must be on one leaf, as many in each such slice.",
            "1",
            minimum=1,
        ),
        ExtraSpec(
            Key.NET_BALANCE,
            bool,
            "true: as many servers of a group on each of its leafs.",
            "false",
        ),
        ExtraSpec(
            Key.NET_CLASS,
            NetClass,
            "How much a server uses the network.",
            "low for LC, moderate for others",
        ),
    )
}


def parse(
    extra_specs: Mapping[str, str],
    *,
    vcpus: int,
    memory_mb: int,
    image_traits: frozenset[str] = frozenset(),
    image_properties: Mapping[str, str] = MappingProxyType({}),
) -> WorkloadRequest:
    """Parse and check what a flavor requests together with an image.

    :param extra_specs: all extra specs, ours and others'
    :param vcpus: number of virtual CPUs of the flavor
    :param memory_mb: memory of the flavor, MiB
    :param image_traits: traits that the image requires; ``CUSTOM_NUMA_EXT_TIER_LC`` and ``…_BE`` work like the key
    :param image_properties: those of :data:`~placement_traits.guest_topology.IMAGE_PROPERTIES` that the image has
    :returns: the checked request
    :raises InvalidRequestError: with every problem found, as far as they are no more than :data:`MOST_PROBLEMS`
    """
    problems = tuple(islice(_value_problems(extra_specs), MOST_PROBLEMS))
    if problems:
        raise InvalidRequestError(problems)

    image_tier = _image_tier(image_traits)
    tier = _value(extra_specs, Key.TIER, image_tier)
    guest = guest_topology(extra_specs, image_properties)
    remote_gpus = _remote_gpus(extra_specs, tier)
    request = _requested(
        extra_specs, guest, remote_gpus, tier=tier, vcpus=vcpus, memory_mb=memory_mb
    )
    problems = (
        *combination_problems(request, extra_specs, image_tier),
        *remote_gpu_request.problems(request.remote_gpu, remote_gpus.level, extra_specs, tier),
    )
    if problems:
        raise InvalidRequestError(problems)
    return request


def _value(extra_specs: Mapping[str, str], key: Key, default: Any) -> Any:
    given = extra_specs.get(key)
    return default if given is None else EXTRA_SPECS[key].parse(given)


def _remote_gpus(extra_specs: Mapping[str, str], tier: Tier | None) -> RemoteGpuRequest:
    value = partial(_value, extra_specs)
    return RemoteGpuRequest(
        count=value(Key.REMOTE_GPU_COUNT, 1),
        memory_mb=value(Key.REMOTE_GPU_MEMORY_MB, 0),
        level=value(Key.REMOTE_GPU_SERVICE_LEVEL, remote_gpu_request.default_level(tier)),
        api=value(Key.REMOTE_GPU_API, RemoteGpuApi.OPENCL),
        network_mbps=value(Key.REMOTE_GPU_NETWORK_MBPS, 0),
        network_share=value(Key.REMOTE_GPU_NETWORK_SHARE, 0.0),
        vgpus_per_gpu=value(Key.REMOTE_GPU_VGPUS_PER_GPU, 1),
        priority=value(Key.REMOTE_GPU_PRIORITY, 0),
        migratable=value(Key.REMOTE_GPU_MIGRATABLE, False),
    )


def _requested(
    extra_specs: Mapping[str, str],
    guest: GuestTopology,
    remote_gpus: RemoteGpuRequest,
    *,
    tier: Tier | None,
    vcpus: int,
    memory_mb: int,
) -> WorkloadRequest:
    value = partial(_value, extra_specs)
    return WorkloadRequest(
        vcpus=vcpus,
        memory_mb=memory_mb,
        tier=tier,
        slo_p99_us=value(Key.SLO_P99_US, None),
        slo_source=value(Key.SLO_SOURCE, SloSource.AUTO),
        interference_class=value(Key.INTERFERENCE_CLASS, InterferenceClass.SHEEP),
        remote_memory=value(Key.REMOTE_MEMORY, RemoteMemory.INSENSITIVE),
        memory_policy=value(Key.MEMORY_POLICY, _default_memory_policy(tier, guest.numa)),
        gpu_policy=value(Key.GPU_POLICY, GpuPolicy.TOPO),
        gpu_comm=value(Key.GPU_COMM, 0),
        min_utility=value(Key.MIN_UTILITY, 0.0),
        remote_gpu=value(Key.REMOTE_GPU, RemoteGpu.NEVER),
        managed=value(Key.MANAGED, True),
        numa_nodes=guest.nodes,
        numa_topology=guest.numa,
        dedicated=guest.dedicated,
        pinned=guest.pinned(vcpus),
        isolated_emulator=guest.isolated_emulator,
        clos=sum(amounts_by_group(extra_specs, names.RDT_CLOS).values()),
        l3=_l3_amounts(extra_specs),
        devices=devices.requested(extra_specs),
        remote_gpus=remote_gpus if remote_gpus.memory_mb else None,
    )


def concerns_us(extra_specs: Mapping[str, str], image_traits: frozenset[str] = frozenset()) -> bool:
    """Return whether a flavor or image concerns this project: a key, a resource or a trait of ours."""
    return any(
        key.startswith(f"{names.EXTRA_SPEC_NAMESPACE}:") or _resource(key) for key in extra_specs
    ) or any(names.is_ours(trait) for trait in image_traits)


def problem(key: str, value: str) -> str | None:
    """Return the sentence about one key of ours and its value, None when both are right.

    :param key: of our namespace, or an amount of a resource class of ours
    """
    if _resource(key):
        return _amount_problem(key, value)
    spec = EXTRA_SPECS.get(key)
    return unknown_key(key) if spec is None else spec.problem(value)


def _resource(key: str) -> str | None:
    """Return the resource class of ours that a key asks for."""
    match = RESOURCE_KEY.match(key)
    return match["resource"] if match and match["resource"] in names.PUBLISHED_CLASSES else None


def _amount_problem(key: str, value: str) -> str | None:
    if _resource(key) == names.PROBE:
        return f"{cut(key)} is not allowed: with it the view of Placement counts hosts, and no server may take it."
    if _resource(key) in names.NOT_FOR_FLAVORS:
        return f"{cut(key)} is not allowed: leases claim it, no server; ask with {Key.REMOTE_GPU} and its like."
    if _resource(key) == names.LLC_NEIGHBOURHOOD:
        allowed = {str(units): each for each, units in NEIGHBOURHOOD_UNITS.items() if units}
        if value not in allowed:
            listed = ", ".join(f"{units} ({each})" for units, each in allowed.items())
            return f"{cut(key)}={cut(value)} is not allowed; allowed: {listed}."
        return None
    if value.isdecimal():
        return None
    return f"{cut(key)}={cut(value)} is not allowed; allowed: an integer >= 0."


def _image_tier(image_traits: frozenset[str]) -> Tier | None:
    for tier in Tier:
        if names.TierTrait[tier.name] in image_traits:
            return tier
    return None


def _default_memory_policy(tier: Tier | None, numa_topology: bool) -> MemoryPolicy:
    if tier is Tier.LC:
        return MemoryPolicy.LOCAL
    if tier is Tier.BE:
        return MemoryPolicy.LOCAL if numa_topology else MemoryPolicy.BWAP
    return MemoryPolicy.FIRST_TOUCH


def _value_problems(extra_specs: Mapping[str, str]) -> Iterator[str]:
    ours = (
        problem(key, value)
        for key, value in sorted(extra_specs.items())
        if key.startswith(f"{names.EXTRA_SPEC_NAMESPACE}:")
    )
    yield from (sentence for sentence in ours if sentence is not None)
    nodes = extra_specs.get(NUMA_NODES, "1")
    if not parse_amount(nodes):
        yield f"{NUMA_NODES}={cut(nodes)} is not allowed; allowed: an integer >= 1."
    yield from (
        sentence
        for key, value in sorted(extra_specs.items())
        if _resource(key) and (sentence := _amount_problem(key, value)) is not None
    )


def unknown_key(key: str) -> str:
    """Return the sentence about a key of our namespace that does not exist."""
    namespace = f"{names.EXTRA_SPEC_NAMESPACE}:"
    key = cut(key)
    ours = [known.removeprefix(namespace) for known in EXTRA_SPECS]
    near = difflib.get_close_matches(key.removeprefix(namespace).lower(), ours, n=1)
    if near:
        return f"{key} is not an extra spec of numa_ext; did you mean {namespace}{near[0]}?"
    return f"{key} is not an extra spec of numa_ext; allowed: {', '.join(EXTRA_SPECS)}."


def _l3_amounts(extra_specs: Mapping[str, str]) -> tuple[L3Amount, ...]:
    ways = amounts_by_group(extra_specs, names.LLC_WAY)
    bandwidth = amounts_by_group(extra_specs, names.MEMORY_BANDWIDTH_MBPS)
    units = amounts_by_group(extra_specs, names.LLC_NEIGHBOURHOOD)
    return tuple(
        L3Amount(group, ways.get(group, 0), bandwidth.get(group, 0), units.get(group, 0))
        for group in sorted(ways.keys() | bandwidth.keys() | units.keys())
    )
