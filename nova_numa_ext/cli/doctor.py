# SPDX-License-Identifier: Apache-2.0
"""Examines a cloud over Placement and Nova: what is missing for our parts to work, one line per thing."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova_numa_ext.cli import agents
from nova_numa_ext.cli.agents import AgentState
from placement_traits import beats, formats, names, nova_conf, pool_reader, pools
from placement_traits.client import MICROVERSION, PlacementClient
from placement_traits.errors import NumaExtError
from placement_traits.findings import Finding, Level, verdict
from placement_traits.fleet import HostView, L3View
from placement_traits.names import NeighbourTrait, ObserveTrait, RdtTrait, TierTrait
from placement_traits.pools import Pool
from placement_traits.request import InvalidRequestError, concerns_us, parse
from placement_traits.snapshot import FleetSnapshot
from placement_traits.words import counted

_CHECKED_SPECS: Final = (2, 86)  # from here on nova-api checks extra specs
_NAMED: Final = 20  # hosts in a message

_GONE: Final[Mapping[AgentState, str]] = {
    AgentState.WITHDRAWN: "the agents of these hosts have ended, their tiers were withdrawn (last beat): {hosts}; see "
    "systemctl status numa-host-agent there",
    AgentState.SILENT: "these agents are silent, their tiers are still offered (last beat): {hosts}; see systemctl "
    "status numa-host-agent and numa-host-agent-ctl doctor there; without an agent numa-host-agent-ctl withdraw takes "
    "the tiers back",
}


class CloudDoctor:
    """One examination.

    :param compute: openstacksdk's compute proxy
    :param placement: Placement
    """

    def __init__(self, compute: Any, placement: PlacementClient) -> None:
        self._compute = compute
        self._placement = placement

    def examine(
        self, read_fleet: Callable[[], FleetSnapshot], files: Sequence[Path] = ()
    ) -> list[Finding]:
        """Check everything.

        :param read_fleet: reads the whole fleet
        :param files: nova-scheduler's configuration, when it is at hand
        """
        found = list(placement_answers(self._placement))
        if found[0].level is Level.BROKEN:
            return found
        fleet = read_fleet()
        found += self._api()
        found += self._agents(fleet)
        found += lent_gpus(pool_reader.read(self._placement), fleet)
        found.append(published_formats(fleet))
        found += [one for host in _by_name(fleet) for one in _host(host)]
        listed = self._compute.flavors(details=True, get_extra_specs=True, is_public=None)
        found_of_flavors, groups = flavors(listed, fleet)
        found += found_of_flavors
        if files:
            domains = [len(host.l3) for host in fleet.hosts.values()]
            found += nova_conf.scheduler(nova_conf.read(files), domains, groups)
        return found

    def _api(self) -> Iterator[Finding]:
        newest = self._compute.get_endpoint_data().max_microversion
        yield verdict(
            "Nova",
            newest is not None and tuple(newest) >= _CHECKED_SPECS,
            "checks extra specs",
            "is older than compute API 2.86 and takes misspelt extra specs: see openstack numa flavor check",
        )

    def _agents(self, fleet: FleetSnapshot) -> Iterator[Finding]:
        """Compare who reports with the compute nodes that nova has, and those that are up."""
        computes = {
            each.name: each.state == "up" for each in self._compute.hypervisors(details=True)
        }
        found = agents.states(self._placement, fleet)
        up = sorted(name for name, is_up in computes.items() if is_up)
        reporting = [host for host in up if found.get(host) in agents.HERE]
        missing = [host for host in up if host not in found]
        gone = {
            host: state
            for host in up
            if (state := found.get(host)) is not None and state not in agents.HERE
        }
        if not missing and not gone:
            yield Finding("agents", Level.GOOD, f"reports of {counted(len(reporting), 'host')}")
        if missing:
            yield Finding(
                "agents",
                Level.DEGRADED if found else Level.BROKEN,
                f"no agent has ever reported on {_some(missing)}: servers with a tier find no place there; agents "
                "first, then flavors and our filter: start numa-host-agent there and see numa-host-agent-ctl doctor",
            )
        last = agents.last_beats(self._placement, gone, _NAMED)
        for state, sentence in _GONE.items():
            hosts = [host for host, its in gone.items() if its is state]
            if hosts:
                named = _some(
                    [f"{host} ({last[host]})" if host in last else host for host in hosts]
                )
                yield Finding("agents", Level.DEGRADED, sentence.format(hosts=named))
        yield from self._orphans(fleet, computes.keys())

    def _orphans(self, fleet: FleetSnapshot, computes: Collection[str]) -> Iterator[Finding]:
        """Name what is left of hosts that nova no longer has."""
        roots = {host.name for host in fleet.hosts.values()}
        left = sorted(roots.difference(computes))
        left += sorted(map(beats.provider, beats.hosts(self._placement).difference(computes)))
        if left:
            yield Finding(
                "orphan providers",
                Level.DEGRADED,
                f"{_some(left)}: nova has no such compute node; openstack numa host remove takes out what is ours; "
                "nova's part of a host then goes by openstack resource provider delete UUID",
            )


def lent_gpus(lent: Sequence[Pool], fleet: FleetSnapshot) -> Iterator[Finding]:
    """Check that no GPU of a pool is nova's, too; nothing where no host lends GPUs."""
    if not lent:
        return
    novas = {
        host.name: [device.address for device in host.devices] for host in fleet.hosts.values()
    }
    twice = pools.lent_twice(lent, novas)
    named = _some([f"{gpu} of {host}" for host in sorted(twice) for gpu in twice[host]])
    yield verdict(
        "remote GPUs",
        not twice,
        f"{counted(sum(len(pool.gpus) for pool in lent), 'GPU')} of {counted(len(lent), 'pool')}",
        f"{named}: both the pool and nova give them to servers; take them out of [pci]device_spec or "
        "[devices]enabled_mdev_types of that nova-compute, or lend them no more",
        Level.BROKEN,
    )


