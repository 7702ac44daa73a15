# SPDX-License-Identifier: Apache-2.0
"""Our traits and amounts as text, for tables."""

import argparse
import textwrap
from collections.abc import Collection, Iterable

from nova_numa_ext.cli.cloud import Stock
from nova_numa_ext.policy.gpu.candidate_sets import GpuSet
from placement_traits import names
from placement_traits.fleet import Amount, HostView

_PLURALS = ("NODES", "SOCKETS", "L3_DOMAINS")


def traits(all_traits: Iterable[str]) -> str:
    """Our traits of a provider as text: ``node 2, socket 1, has LC``; foreign traits are left out."""
    return ", ".join(_word(trait) for trait in sorted(all_traits) if _is_shown(trait))


def amount(value: Amount | None) -> str:
    """Used and capacity, ``-`` without an inventory."""
    return "-" if value is None else f"{value.used}/{value.capacity}"


def gpus(chosen: GpuSet | None) -> str:
    """The best GPUs of a host with their utility, ``-`` without."""
    return "-" if chosen is None else f"{' '.join(chosen.addresses)} ({chosen.utility:.3f})"


def stock(name: str, value: Stock) -> str:
    """One inventory: class, used and capacity, and what is kept back."""
    kept = f" ({value.reserved} reserved)" if value.reserved else ""
    return f"{name} {value.used}/{value.capacity}{kept}"


def gpus_of(devices: Collection[str], host: HostView) -> str:
    """Devices of a host that a server holds, by provider: PCI addresses with nodes, then the links between them."""
    addresses = {device.address for device in host.devices if device.uuid in devices}
    held = [gpu for gpu in host.gpus if gpu.address in addresses]
    listed = [f"{gpu.address} (node {'?' if gpu.node is None else gpu.node})" for gpu in held]
    links = [
        f"{gpu.address} - {other}: {link.name}"
        for gpu in held
        for other, link in sorted(gpu.links.items())
        if other in addresses and gpu.address < other
    ]
    return "\n".join((*listed, *links)) or "-"


def folded(text: str, parsed_args: argparse.Namespace, width: int = 48) -> str:
    """Break a text into lines where a table is printed; every other format has it whole."""
    if parsed_args.formatter != "table":
        return text
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False))


def _is_shown(trait: str) -> bool:
    return names.is_ours(trait) and trait != names.OWNER


def _word(trait: str) -> str:
    numbered = names.parse_numbered(trait)
    if numbered is not None:
        kind, number = numbered
        word = kind.replace("_", " ").lower().replace("l3", "L3")
        return f"{number} {word}" if kind in _PLURALS else f"{word} {number}"
    word = trait.removeprefix(names.TRAIT_PREFIX).removeprefix(names.CUSTOM_PREFIX)
    return word.replace("HAS_", "has ").replace("TIER_", "tier ").replace("_", " ")
