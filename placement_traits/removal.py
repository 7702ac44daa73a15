# SPDX-License-Identifier: Apache-2.0
"""Takes out of Placement what this project has put there: of one host, or the traits and classes of a cloud.

Nothing of which a server or a lease holds a part can go; Placement refuses that, and so does this. Everything may be
called again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from placement_traits import beats, names, network_demand, server_costs
from placement_traits.client import PlacementClient, PlacementError
from placement_traits.known_providers import RootMissingError
from placement_traits.pool_reporter import PoolReporter
from placement_traits.reporter import Ours, Reporter

CLASSES: Final = (
    *names.PUBLISHED_CLASSES,
    names.BEAT_MINUTE,
    names.BE_BANDWIDTH_PERMILLE,
    *names.NET_DEMAND_CLASSES,
    *names.FABRIC_CLASSES,
)
"""All resource classes of ours."""

_OF_ROOTS: Final = (names.HOST, *sorted(names.OF_OPERATORS))
_MOST_NAMED: Final = 5
# Who may hold a part of a provider, and what ends that.
_SERVERS: Final = ("servers", "Migrate or delete")
_LEASES: Final = ("leases", "Release")


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of one host, or would.

    :param removed: what was taken out, in words
    :param held: one sentence for each provider of which servers or leases hold a part: it stays, and takes no new ones
    :param failed: one sentence for each other thing that stays
    """

    removed: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def hosts(client: PlacementClient) -> tuple[str, ...]:
    """Return the hosts of which anything of ours is there, by name.

    Also those that nova no longer has, and those that lend GPUs and never were nova's.
    """
    known = set(_traits(client))
    found = set(beats.hosts(client))
    marks = [trait for trait in (*_OF_ROOTS, names.OWNER, names.POOL) if trait in known]
    if marks:
        path = f"/resource_providers?required=in:{','.join(marks)}"
        listed = client.get(path)["resource_providers"]
        name_of = {each["uuid"]: each["name"] for each in listed}
        for root in {each["root_provider_uuid"] for each in listed}:
            name = name_of.get(root) or client.get(f"/resource_providers/{root}")["name"]
            found.add(name.removeprefix(names.pool_provider("")))
    return tuple(sorted(found))


def remove(client: PlacementClient, host: str, *, dry_run: bool = False) -> Removal:
    """Take a host's providers, traits and beat out, and what it lends; nova's part of its tree stays.

    :param host: name of nova's root provider
    :param dry_run: only read
    :raises ServiceUnavailableError: Placement does not answer
    :raises ConflictError: others wrote again and again
    """
    own = _remove_own(client, host, dry_run=dry_run)
    pool = _remove_pool(client, host, dry_run=dry_run)
    return Removal(own.removed + pool.removed, own.held + pool.held, own.failed + pool.failed)


def _remove_own(client: PlacementClient, host: str, *, dry_run: bool) -> Removal:
    """Take out what is in or beside the tree of a compute node."""
    reporter = Reporter(client)
    before = _ours(reporter, host)
    problems: tuple[str, ...] = ()
    if dry_run:
        held = _held(client, before)
        left = Ours(providers={name: before.providers[name] for name in held})
        has_beat = beats.is_there(client, host)
    else:
        if before.traits or before.providers:
            problems = reporter.remove(host).problems
        left = _ours(reporter, host)
        held = _held(client, left)
        server_costs.remove(client, host)
        network_demand.remove(client, host)
        has_beat = beats.remove(client, host)
    gone = sorted(before.providers.keys() - left.providers.keys())
    traits = len(before.traits - left.traits)
    gone += [f"{traits} traits of {host}"] * bool(traits) + [beats.provider(host)] * has_beat
    only_held = left.providers.keys() == held.keys() and not left.traits
    return Removal(tuple(gone), tuple(held.values()), () if only_held else problems)


def _remove_pool(client: PlacementClient, host: str, *, dry_run: bool) -> Removal:
    """Take out the tree of what a host lends, its root last."""
    name = names.pool_provider(host)
    if client.provider_named(name) is None:
        return Removal()
    before = left = Reporter(client, mark=names.POOL).ours(name)
    problems: tuple[str, ...] = ()
    if not dry_run:
        report = PoolReporter(client).remove(host)
        problems = report.problems if report else ()
        left = _ours(Reporter(client, mark=names.POOL), name)
    held = _held(client, left)
    stays = held.keys() if dry_run else left.providers.keys()
    gone = [*sorted(before.providers.keys() - stays), *[name] * (not stays)]
    return Removal(tuple(gone), tuple(held.values()), () if stays == held.keys() else problems)


def _ours(reporter: Reporter, host: str) -> Ours:
    try:
        return reporter.ours(host)
    except RootMissingError:
        return Ours()


def _held(client: PlacementClient, ours: Ours) -> dict[str, str]:
    """Return a sentence for each provider of which servers or leases hold a part, by its name."""
    found = {}
    for name, uuid in sorted(ours.providers.items()):
        body = client.get(f"/resource_providers/{uuid}/allocations")
        if consumers := sorted(body["allocations"]):
            of_servers = _classes(body["allocations"]).isdisjoint(names.REMOTE_GPU_CLASSES)
            whose, end = _SERVERS if of_servers else _LEASES
            more = " …" * (len(consumers) > _MOST_NAMED)
            found[name] = (
                f"Provider {name} stays and takes no new {whose}: {len(consumers)} hold a part of it "
                f"({', '.join(consumers[:_MOST_NAMED])}{more}). {end} them, and do this again."
            )
    return found


def _classes(allocations: Mapping[str, Mapping[str, Mapping[str, int]]]) -> set[str]:
    """Return the resource classes of which consumers hold a part."""
    return {name for each in allocations.values() for name in each["resources"]}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Traits and resource classes of ours that Placement knows; no provider needs to have them."""

    traits: tuple[str, ...]
    classes: tuple[str, ...]

    def asked_for(self, specs: Iterable[str]) -> bool:
        """Return whether extra specs (their keys) ask Placement for one of them."""
        names_ = {key.rpartition(":")[2] for key in specs if ":" in key}
        return not names_.isdisjoint({*self.traits, *self.classes})


def vocabulary(client: PlacementClient) -> Vocabulary:
    """Return what Placement knows."""
    known = {each["name"] for each in client.get("/resource_classes")["resource_classes"]}
    return Vocabulary(_traits(client), tuple(name for name in CLASSES if name in known))


def forget(client: PlacementClient, words: Vocabulary) -> tuple[str, ...]:
    """Delete traits and resource classes; return those that some provider still has.

    Only when no flavor asks for them: nova-scheduler fails (TypeError) on a class that Placement does not know.
    """
    paths = {f"/traits/{name}": name for name in words.traits}
    paths |= {f"/resource_classes/{name}": name for name in words.classes}
    return tuple(name for path, name in paths.items() if not _deleted(client, path))


def _deleted(client: PlacementClient, path: str) -> bool:
    try:
        client.discard(path)
    except PlacementError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        return False
    return True


def _traits(client: PlacementClient) -> tuple[str, ...]:
    """Return all traits of ours that Placement knows."""
    prefixes = (names.TRAIT_PREFIX, names.GPU_LINK_PREFIX)
    found = [client.get(f"/traits?name=startswith:{prefix}")["traits"] for prefix in prefixes]
    return tuple(sorted(name for traits in found for name in traits))
