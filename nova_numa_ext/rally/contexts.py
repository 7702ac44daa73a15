# SPDX-License-Identifier: Apache-2.0
"""Contexts: what a task needs before its scenarios begin, and takes away afterwards."""

from contextlib import suppress
from typing import Any, ClassVar

from novaclient.exceptions import NotFound
from rally import consts
from rally.common import validation
from rally.task import context
from rally_openstack.common import osclients
from rally_openstack.task.context import OpenStackContext

from nova_numa_ext.rally.checked_flavors import checked
from nova_numa_ext.rally.servers import MICROVERSION, NumaScenario
from placement_traits.errors import InvalidValueError

# Before Rally's own contexts make servers (430), after its users are there (100).
_FLAVORS_ORDER = 340
_NOISE_ORDER = 440
_OURS = "numa_ext: made by Rally for one task"


@validation.add("required_platform", platform="openstack", admin=True)
@context.configure(name="numa_ext_flavors", platform="openstack", order=_FLAVORS_ORDER)
class CheckedFlavors(OpenStackContext):  # type: ignore[misc]
    """Flavors, checked as ``openstack numa flavor check`` does before any of them is made."""

    CONFIG_SCHEMA: ClassVar = {
        "type": "array",
        "$schema": consts.JSON_SCHEMA,
        "minItems": 1,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "vcpus": {"type": "integer", "minimum": 1},
                "ram": {"type": "integer", "minimum": 1},
                "disk": {"type": "integer", "minimum": 0},
                "extra_specs": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    }

    def setup(self) -> None:
        """Check all, then make all.

        :raises InvalidValueError: one of them is wrong, or its name is taken; none was made
        """
        flavors = checked(self.config)
        nova = self._nova()
        known = {flavor.name: flavor for flavor in nova.flavors.list(is_public=None)}
        for flavor in flavors:
            old = known.get(flavor.name)
            if old is not None and old.description != _OURS:
                allowed = "names that no flavor of this cloud has"
                raise InvalidValueError("numa_ext_flavors", flavor.name, allowed)
        made = self.context.setdefault("numa_ext_flavors", [])
        for flavor in flavors:
            if flavor.name in known:  # of a task that was killed
                nova.flavors.delete(known[flavor.name].id)
            new = nova.flavors.create(
                flavor.name, flavor.ram, flavor.vcpus, flavor.disk, description=_OURS
            )
            made.append(new.id)
            if flavor.extra_specs:
                new.set_keys(dict(flavor.extra_specs))

    def cleanup(self) -> None:
        """Delete those that were made."""
        nova = self._nova()
        for flavor in self.context.get("numa_ext_flavors", []):
            nova.flavors.delete(flavor)

    def _nova(self) -> Any:
        return osclients.Clients(self.context["admin"]["credential"]).nova(MICROVERSION)


@validation.add("required_platform", platform="openstack", admin=True, users=True)
@context.configure(name="numa_ext_noise", platform="openstack", order=_NOISE_ORDER)
class Noise(OpenStackContext):  # type: ignore[misc]
    """Servers that run beside the scenarios: best-effort ones that disturb."""

    CONFIG_SCHEMA: ClassVar = {
        "type": "object",
        "$schema": consts.JSON_SCHEMA,
        "properties": {
            "image": {"type": "string"},
            "flavor": {"type": "string"},
            "count": {"type": "integer", "minimum": 1},
            "server": {"type": "object"},
        },
        "required": ["image", "flavor", "count"],
        "additionalProperties": False,
    }

    def setup(self) -> None:
        """Boot the servers as the first user and wait until they run."""
        maker = self._maker()
        try:
            image = maker.image(self.config["image"])
            for _ in range(self.config["count"]):
                maker.boot(image, self.config["flavor"])
        finally:
            self.context["numa_ext_noise"] = [server.id for server in maker.made]

    def cleanup(self) -> None:
        """Delete them."""
        maker = self._maker()
        left = []
        for uuid in self.context.get("numa_ext_noise", []):
            with suppress(NotFound):  # Rally's own clean-up may come first
                left.append(maker.server(uuid))
        maker.delete(*left)

    def _maker(self) -> NumaScenario:
        user = self.context["users"][0]
        maker = NumaScenario(
            {
                **{key: self.context[key] for key in ("admin", "task", "owner_id")},
                "user": user,
                "tenant": self.context["tenants"][user["tenant_id"]],
                "config": self.context["config"],
            }
        )
        maker.begin(self.config.get("server"))
        return maker