def placement_answers(placement: PlacementClient) -> Iterator[Finding]:
    """Check that Placement answers and knows what agents publish; the first finding says whether it answers."""
    try:
        known = {c["name"] for c in placement.get("/resource_classes")["resource_classes"]}
    except NumaExtError as error:
        yield Finding("Placement", Level.BROKEN, str(error))
        return
    yield Finding("Placement", Level.GOOD, f"answers with {MICROVERSION}")
    missing = [name for name in names.RESOURCE_CLASSES if name not in known]
    yield verdict(
        "resource classes",
        not missing,
        "all known",
        f"{', '.join(missing)} unknown: no agent has reported yet, and nova-scheduler fails on flavors that ask "
        "for them; start numa-host-agent on a compute host",
        Level.BROKEN,
    )


def published_formats(fleet: FleetSnapshot) -> Finding:
    """Compare the formats in which hosts are published with the one that this release reads."""
    check = "formats"
    of = {host.name: formats.of(host.traits) for host in _by_name(fleet)}
    newer = [name for name, number in of.items() if number > formats.CURRENT]
    if newer:
        text = (
            f"{_some(newer)}: published in format {max(of.values())} by agents of a later release, this one reads up "
            f"to {formats.CURRENT} and may judge them wrongly; upgrade the controllers, or these agents back"
        )
        return Finding(check, Level.BROKEN, text)
    older = [name for name, number in of.items() if number < formats.CURRENT]
    return verdict(
        check,
        not older,
        f"all hosts are published in format {formats.CURRENT}",
        f"{_some(older)}: published in format {min(of.values(), default=formats.FIRST)} by agents of an earlier "
        "release, which is read; upgrade the agents",
    )


def flavors(listed: Iterable[Any], fleet: FleetSnapshot) -> tuple[list[Finding], set[int]]:
    """Return what is wrong with flavors, and of how many L3 domains apart from each other they claim something.

    :param listed: all flavors, with name, extra_specs, vcpus and ram
    """
    wrong, groups, strict = [], {1}, []
    for flavor in listed:
        specs = dict(flavor.extra_specs or {})
        if not concerns_us(specs):
            continue
        try:
            request = parse(specs, vcpus=flavor.vcpus, memory_mb=flavor.ram)
        except InvalidRequestError as error:
            wrong.append(Finding(f"flavor {flavor.name}", Level.BROKEN, str(error)))
        else:
            groups.add(len(request.l3))
            strict += [flavor.name] if request.strict else []
    good = Finding("flavors", Level.GOOD, "all that concern us are valid")
    offered = [_strict_flavors(strict, fleet)] if strict else []
    return [*(wrong or [good]), *offered], groups


