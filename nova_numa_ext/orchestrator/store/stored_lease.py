# SPDX-License-Identifier: Apache-2.0
"""A lease of a remote GPU as it is stored, and what is asked for and chosen for one."""

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.leases import Lease, LeaseState
from placement_traits.claims import Amounts
from placement_traits.names import RemoteGpuApi, ServiceLevel
from placement_traits.reason import Reason


@dataclass(frozen=True, slots=True)
class LeaseSpec:
    """What is asked for.

    :param memory_mb: of the GPU, MiB
    :param level: part of its time
    :param api: by which it is used
    :param network_mbps: promised on the NIC of its host, megabytes a second; 0: what others leave
    :param pool: the host whose GPU it must be; '': any
    :param unmet: whether it waits where none has room
    :param priority: among leases that wait, more is earlier
    :param migratable: its GPU must be one whose leases can move
    :param gang: common to leases that are had together or not at all; '': by itself
    :param max_wait_s: seconds of waiting after which it is given up; None: it waits for ever
    """

    memory_mb: int
    level: ServiceLevel
    api: RemoteGpuApi
    network_mbps: int = 0
    pool: str = ""
    unmet: Unmet = Unmet.WAIT
    priority: int = 0
    migratable: bool = False
    gang: str = ""
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class LeaseTransfer:
    """Where a lease is to go.

    :param asked: the host that it was asked to go to; '': any
    :param second: the consumer that keeps in Placement what the lease leaves; '' while nothing is chosen
    :param host: that lends the chosen GPU
    :param gpu: its provider
    :param amounts: that the lease holds there
    :param gang: that it makes room for; '' for none
    :param carried: its process goes along with all that it has; else it begins with empty memory there
    :param left_gpu: provider of the GPU that a carried one leaves, to which it comes back where that fails
    :param left: amounts that it held there
    :param address: where the other host takes its images, as that has reported; '': not yet
    :param sent_mb: of its images, MiB
    :param of_mb: of all its images, MiB
    :param trouble: why it does not go, as a host has reported; '': nothing is known against it
    :param stays: the host that it would leave has reported that it goes on there
    """

    asked: str = ""
    second: str = ""
    host: str = ""
    gpu: str = ""
    amounts: Amounts = field(default_factory=dict)
    gang: str = ""
    carried: bool = False
    left_gpu: str = ""
    left: Amounts = field(default_factory=dict)
    address: str = ""
    sent_mb: int = 0
    of_mb: int = 0
    trouble: str = ""
    stays: bool = False


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it was read.

    :param number: order in which they were asked for
    :param lease: what the life cycle knows of it
    :param version: number of changes
    :param server: uuid of the server that it is for; '' where none is named
    :param gpu: provider of its GPU; '' before one is chosen
    :param amounts: what its claim holds, or is to hold
    :param claimed: Placement has granted the claim, and it is not released
    :param reasons: of its state
    :param address: where its server process listens, as its GPU's host has reported; '' before
    :param move: where it is to go, or goes; None: nowhere
    :param moved_at: when it was last moved to another GPU, seconds since 1970; None: never
    :param room: of a lease that waits, what it is to hold when those have gone that make room for it
    :param job: uuid of the job by which it waits; '' where it has none: it was adopted, or is of an earlier release
    """

    number: int
    lease: Lease
    version: int
    project: str
    user: str
    server: str
    asked: LeaseSpec
    gpu: str
    amounts: Amounts
    claimed: bool
    created_at: float
    changed_at: float
    ended_at: float | None
    reasons: tuple[Reason, ...]
    address: str = ""
    move: LeaseTransfer | None = None
    job: str = ""
    moved_at: float | None = None
    room: Amounts = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        """Its uuid, and its consumer's."""
        return self.lease.uuid

    @property
    def state(self) -> LeaseState:
        """Where it is in its life."""
        return self.lease.state


@dataclass(frozen=True, slots=True)
class LeaseChoice:
    """What a lease is to hold.

    :param host: that lends the GPU
    :param gpu: its provider
    :param amounts: of its claim
    """

    host: str
    gpu: str
    amounts: Amounts


NOTHING: Final = LeaseChoice("", "", MappingProxyType({}))
"""Of a lease that is to be given another GPU."""
