# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-ctl heal``: give servers back what they should hold in Placement.

``nova-manage placement heal_allocations`` puts everything that a flavor counts on nova's root provider, which has no
classes of service, ways or bandwidth, so Placement refuses the whole. Here each amount goes to the provider that has
it: classes of service to ``:rdt``, ways and bandwidth to the L3 domains where the server runs. A server without a NUMA
topology may hold them in any domain; when some are missing, all of them go to its home. Of a server that holds nothing
at all nova's own part is rebuilt, too, from the metadata that nova left in libvirt.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from host_agent.conf.configuration import Configuration
from host_agent.control import home_nodes_store
from host_agent.control.assembly.observer import topology_reader
from host_agent.control.journal import open_journal
from host_agent.decide.amounts.claims import (
    Claim,
    Held,
    NotTouchableError,
    Replacement,
    claims,
    floating_claims,
    healed,
    joined,
)
from host_agent.machine.libvirt import LibvirtSource, ListedDomain
from host_agent.model.assignment import Guest, Observation
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.workload import parse
from host_agent.report.clients import make_allocations
from host_agent.report.nova_resources import nova_part
from placement_traits.errors import CapabilityMissingError

if TYPE_CHECKING:  # HTTP clients are loaded when they are needed: it takes long
    from host_agent.report.allocations import Allocations

Row = dict[str, Any]


def heal(conf: Configuration, *, dry_run: bool) -> list[Row]:
    """Heal the servers of this host; return one row per server that lacked something.

    :param dry_run: only say what would be done
    :raises NumaExtError: libvirt, Placement or nova does not answer
    """
    source = LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    try:
        root = conf.host.name or source.hostname()
        found = source.domains()
    finally:
        source.close()
    observation = Observation(topology_reader(conf)(), tuple(_guests(conf, found)))
    bound = claims(observation)
    due = (
        *bound,
        *floating_claims(
            observation, home_nodes_store.store(conf.paths.home_nodes).load() or {}, bound
        ),
    )
    allocations = make_allocations(conf, root)
    journal = None if dry_run else open_journal(conf)
    xml = {domain.uuid: domain.xml for domain in found}
    try:
        return heal_claims(allocations, root, due, xml, journal)
    finally:
        if journal is not None:
            journal.close()


def _guests(conf: Configuration, found: Iterable[ListedDomain]) -> Iterator[Guest]:
    for domain in found:
        yield Guest(parse(domain.xml, domain.activity, manage_untagged=conf.agent.manage_untagged))


def heal_claims(
    allocations: "Allocations",
    root: str,
    due: Iterable[Claim],
    xml: Mapping[str, str],
    journal: ActionJournal | None,
) -> list[Row]:
    """Make good what each claim lacks.

    :param allocations: what servers hold
    :param root: name of nova's root provider
    :param due: what they should hold
    :param xml: the domains' XML, by server
    :param journal: takes an entry for each server; None: nothing is written, only shown
    """
    allocations.refresh()
    rows = []
    for claim in due:
        row = _heal_one(allocations, root, claim, xml[claim.uuid], write=journal is not None)
        if row is None:
            continue
        rows.append(row)
        if journal is not None:
            what = {"held": row["holds"], "should_hold": row["should_hold"]}
            entry = Entry(
                "heal",
                Result(row["result"]),
                claim.uuid,
                claim.title,
                what,
                ("an operator asked",),
                problem=row["problem"],
            )
            journal.write(entry)
    return rows


def _heal_one(
    allocations: "Allocations", root: str, claim: Claim, xml: str, *, write: bool
) -> Row | None:
    held: Mapping[str, Any] = {}
    resources: Mapping[str, Any] = {}
    try:
        found = allocations.held(claim.uuid)
        held = found.resources
        one = _replacement(root, claim, found, xml)
        if one is None:
            return None
        resources = one.resources
        allocations.check_quiet(claim.uuid)
        refused = allocations.replace([one]) if write else {}
    except (NotTouchableError, CapabilityMissingError) as error:
        return _row(claim, held, resources, Result.FAILED, str(error))
    problem = refused.get(claim.uuid, "")
    result = Result.FAILED if problem else Result.DONE if write else Result.WOULD
    return _row(claim, held, resources, result, problem)


def _replacement(root: str, claim: Claim, held: Held, xml: str) -> Replacement | None:
    if held.resources:
        resources = healed(claim, root, held.resources)
        return None if resources is None else Replacement(claim.uuid, held, resources)
    novas = nova_part(xml)
    whole = joined({root: novas.resources}, claim.all(root))
    return Replacement(claim.uuid, held, whole, novas.consumer)


def _row(
    claim: Claim,
    held: Mapping[str, Any],
    resources: Mapping[str, Any],
    result: Result,
    problem: str,
) -> Row:
    return {
        "server": claim.title,
        "uuid": claim.uuid,
        "result": result.value,
        "holds": dict(held),
        "should_hold": dict(resources),
        "problem": problem,
    }
