# SPDX-License-Identifier: Apache-2.0
"""Which RDT groups a host should have for the servers on it; :mod:`.changes` orders the writes that lead there. Pure.

Rules:

- Every LC has a control group of its own, ``numa_ext-lc-<uuid>``, with exactly its ways in the L3 domains where it
  runs, disjoint from root, all BE classes, other LCs and shareable ways. In other domains a mask may not be empty
  (Intel): it is the shared run there.
- BE servers borrow what is left: one class ``numa_ext-be-<n>`` each while there are CLOSIDs, else the two classes that
  lose least bandwidth by it are merged (each domain then has the lowest level of its members, so no LC is hurt).
  Every BE server has a monitoring group in its class; it shows after a restart which server is in which class. Where
  there is none (a host without monitoring, too few RMIDs) the caller remembers it, so that servers stay in their class.
- Root gives up the ways that an LC gets, and only those; where no LC is left it has again what it was found with, be
  that all ways or an operator's choice. What it was found with is remembered by the caller while root is shrunk.
- The L2 belongs to cores, and so to the servers that run there: every group has all of it (Intel and AMD allocate it by
  class, which no flavor asks for).
- An LC that cannot be had whole is refused whole, newest first; all others stand. Who is refused is looked at again
  once it is known who stands, so the reason names what is held by servers that have something.

The plan is a function of what is there and of what root was found with: planning on the state that a plan has produced
changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from host_agent.conf.rdt import RdtOptions
from host_agent.decide.partitions import reasons
from host_agent.decide.partitions.classes import BE_PREFIX, BeClass, distribute
from host_agent.decide.partitions.layout import L3Layout, Line, lay_out
from host_agent.model.levels import FULL
from host_agent.model.partition import PartitionPlace, PartitionRequest
from host_agent.model.rdt import (
    GROUP_PREFIX,
    SHAREABLE_MODE,
    Actual,
    BandwidthUnit,
    Capabilities,
    GroupState,
    Schemata,
)
from host_agent.model.terms import Term, sentence
from placement_traits.names import Tier
from placement_traits.reason import Reason

_LC_PREFIX = f"{GROUP_PREFIX}lc-"
_VM_PREFIX = f"{GROUP_PREFIX}vm-"
_WASTED_WAYS_MAX = 1  # more idle ways of a domain between LCs, and LCs are moved together
_DEFAULTS = RdtOptions()


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One control group as it should be; ``exclusive`` are the domains where its mask is an LC's own."""

    name: str
    schemata: Schemata
    monitors: tuple[str, ...] = ()
    exclusive: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server that gets no partition and stays in root, with the reasons."""

    uuid: str
    reasons: tuple[Reason, ...]

    @property
    def sentence(self) -> str:
        """Who gets nothing, and why, for people."""
        return f"server {self.uuid} gets no RDT partition: {'; '.join(map(sentence, self.reasons))}"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """All that should be: root's masks, our groups, where each server belongs, who is refused.

    :ivar found: root's masks before we shrank them, in the domains where this plan keeps them shrunk; to be remembered
        and given to the next :func:`plan`
    :ivar anchors: L3 domain -> ways that always belong to the shared run (needed to order the writes)
    """

    root: Schemata
    groups: tuple[GroupPlan, ...]
    places: tuple[PartitionPlace, ...]
    refused: tuple[Refusal, ...] = ()
    anchors: Mapping[int, int] = field(default_factory=dict)
    found: Schemata = field(default_factory=dict)

    def get(self, uuid: str) -> PartitionPlace | None:
        """Return where a server belongs, None when it was refused or is unknown."""
        return next((place for place in self.places if place.uuid == uuid), None)


def short(uuid: str) -> str:
    """Return the part of a server's uuid that names its groups: 48 bits, enough for one host."""
    return uuid[:13]


def lc_group(uuid: str) -> str:
    """Name of the control group of a latency-critical server."""
    return _LC_PREFIX + short(uuid)


