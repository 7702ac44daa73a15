# SPDX-License-Identifier: Apache-2.0
"""``openstack numa flavor check``."""

import argparse
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.image import has_latency_port, required_traits, topology_properties
from placement_traits import names
from placement_traits.names import Key, SloSource, Tier, TierTrait
from placement_traits.request import InvalidRequestError, concerns_us, parse
from placement_traits.workload_request import WorkloadRequest

_WIDTH: Final = 80
_NEAR: Final = 0.8  # of difflib's ratio: one or two wrong letters
_OURS: Final = f"{names.EXTRA_SPEC_NAMESPACE}:"  # reported by nova and by parse
_SEPARATORS: Final = re.compile("[-.:]")


class CheckFlavor(command.Lister):  # type: ignore[misc]
    """Check a flavor's extra specs alone and together, with the sentences of the API and the scheduler.

    The exit code is 1 when something is wrong, not for a warning.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the flavors."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "flavor",
            metavar="<flavor>",
            nargs="+",
            help="Flavor, by name or id; several are allowed",
        )
        parser.add_argument(
            "--image",
            metavar="<image>",
            help="Check the flavor together with this image, by name or id: it may ask for NUMA nodes, dedicated CPUs "
            "and traits, too",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        rows: list[tuple[str, str, str]] = []
        image = self.app.client_manager.numa.image(parsed_args.image)
        for name in parsed_args.flavor:
            flavor = self.app.client_manager.numa.flavor(name)
            rows.extend(
                (flavor.name, result, formatting.folded(text, parsed_args, _WIDTH))
                for result, text in check(flavor, image)
            )
        self._wrong = any(result == "wrong" for _, result, _ in rows)
        return ("Flavor", "Result", "Findings"), rows

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 when something is wrong."""
        code: int = super().run(parsed_args)
        return code or int(self._wrong)


def check(flavor: Any, image: Mapping[str, Any] = MappingProxyType({})) -> list[tuple[str, str]]:
    """Return (``ok``, ``warning``, ``wrong`` or ``none``, sentence) of an openstacksdk flavor.

    :param image: properties of the image that it is used with, as Glance shows them
    """
    extra_specs = dict(flavor.extra_specs or {})
    missed = [
        ("wrong", f"{key} is not read by numa_ext; did you mean {meant}?")
        for key, meant in near_misses(extra_specs)
    ]
    traits = required_traits(image)
    if not concerns_us(extra_specs, traits):
        return missed or [("none", "The flavor has no key of numa_ext.")]
    try:
        request = parse(
            extra_specs,
            vcpus=flavor.vcpus,
            memory_mb=flavor.ram,
            image_traits=traits,
            image_properties=topology_properties(image),
        )
    except InvalidRequestError as error:
        return [*missed, *(("wrong", problem) for problem in error.problems)]
    missed += _unguarded(request, extra_specs)
    missed += _unwatched(request, image)
    where = f"How each host answers it now: openstack numa simulate --flavor {flavor.name}"
    return missed or [("ok", f"{summary(request)}. {where}")]


def _unguarded(request: WorkloadRequest, extra_specs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Ask for the trait by which Placement itself leaves out hosts whose agent is gone."""
    trait = f"trait:{TierTrait.LC}"
    if request.tier is not Tier.LC or extra_specs.get(trait) == "required":
        return []
    return [
        (
            "warning",
            f"{trait}=required is missing: with it Placement offers no host whose agent is gone, to any scheduler.",
        )
    ]


def _unwatched(request: WorkloadRequest, image: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name an objective whose latency nothing that is known here can tell; what hosts read besides is not known."""
    if request.slo_p99_us is None or request.slo_source is SloSource.PROMETHEUS:
        return []
    if request.slo_source is SloSource.NONE:
        sentence = (
            f"{Key.SLO_P99_US} with {Key.SLO_SOURCE}=none is unwatched: nothing reads the latency."
        )
        return [("warning", sentence)]
    if has_latency_port(image):
        return []
    rest = (
        "nothing else is read, and the objective is unwatched"
        if request.slo_source is SloSource.CHANNEL
        else "only [slo]prometheus_url is left, and on hosts that have none the objective is unwatched"
    )
    return [
        (
            "warning",
            f"{Key.SLO_P99_US}: no image with hw_qemu_guest_agent=yes is given (--image); without it the guest has no "
            f"port to report its latency through: {rest}.",
        )
    ]


def summary(request: WorkloadRequest) -> str:
    """Summarise what a flavor requests; GPUs where it requests some."""
    parts = [
        f"tier {request.tier}" if request.tier else "no tier",
        f"strict {request.interference_class}"
        if request.strict
        else str(request.interference_class),
        f"memory {request.memory_policy}",
    ]
    if request.devices:
        count = sum(len(each.parts) for each in request.devices)
        parts.append(
            f"devices: {count}, GPUs by policy {request.gpu_policy} with gpu_comm {request.gpu_comm}, "
            f"min_utility {request.min_utility:g}, remote_gpu {request.remote_gpu}"
        )
    return ", ".join(parts)


def near_misses(extra_specs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield keys that no service reads but that are nearly ours, each with the key that was meant.

    Nova checks only keys of our own namespace: one in a misspelt namespace, or an amount of a misspelt resource class,
    passes it.
    """
    for key in extra_specs:
        group, _, name = key.partition(":")
        if group.startswith("resources"):
            known = {each: f"{group}:{each}" for each in names.RESOURCE_CLASSES}
            word = name.upper()
        else:
            known = {_SEPARATORS.sub("_", each): str(each) for each in names.Key}
            word = _SEPARATORS.sub("_", key.lower())
        near = difflib.get_close_matches(word, known, n=1, cutoff=_NEAR)
        if near and key != known[near[0]] and not key.startswith(_OURS):
            yield key, known[near[0]]
