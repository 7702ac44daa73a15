# SPDX-License-Identifier: Apache-2.0
"""Flavors of a task, checked before they are made.

Rally's own context makes flavors through a client that goes round nova's validation of extra specs, which is there from
microversion 2.86 on. A misspelt key would be a server without what the task is about.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nova_numa_ext.cli.flavor import check
from placement_traits.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class Flavor:
    """A flavor to be made; sizes as nova names them: MiB of RAM, GiB of disk."""

    name: str
    vcpus: int = 1
    ram: int = 128
    disk: int = 1
    extra_specs: Mapping[str, str] = field(default_factory=dict)


def checked(fields: Iterable[Mapping[str, Any]]) -> tuple[Flavor, ...]:
    """Return flavors, each checked as ``openstack numa flavor check`` does.

    :param fields: those of :class:`Flavor`
    :raises InvalidValueError: a name that occurs twice, or what the check calls wrong
    """
    flavors = tuple(Flavor(**each) for each in fields)
    named: set[str] = set()
    for flavor in flavors:
        if flavor.name in named:
            raise InvalidValueError("flavors", flavor.name, "each name once")
        named.add(flavor.name)
        wrong = [sentence for result, sentence in check(flavor) if result == "wrong"]
        if wrong:
            allowed = f"extra specs without these faults: {' '.join(wrong)}"
            raise InvalidValueError(f"flavor {flavor.name}", dict(flavor.extra_specs), allowed)
    return flavors