def vm_monitor(uuid: str) -> str:
    """Name of the monitoring group of a server inside its class."""
    return _VM_PREFIX + short(uuid)


def plan(
    capabilities: Capabilities,
    actual: Actual,
    requests: Sequence[PartitionRequest],
    options: RdtOptions = _DEFAULTS,
    *,
    found: Schemata | None = None,
    before: Mapping[str, str] = MappingProxyType({}),
    wasted_ways_max: int = _WASTED_WAYS_MAX,
) -> PartitionPlan:
    """Decide which groups there should be.

    :param capabilities: of this host
    :param actual: all control groups there are, foreign ones included
    :param requests: all managed servers that run here, in any order
    :param found: of the plan that was applied last, None when that is not known
    :param before: uuid -> control group of that plan; counts for servers that have no monitoring group
    :param wasted_ways_max: ways of a domain that may lie idle between LCs before LCs are moved together
    """
    as_found = _as_found(capabilities, actual, found, options)
    lines = _lines(capabilities, actual, options, as_found)
    candidates, refused = _possible(capabilities, actual, requests)
    room = _lc_room(capabilities, actual, candidates)
    lcs, layouts, left_out = _admit(lines, actual, candidates, room, wasted_ways_max)
    refused += left_out
    shared = {domain: layout.shared for domain, layout in layouts.items()}
    budget = _control_budget(capabilities, actual) - len(lcs)
    bes = [one for one in requests if one.tier is Tier.BE]
    classes = _classes(bes, actual, before, budget) if budget > 0 else []
    if not classes:
        refused += [Refusal(be.uuid, (Reason(Term.NO_CLOSID, 1, 0),)) for be in bes]
    monitored = _monitored(capabilities, actual, len(lcs) + len(classes), classes)
    groups: list[GroupPlan] = []
    places: list[PartitionPlace] = []
    for lc in lcs:
        own = {domain: layouts[domain].masks[lc.uuid] for domain in lc.ways}
        masks = _schemata(capabilities, shared | own, {})
        groups.append(GroupPlan(lc_group(lc.uuid), masks, (), frozenset(own)))
        places.append(_lc_place(actual, lc, own, {} if options.shrink_root else as_found))
    for be_class in classes:
        monitors = {be.uuid: vm_monitor(be.uuid) for be in be_class.members if be.uuid in monitored}
        schemata = _schemata(capabilities, shared, be_class.levels())
        groups.append(GroupPlan(be_class.name, schemata, tuple(monitors.values())))
        places += [
            _be_place(capabilities, be, be_class, monitors.get(be.uuid, ""))
            for be in be_class.members
        ]
    anchors = {domain: line.anchor for domain, line in lines.items()}
    root, shrunk = _shrunk_root(as_found, lines, layouts) if options.shrink_root else (as_found, {})
    return PartitionPlan(root, tuple(groups), tuple(places), tuple(refused), anchors, shrunk)


def _lines(
    capabilities: Capabilities, actual: Actual, options: RdtOptions, as_found: Schemata
) -> dict[int, Line]:
    return {
        domain: _line(capabilities, actual, domain, options, _union(as_found, domain))
        for domain in _l3_domains(capabilities)
    }


def _lc_place(
    actual: Actual, lc: PartitionRequest, own: Mapping[int, int], open_root: Schemata
) -> PartitionPlace:
    """Return where an LC is, and why, or why not, it is exclusive.

    :param own: its mask in each domain
    :param open_root: what root keeps
    """
    against = _against(actual, own, open_root)
    amounts = tuple(
        Reason(Term.PARTITION_WAYS, mask.bit_count(), lc.ways[d], f"L3 {d}")
        for d, mask in sorted(own.items())
    )
    exclusive = bool(own) and not against
    return PartitionPlace(lc.uuid, lc_group(lc.uuid), "", exclusive, amounts + against)


