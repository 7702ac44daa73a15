# SPDX-License-Identifier: Apache-2.0
"""What a command is asked about: a flavor together with an image and with what PCI aliases stand for."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nova_numa_ext.cli.cloud import Cloud
from nova_numa_ext.cli.image import required_traits, topology_properties
from placement_traits import devices
from placement_traits.devices import By
from placement_traits.request import parse
from placement_traits.workload_request import WorkloadRequest

_NO_ALIAS: Final = (
    "Devices of the PCI alias {} are not judged: only nova.conf says what it stands for. Give --pci-alias, or run "
    "numa-ext-explain --flavor on a controller."
)


@dataclass(frozen=True, slots=True)
class FlavorRequest:
    """A flavor as it is asked about.

    :param flavor: its name
    :param request: what it requests
    :param aliases: resource classes of the PCI aliases that were given
    """

    flavor: str
    request: WorkloadRequest
    aliases: Mapping[str, frozenset[str]]

    def warning(self) -> str:
        """Return a sentence about PCI aliases that were not defined; empty without."""
        unknown = [
            each.name
            for each in self.request.devices
            if each.by is By.ALIAS and each.name not in self.aliases
        ]
        return _NO_ALIAS.format(", ".join(unknown)) if unknown else ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what an image and nova.conf add to a flavor."""
    parser.add_argument(
        "--image-trait",
        action="append",
        default=[],
        metavar="<trait>",
        help="Trait that the image requires (can be given several times)",
    )
    parser.add_argument(
        "--pci-alias",
        action="append",
        default=[],
        metavar="<json>",
        help="Definition of a PCI alias of the flavor, as in [pci]alias of nova.conf (can be given several times): "
        "only nova knows what an alias stands for",
    )
    parser.add_argument(
        "--image", metavar="<image>", help="Image that the server would boot, by name or id"
    )


def read(cloud: Cloud, name: str, parsed_args: argparse.Namespace) -> FlavorRequest:
    """Return what is asked about.

    :param name: the flavor, by name or id
    :raises InvalidRequestError: the flavor is not valid
    """
    flavor: Any = cloud.flavor(name)
    image = cloud.image(parsed_args.image)
    request = parse(
        dict(flavor.extra_specs or {}),
        vcpus=flavor.vcpus,
        memory_mb=flavor.ram,
        image_traits=required_traits(image) | frozenset(parsed_args.image_trait),
        image_properties=topology_properties(image),
    )
    return FlavorRequest(flavor.name, request, devices.classes_of_aliases(parsed_args.pci_alias))