def _some(names_: Sequence[str]) -> str:
    """Return names for a message, the first ones of many."""
    more = f" and {len(names_) - _NAMED} more" if len(names_) > _NAMED else ""
    return ", ".join(names_[:_NAMED]) + more


def _by_name(fleet: FleetSnapshot) -> list[HostView]:
    return sorted(fleet.hosts.values(), key=lambda host: host.name)


def _strict_flavors(flavors: Sequence[str], fleet: FleetSnapshot) -> Finding:
    """Say whether hosts offer what strict flavors ask for: agents come first, flavors after."""
    hosts = _by_name(fleet)
    without = [h.name for h in hosts if not any(d.neighbourhood is not None for d in h.l3)]
    if not without and hosts:
        return Finding(
            "strict flavors",
            Level.GOOD,
            f"what they ask for is offered by {counted(len(hosts), 'host')}",
        )
    if len(without) < len(hosts):
        text = f"do not go to {_some(without)}: the agents there offer no {names.LLC_NEIGHBOURHOOD}; upgrade them"
        return Finding("strict flavors", Level.DEGRADED, text)
    text = (
        f"{_some(sorted(flavors))} ask for {names.LLC_NEIGHBOURHOOD}, which no host offers: Placement has no host "
        "for them; upgrade the agents first"
    )
    return Finding("strict flavors", Level.BROKEN, text)


def _host(host: HostView) -> Iterator[Finding]:
    problems = [problem for problem in _host_problems(host) if problem]
    if not problems:
        yield Finding(f"host {host.name}", Level.GOOD, f"{len(host.l3)} L3 domains")
    for problem in problems:
        yield Finding(f"host {host.name}", Level.DEGRADED, problem)


def _host_problems(host: HostView) -> Iterator[str]:
    if names.DRAINED in host.traits:
        yield "is drained: it takes no new servers with a tier until openstack numa host undrain"
    elif host.traits.isdisjoint(TierTrait):
        yield "takes no servers with a tier: its agent has ended, and its tiers were withdrawn"
    elif TierTrait.LC not in host.traits:
        yield f"takes no LC servers: {_without_lc(host.traits)}"
    if not host.l3:
        yield "shows no L3 domain: neighbours and bandwidth are not known"
        return
    if all(domain.bandwidth_mbps is None for domain in host.l3):
        yield "offers no memory bandwidth: set [placement]bandwidth_mbps_per_node there"
    unmet = [d.l3_id for d in host.l3 if NeighbourTrait.UNMET_SLO in d.neighbours]
    if unmet:
        domains = ", ".join(map(str, unmet))
        yield (
            f"a latency objective cannot be kept in L3 domains {domains}: live-migrate a best-effort server; "
            "entries cannot_fix of numa-host-agent-ctl journal there name those whose leaving helps"
        )
    met = [d.l3_id for d in host.l3 if _met(d)]
    if met:
        domains = ", ".join(map(str, met))
        yield (
            f"a rabbit that has claimed its cache neighbourhood lives with a devil in L3 domains {domains}: "
            "nova-compute bound them to one node, or nova shares no other CPU with the devil; live-migrate one of them"
        )
    full = [d.l3_id for d in host.l3 if d.bandwidth_mbps and d.bandwidth_mbps.free < 0]
    if full:
        domains = ", ".join(map(str, full))
        yield f"more bandwidth is used than there is in L3 domains {domains}: migrate servers away"


def _without_lc(root_traits: Collection[str]) -> str:
    """Return why an agent that is there offers the tier BE alone."""
    if RdtTrait.L3_CAT not in root_traits:
        return "no L3 cache allocation; is resctrl mounted there?"
    if ObserveTrait.RDT in root_traits:
        return "its agent only observes partitions ([rdt]); openstack numa host list, column Mode, says on whose word"
    return "[rdt]enabled is false there"


def _met(domain: L3View) -> bool:
    """Return whether a strict rabbit and a devil were seen in one domain."""
    claimed = (
        domain.neighbourhood is not None and domain.neighbourhood.used >= names.WHOLE_NEIGHBOURHOOD
    )
    return claimed and {NeighbourTrait.RABBIT, NeighbourTrait.DEVIL} <= domain.neighbours