def _be_place(
    capabilities: Capabilities, be: PartitionRequest, be_class: BeClass, monitor: str
) -> PartitionPlace:
    why = reasons.of_best_effort(capabilities, be, be_class, monitor)
    return PartitionPlace(be.uuid, be_class.name, monitor, False, why)


# -- latency-critical servers --


def _l3_domains(capabilities: Capabilities) -> tuple[int, ...]:
    return capabilities.l3[0].domains if capabilities.l3 else ()


def _mask(group: GroupState, domain: int) -> int:
    """Return the ways of a group in a domain; with CDP those for code and for data together."""
    return _union(group.schemata, domain)


def _union(schemata: Schemata, domain: int) -> int:
    total = 0
    for name, values in schemata.items():
        total |= values.get(domain, 0) if name.startswith("L3") else 0
    return total


def _line(
    capabilities: Capabilities,
    actual: Actual,
    domain: int,
    options: RdtOptions,
    root: int,
) -> Line:
    """Describe a domain's ways; ``root`` is the mask that root was found with."""
    cache = capabilities.l3[0]
    locked = fenced = foreign = 0
    for group in actual.foreign:
        mask = _mask(group, domain)
        foreign |= mask
        locked |= mask if group.mode != SHAREABLE_MODE else 0
        fenced |= mask if not mask & root else 0
    return Line(
        ways=cache.ways,
        min_bits=max(cache.min_cbm_bits, 1),
        shareable=cache.shareable_bits,
        locked=locked,
        fenced=fenced,
        foreign=foreign,
        shared_min=options.shared_ways_min,
    )


def _as_found(
    capabilities: Capabilities,
    actual: Actual,
    remembered: Schemata | None,
    options: RdtOptions,
) -> Schemata:
    """Return root's masks as they were before we shrank them.

    What is remembered counts; a change of root by other software while an LC is there is undone. If the memory
    is lost, all ways are taken for root's where an LC's group stands apart from it.
    """
    lost = remembered is None and options.shrink_root
    apart = _domains_apart(actual) if lost else frozenset()

    def as_found(name: str, domain: int) -> int:
        now = actual.root.schemata[name][domain]
        before = (remembered or {}).get(name, {}).get(domain, 0)
        if before:
            return before
        if domain in apart:
            return _line(capabilities, actual, domain, options, now).shared_run(0)
        return now

    return {
        cache.name: {domain: as_found(cache.name, domain) for domain in cache.domains}
        for cache in capabilities.l3
    }


def _domains_apart(actual: Actual) -> frozenset[int]:
    """L3 domains where root and an LC's group have no way in common: there we have shrunk root."""
    lcs = [group for group in actual.ours if group.name.startswith(_LC_PREFIX)]
    domains = {
        d for n, values in actual.root.schemata.items() if n.startswith("L3") for d in values
    }
    return frozenset(
        d for d in domains if any(not _mask(lc, d) & _mask(actual.root, d) for lc in lcs)
    )


def _shrunk_root(
    before: Schemata, lines: Mapping[int, Line], layouts: Mapping[int, L3Layout]
) -> tuple[Schemata, Schemata]:
    """Return root's masks beside the LCs, and what it was found with where they differ."""
    root = {
        name: {d: _beside(mask, lines[d], layouts[d]) for d, mask in masks.items()}
        for name, masks in before.items()
    }
    shrunk = {
        name: {d: mask for d, mask in masks.items() if root[name][d] != mask}
        for name, masks in before.items()
    }
    return root, {name: masks for name, masks in shrunk.items() if masks}


def _beside(found: int, line: Line, layout: L3Layout) -> int:
    """Return what root may keep of the mask it was found with; if that is too little, the shared run."""
    taken = line.locked | sum(layout.masks.values())
    if not found & taken:
        return found
    kept = found & layout.shared
    return kept if kept.bit_count() >= line.min_bits else layout.shared


