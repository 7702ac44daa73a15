# SPDX-License-Identifier: Apache-2.0
"""All stores of one database."""

from dataclasses import dataclass
from typing import Self

from nova_numa_ext.orchestrator.store.attach_jobs import Moved
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.recovery import Recovery
from nova_numa_ext.orchestrator.store.scaling import ScalingGroups
from nova_numa_ext.orchestrator.store.scaling_members import ScalingMembers
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a database, by what they keep."""

    jobs: Jobs
    ended_trusts: EndedTrusts
    leases: Leases
    lease_hosts: LeaseHosts
    scaling: ScalingGroups
    scaling_members: ScalingMembers
    recovery: Recovery

    @classmethod
    def of(cls, database: Database, moved: Moved | None = None) -> Self:
        """Return those of a database.

        :param moved: as of :class:`.leases.Leases`
        """
        return cls(
            Jobs(database),
            EndedTrusts(database),
            Leases(database, moved),
            LeaseHosts(database),
            ScalingGroups(database),
            ScalingMembers(database),
            Recovery(database),
        )
