# SPDX-License-Identifier: Apache-2.0
"""A Placement as nova would have filled it, with shortcuts to look at it and to disturb it."""

import uuid
from typing import Any

from placement_traits.client import MICROVERSION, PlacementClient, RetrySettings


class FilledPlacement:
    """A Placement with what nova would have put there, and shortcuts to look at it.

    :ivar conf: the options of Placement, where a fixture gives them
    :ivar image: returns the whole database, where a fixture gives it
    :ivar restore: puts such an image in the place of the database, where a fixture gives it
    :ivar root: nova's root provider, where a fixture makes one
    :ivar once: called with a name and what fills an empty Placement, leaves it so and returns what that returned; the
        writing is done once for all tests of a process
    """

    conf: Any
    once: Any
    image: Any
    restore: Any
    root: str

    def __init__(self, adapter):
        self.adapter = adapter
        self.client = self.connect(adapter)

    def connect(self, adapter=None, attempts=5, microversion=MICROVERSION):
        """A client that does not sleep and whose jitter is always the same."""
        return PlacementClient(
            adapter or self.adapter,
            RetrySettings(attempts, first_s=1e-6),
            sleep=lambda _s: None,
            random=lambda: 0.5,
            microversion=microversion,
        )

    def compute(self, name, **resources):
        """Make a root provider as nova-compute does; returns its uuid."""
        created = self.client.post("/resource_providers", {"name": name, "uuid": str(uuid.uuid4())})
        self.inventories(created["uuid"], VCPU=8, MEMORY_MB=8192, **resources)
        self.traits(created["uuid"], "HW_CPU_X86_AVX2")
        return created["uuid"]

    def child(self, parent, name, *traits, **resources):
        """Make a provider that is not ours; returns its uuid."""
        body = {"name": name, "uuid": str(uuid.uuid4()), "parent_provider_uuid": parent}
        created = self.client.post("/resource_providers", body)
        if resources:
            self.inventories(created["uuid"], **resources)
        if traits:
            self.traits(created["uuid"], *traits)
        return created["uuid"]

    def inventories(self, provider, **totals):
        """Replace the inventories of a provider."""
        for resource_class in totals:
            if resource_class.startswith("CUSTOM_"):
                self.client.put(f"/resource_classes/{resource_class}")
        self.client.put(
            f"/resource_providers/{provider}/inventories",
            {
                "resource_provider_generation": self.generation(provider),
                "inventories": {name: {"total": total} for name, total in totals.items()},
            },
        )

    def traits(self, provider, *traits):
        """Add traits to a provider."""
        there = self.client.get(f"/resource_providers/{provider}/traits")
        for trait in traits:
            if trait.startswith("CUSTOM_"):
                self.client.put(f"/traits/{trait}")
        self.client.put(
            f"/resource_providers/{provider}/traits",
            {
                "resource_provider_generation": there["resource_provider_generation"],
                "traits": sorted({*there["traits"], *traits}),
            },
        )

    def generation(self, provider):
        return self.client.get(f"/resource_providers/{provider}")["generation"]

    def uuid(self, name):
        return self.client.get(f"/resource_providers?name={name}")["resource_providers"][0]["uuid"]

    def claim(self, consumer, **amounts):
        """Allocate (provider uuid -> {class: amount}) to a new consumer, as nova-scheduler would."""
        self.client.put(
            f"/allocations/{consumer}",
            {
                "allocations": {p: {"resources": r} for p, r in amounts["allocations"].items()},
                "project_id": str(uuid.uuid4()),
                "user_id": str(uuid.uuid4()),
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            },
        )

    def everything(self):
        """The whole database as one literal: name -> (parent, traits, inventories)."""
        providers = self.client.get("/resource_providers")["resource_providers"]
        name_of = {provider["uuid"]: provider["name"] for provider in providers}
        found = {}
        for provider in providers:
            path = f"/resource_providers/{provider['uuid']}"
            inventories = self.client.get(f"{path}/inventories")["inventories"]
            found[provider["name"]] = (
                name_of.get(provider["parent_provider_uuid"]),
                frozenset(self.client.get(f"{path}/traits")["traits"]),
                {
                    name: (body["total"], body["reserved"], body["min_unit"], body["max_unit"])
                    for name, body in inventories.items()
                },
            )
        return found


def as_literal(tree, root_traits=("HW_CPU_X86_AVX2",), root_inventories=None):
    """What :meth:`FilledPlacement.everything` must show for a tree on one of our computes."""
    whole = {
        tree.root: (
            None,
            tree.root_traits | set(root_traits),
            root_inventories
            or {"VCPU": (8, 0, 1, 2147483647), "MEMORY_MB": (8192, 0, 1, 2147483647)},
        )
    }
    for child in tree.children:
        whole[child.name] = (
            tree.root,
            child.traits,
            {
                name: (i.total, i.reserved, i.min_unit, i.max_unit)
                for name, i in child.inventories.items()
            },
        )
    return whole