def _control_budget(capabilities: Capabilities, actual: Actual) -> int:
    """Return how many control groups we may have: all CLOSIDs (and RMIDs) without root's and the foreign ones'."""
    number = capabilities.num_closids
    if capabilities.monitoring:
        number = min(number, capabilities.monitoring.num_rmids - _foreign_monitors(actual))
    return number - 1 - len(actual.foreign)


def _foreign_monitors(actual: Actual) -> int:
    """Return how many monitoring groups of others there are, those in groups of ours included."""
    return sum(len(group.monitors) - len(group.our_monitors) for group in actual.groups)


def _possible(
    capabilities: Capabilities, actual: Actual, requests: Sequence[PartitionRequest]
) -> tuple[list[PartitionRequest], list[Refusal]]:
    """Return the LCs whose L3 domains there are, those with a group first, and the others with the reason."""
    there = {group.name for group in actual.ours}
    lcs = sorted(
        (one for one in requests if one.tier is Tier.LC),
        key=lambda one: (lc_group(one.uuid) not in there, one.uuid),
    )
    domains = _l3_domains(capabilities)
    possible: list[PartitionRequest] = []
    refused: list[Refusal] = []
    for lc in lcs:
        unknown = sorted(set(lc.ways) - set(domains))
        if lc.ways and not domains:
            refused.append(Refusal(lc.uuid, (Reason(Term.NO_L3_CAT, "requested", "absent"),)))
        elif unknown:
            reason = Reason(Term.NO_L3_DOMAIN, unknown[0], str(list(domains)))
            refused.append(Refusal(lc.uuid, (reason,)))
        else:
            possible.append(lc)
    return possible, refused


def _lc_room(capabilities: Capabilities, actual: Actual, lcs: Sequence[PartitionRequest]) -> int:
    """Return how many LCs may have a group: one class stays for BE servers, but no LC loses the group it has."""
    there = {group.name for group in actual.ours}
    return max(
        _control_budget(capabilities, actual) - 1, sum(lc_group(lc.uuid) in there for lc in lcs)
    )


def _admit(
    lines: Mapping[int, Line],
    actual: Actual,
    lcs: Sequence[PartitionRequest],
    room: int,
    wasted_ways_max: int,
) -> tuple[list[PartitionRequest], dict[int, L3Layout], list[Refusal]]:
    """Return the LCs that get what they request, the layout of every domain, and the refusals.

    While a domain does not fit, the last LC in it is left out. Another one may be left out later that was in its way:
    so each is looked at again in the end, in the same order.

    :param lcs: in the order in which they are served
    :param room: LCs that may have a group
    """

    def laid_out(domain: int, admitted: Sequence[PartitionRequest]) -> L3Layout | None:
        current = _current(actual, domain, admitted)
        amounts = _amounts(lines[domain], domain, admitted)
        return lay_out(lines[domain], amounts, current, wasted_ways_max)

    admitted = list(lcs[:room])
    layouts: dict[int, L3Layout] = {}
    while len(layouts) < len(lines):
        layouts = {}
        for domain in lines:
            layout = laid_out(domain, admitted)
            if layout is None:
                admitted.remove(next(lc for lc in reversed(admitted) if domain in lc.ways))
                break
            layouts[domain] = layout
    blocked: dict[str, int] = {}
    for lc in [lc for lc in lcs if lc not in admitted]:
        if len(admitted) >= room:
            continue
        tried = {domain: laid_out(domain, (*admitted, lc)) for domain in sorted(lc.ways)}
        fits = {domain: layout for domain, layout in tried.items() if layout is not None}
        if len(fits) == len(tried):
            admitted.append(lc)
            layouts |= fits
        else:
            blocked[lc.uuid] = next(domain for domain in tried if domain not in fits)
    refused = []
    for lc in lcs:
        if lc.uuid in blocked:
            refused.append(_blocked(lines, blocked[lc.uuid], lc, admitted))
        elif lc not in admitted:
            reason = Reason(Term.NO_CLOSID_BESIDE_BE, len(admitted) + 1, room)
            refused.append(Refusal(lc.uuid, (reason,)))
    return admitted, layouts, refused


