# SPDX-License-Identifier: Apache-2.0
"""Our traits and amounts in words, for tables."""

from collections.abc import Iterable

from nova_numa_ext.osc.cloud import Stock
from nova_numa_ext.policy.gpu_sets import GpuSet
from placement_traits import names
from placement_traits.fleet import Amount

_PLURALS = ("NODES", "SOCKETS", "L3_DOMAINS")


def traits(all_traits: Iterable[str]) -> str:
    """Our traits of a provider as words: ``node 2, socket 1, has LC``; foreign traits are left out."""
    return ", ".join(_word(trait) for trait in sorted(all_traits) if _telling(trait))


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


def _telling(trait: str) -> bool:
    return names.is_ours(trait) and trait != names.OWNER


def _word(trait: str) -> str:
    numbered = names.parse_numbered(trait)
    if numbered is not None:
        kind, number = numbered
        word = kind.replace("_", " ").lower().replace("l3", "L3")
        return f"{number} {word}" if kind in _PLURALS else f"{word} {number}"
    word = trait.removeprefix(names.TRAIT_PREFIX).removeprefix("CUSTOM_")
    return word.replace("HAS_", "has ").replace("TIER_", "tier ").replace("_", " ")
