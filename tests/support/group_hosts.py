# SPDX-License-Identifier: Apache-2.0
"""Server groups for tests of nova's scheduler: requests for them, and leafs in the traits of hosts."""

import uuid
from dataclasses import replace
from typing import Any

from nova import objects

from placement_traits import names
from placement_traits.fleet import HostView

FABRIC = "train"


def server_group(
    number: int = 1,
    policy: str = "anti-affinity",
    hosts: tuple[str, ...] = (),
    members: tuple[str, ...] = (),
    **rules: str,
) -> Any:
    """Nova's object, as it comes with a RequestSpec."""
    group = objects.InstanceGroup(
        uuid=str(uuid.UUID(int=number)),
        policy=policy,
        policies=[policy],
        hosts=[*hosts],
        members=[*members],
        rules=rules,
        project_id="project",
        user_id="user",
    )
    group.obj_reset_changes()
    return group


def on_leaf(view: HostView, leaf: str) -> HostView:
    """The host with the trait of its leaf."""
    return replace(view, traits=view.traits | {leaf_trait(leaf)})


def leaf_trait(leaf: str) -> str:
    """The trait of a leaf of the fabric."""
    trait = names.leaf_trait(FABRIC, leaf)
    assert trait
    return trait