def _current(actual: Actual, domain: int, lcs: Sequence[PartitionRequest]) -> dict[str, int]:
    """Return the masks that LCs have in a domain now."""
    return {
        lc.uuid: _mask(group, domain)
        for lc in lcs
        if domain in lc.ways and (group := actual.get(lc_group(lc.uuid)))
    }


def _blocked(
    lines: Mapping[int, Line],
    domain: int,
    lc: PartitionRequest,
    admitted: Sequence[PartitionRequest],
) -> Refusal:
    amounts = _amounts(lines[domain], domain, (*admitted, lc))
    return Refusal(lc.uuid, reasons.of_refused_ways(lines[domain], domain, lc, amounts))


def _amounts(line: Line, domain: int, lcs: Sequence[PartitionRequest]) -> dict[str, int]:
    return {lc.uuid: max(lc.ways[domain], line.min_bits) for lc in lcs if domain in lc.ways}


def _against(actual: Actual, own: Mapping[int, int], open_root: Schemata) -> tuple[Reason, ...]:
    """Return what stands against an LC's ways being its own alone; ``open_root``: root's masks that are not shrunk."""
    found = []
    for domain, mask in sorted(own.items()):
        if mask & _union(open_root, domain):
            found.append(Reason(Term.WAYS_SHARED_WITH, f"{mask:x}", "root", f"L3 {domain}"))
        for group in actual.foreign:
            if mask & _mask(group, domain):
                found.append(Reason(Term.WAYS_SHARED_WITH, f"{mask:x}", group.name, f"L3 {domain}"))
    return tuple(found)


# -- best-effort servers --


def _classes(
    bes: Sequence[PartitionRequest], actual: Actual, before: Mapping[str, str], budget: int
) -> list[BeClass]:
    """Distribute BE servers over classes; monitoring groups show which is where now, else memory does."""
    now_in = {monitor: group.name for group in actual.ours for monitor in group.our_monitors}
    now = {be.uuid: now_in.get(vm_monitor(be.uuid)) or before.get(be.uuid, "") for be in bes}
    there = [group.name for group in actual.ours if group.name.startswith(BE_PREFIX)]
    return distribute(bes, now, there, budget)


def _monitored(
    capabilities: Capabilities, actual: Actual, control_groups: int, classes: Sequence[BeClass]
) -> frozenset[str]:
    """Return the BE servers that get a monitoring group: as many as there are RMIDs, those that have one first."""
    if capabilities.monitoring is None:
        return frozenset()
    foreign = len(actual.foreign) + _foreign_monitors(actual)
    room = capabilities.monitoring.num_rmids - 1 - foreign - control_groups
    have = {monitor for group in actual.ours for monitor in group.our_monitors}
    members = [member.uuid for be_class in classes for member in be_class.members]
    order = sorted(members, key=lambda uuid: (vm_monitor(uuid) not in have, uuid))
    return frozenset(order[: max(room, 0)])


def _schemata(
    capabilities: Capabilities, masks: Mapping[int, int], levels: Mapping[int, int] | None
) -> Schemata:
    """Build the schemata of a group; ``levels`` None leaves bandwidth alone, missing domains get all of it."""
    schemata: dict[str, dict[int, int]] = {
        cache.name: {domain: masks[domain] for domain in cache.domains} for cache in capabilities.l3
    }
    for cache in capabilities.l2:
        schemata[cache.name] = dict.fromkeys(cache.domains, cache.cbm_mask)
    bandwidth = capabilities.bandwidth
    if levels is not None and bandwidth and bandwidth.unit is not BandwidthUnit.MBPS:
        schemata["MB"] = {
            domain: bandwidth.from_percent(levels.get(domain, FULL)) for domain in bandwidth.domains
        }
    return schemata
