# SPDX-License-Identifier: Apache-2.0
"""Makes Placement equal to a host's desired tree, writing differences only.

For each provider the same small loop runs: read what is there -> compute the difference -> write it with the generation
that was read; on a conflict read again. What is not ours is carried over unchanged: other traits on any provider, other
resource classes on our children, other providers, and everything but our traits on nova's root; of those
the mode in Placement (:mod:`placement_traits.host_modes`), ``CUSTOM_NUMA_EXT_DRAINED`` and the leaf of a fabric
(:mod:`placement_traits.fabric`) are the operators'. While a root is drained its tiers are not written, so that it stays
so whatever its agent publishes.

Ownership: a child is ours when its uuid is derived from its root and name, or when it carries
``CUSTOM_NUMA_EXT_OWNER``. So a child that was created just before a crash is known again although it has no trait yet.

Views compare the generations of our own providers: nova's root changes with every server. So a change of our traits on
the root is followed by a write of one child as it is, which raises its generation, and the host is read again at once.

What was read is remembered (:mod:`placement_traits.known_providers`), so a pass over an unchanged host is a single GET.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from placement_traits import names
from placement_traits.client import (
    CODE_DUPLICATE,
    GenerationConflictError,
    NotFoundError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import ConflictError
from placement_traits.known_providers import (
    KnownProviders,
    ProviderContents,
    TreeProvider,
    child_uuid,
)
from placement_traits.names import TierTrait
from placement_traits.tree import Inventory, Provider, ProviderTree

LOG = logging.getLogger(__name__)

_CONFLICT_TRIES: Final = 12
_TREE_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class TreeChange:
    """One thing that was written.

    :param provider: name of the provider
    :param what: ``created``, ``deleted``, ``traits`` or ``inventories``
    :param detail: the difference, ``+`` added, ``-`` removed, ``~`` changed
    """

    provider: str
    what: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one pass did.

    :param root_uuid: nova's root provider
    :param changes: what was written, in order
    :param problems: one sentence for each difference that could not be removed; the rest was done
    :param requests: HTTP requests of this pass
    :param writes: those of them that write, failed ones included
    :param root_traits: all traits that the root has now
    """

    root_uuid: str
    changes: tuple[TreeChange, ...]
    problems: tuple[str, ...]
    requests: int
    writes: int
    root_traits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Ours:
    """What is ours in a host's tree.

    :param traits: of nova's root, those of operators included
    :param providers: uuid by name
    """

    traits: frozenset[str] = frozenset()
    providers: Mapping[str, str] = field(default_factory=dict)


class Reporter:
    """Writes one host's part of Placement; one reporter per host.

    :param client: Placement
    :param mark: the trait by which our children are known beside their uuids
    """

    def __init__(self, client: PlacementClient, mark: str = names.OWNER) -> None:
        self._client = client
        self._mark = mark
        self._known = KnownProviders(client, mark)

    def sync(self, tree: ProviderTree) -> SyncReport:
        """Make Placement equal to ``tree``.

        :raises RootMissingError: nova has no provider of that name
        :raises ServiceUnavailableError: Placement does not answer; call again later, nothing needs undoing
        :raises ConflictError: providers vanished again and again while they were written; call again later
        """
        return self._attempt(tree, _Pass.run)

    def withdraw_tiers(self, host: str) -> SyncReport:
        """Remove the tier traits from a host's root: no agent keeps what they promise.

        Placement then offers the host to no flavor that requires one of them; everything else stays, so that servers
        there keep what they hold. The next :meth:`sync` puts the traits back. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        return self._attempt(_nothing(host), lambda one: one.withdraw(frozenset(TierTrait)))

    def drain(self, host: str, *, on: bool) -> SyncReport:
        """Keep new servers with a tier away from a host until it is undone; those that run there stay.

        The tiers are taken from the root with the same write that sets the mark. When it is undone the host's agent
        puts them back at its next :meth:`sync`. Errors as of that.

        :param host: name of nova's root provider
        """
        return self._attempt(_nothing(host), lambda one: one.drain(on=on))

    def cabled(self, host: str, *, wrong: bool) -> SyncReport:
        """Let a host's root have the trait of a wrong cable, or not have it; all else stays. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        return self._attempt(_nothing(host), lambda one: one.cabled(wrong=wrong))

    def laned(self, host: str, *, has_lanes: bool) -> SyncReport:
        """Let a host's root have the trait of lanes, or not have it; all else stays. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        return self._attempt(_nothing(host), lambda one: one.laned(has_lanes=has_lanes))

    def remove(self, host: str) -> SyncReport:
        """Take all that is ours out of a host's tree, what operators have set on its root included.

        A provider of which servers hold a part stays, takes no new ones, and is a problem of the report; call again
        when they are gone. An agent that still runs there publishes all again. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        return self._attempt(_nothing(host), _Pass.remove)

    def ours(self, host: str) -> Ours:
        """Return what :meth:`remove` would take. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        root, *below = self._known.listed(host)
        traits = frozenset(filter(names.is_ours, self._known.actual(root).traits))
        ours = {each.name: each.uuid for each in below if self._known.is_ours(root, each)}
        return Ours(traits, ours)

    def root_traits(self, host: str) -> frozenset[str]:
        """Return all traits of a host's root; what was read is remembered for :meth:`sync`. Errors as of that.

        :param host: name of nova's root provider
        """
        return self._known.actual(self._known.listed(host)[0]).traits

    def forget(self) -> None:
        """Drop everything remembered, so that the next pass reads all."""
        self._known.forget()

    def _attempt(self, tree: ProviderTree, step: Callable[["_Pass"], SyncReport]) -> SyncReport:
        for attempt in range(_TREE_TRIES):
            try:
                return step(_Pass(self._client, self._known, self._mark, tree))
            except NotFoundError as error:
                # A provider or its root went away under our hands: look at everything again.
                LOG.info("Starting over with the providers of %s: %s", tree.root, error)
                self._known.forget()
                self._client.pause(attempt)
        raise ConflictError(
            f"The providers of {tree.root} vanished {_TREE_TRIES} times while they were written."
        )


class _Pass:
    """One pass over one tree."""

    def __init__(
        self, client: PlacementClient, known: KnownProviders, mark: str, tree: ProviderTree
    ) -> None:
        self._client = client
        self._known = known
        self._mark = mark
        self._tree = tree
        self._changes: list[TreeChange] = []
        self._problems: dict[str, None] = {}  # in order, each once
        self._undone: frozenset[str] = frozenset()  # of what operators have set on the root
        self._requests = client.counters.requests
        self._writes = client.counters.writes

    def run(self) -> SyncReport:
        listed = self._known.listed(self._tree.root)
        # Whatever this host offers: asked for a class that Placement does not know, nova's scheduler breaks
        # (TypeError) instead of finding no valid host.
        self._known.ensure_resource_classes()
        root, below = listed[0], {provider.name: provider for provider in listed[1:]}
        # Children first: a root that accepts LC while its children are missing would attract servers in vain.
        written = [
            self._write_child(root, desired, below.get(desired.name))
            for desired in self._tree.children
        ]
        for provider in below.values():
            if self._tree.child(provider.name) is None and self._known.is_ours(root, provider):
                self._remove_child(provider)
        self._update_root(root, self._tree.root_traits, [child for child in written if child])
        return self._report(root)

    def withdraw(self, traits: frozenset[str]) -> SyncReport:
        """Remove some of our traits from the root, and leave all else."""
        root, *below = self._known.listed(self._tree.root)
        ours = _published(self._known.actual(root).traits)
        self._update_root(root, ours - traits, below)
        return self._report(root)

    def drain(self, *, on: bool) -> SyncReport:
        """Set or remove the operators' mark on the root."""
        return self._marked(names.DRAINED, on=on)

    def cabled(self, *, wrong: bool) -> SyncReport:
        """Set or remove the mark of a wrong cable on the root."""
        return self._marked(names.MISCABLED, on=wrong)

    def laned(self, *, has_lanes: bool) -> SyncReport:
        """Set or remove the mark of lanes on the root."""
        return self._marked(names.LANES, on=has_lanes)

    def _marked(self, trait: str, *, on: bool) -> SyncReport:
        root, *below = self._known.listed(self._tree.root)
        mark = frozenset({trait})
        self._undone = frozenset() if on else mark
        ours = _published(self._known.actual(root).traits)
        self._update_root(root, ours | mark if on else ours, below)
        return self._report(root)

    def remove(self) -> SyncReport:
        """Remove everything of ours; the root first, so that no new server is attracted meanwhile."""
        root, *below = self._known.listed(self._tree.root)
        self._undone = frozenset(filter(names.is_ours, self._known.actual(root).traits))
        ours = [provider for provider in below if self._known.is_ours(root, provider)]
        self._update(root, Provider(root.name))
        for provider in ours:
            self._remove_child(provider)
        return self._report(root)

    def _report(self, root: TreeProvider) -> SyncReport:
        return SyncReport(
            root.uuid,
            tuple(self._changes),
            tuple(self._problems),
            self._client.counters.requests - self._requests,
            self._client.counters.writes - self._writes,
            self._known.traits_seen(root),
        )

    def _update_root(
        self, root: TreeProvider, traits: frozenset[str], below: Sequence[TreeProvider]
    ) -> None:
        before = len(self._changes)
        self._update(root, Provider(root.name, traits))
        if len(self._changes) > before:
            self._touch(root, below)

    def _touch(self, root: TreeProvider, below: Sequence[TreeProvider]) -> None:
        """Write one of the children that views compare as it is."""
        compared = (names.rdt_provider(root.name), names.l3_provider(root.name, 0)[:-1])
        ours = (c for c in below if c.name.startswith(compared) and self._known.is_ours(root, c))
        child = max(ours, key=lambda child: child.name, default=None)
        if child is None:
            return
        actual = self._known.actual(child)
        for attempt in range(_CONFLICT_TRIES):
            try:
                self._put_inventories(child, actual, actual.inventories)
                return
            except GenerationConflictError:
                self._client.pause(attempt)
                actual = self._known.actual(child, fresh=True)

    def _problem(self, sentence: str) -> None:
        self._problems[sentence] = None

    def _write_child(
        self, root: TreeProvider, desired: Provider, there: TreeProvider | None
    ) -> TreeProvider | None:
        """Return the child as it is now, None where it is not ours."""
        provider = there or self._create(root, desired.name)
        if provider is None:
            return None
        if not self._known.is_ours(root, provider):
            self._problem(
                f"Provider {desired.name} ({provider.uuid}) exists and is not ours, it has no trait {self._mark}: "
                "delete or rename it."
            )
            return None
        self._update(provider, desired)
        return provider

    def _create(self, root: TreeProvider, name: str) -> TreeProvider | None:
        new = child_uuid(root.uuid, name)
        body = {"name": name, "uuid": new, "parent_provider_uuid": root.uuid}
        try:
            self._client.post("/resource_providers", body)
        except PlacementError as error:
            if error.code != CODE_DUPLICATE:
                raise
            # Ours if the answer to our own request was lost or a second agent made it; else another client's elsewhere.
            try:
                there = self._client.get(f"/resource_providers/{new}")
            except NotFoundError:
                self._problem(
                    f"Provider {name} cannot be created: the name is taken outside this host's tree."
                )
                return None
            return TreeProvider(new, name, there["generation"])
        self._changes.append(TreeChange(name, "created"))
        created = TreeProvider(new, name, 0)
        self._known.remember(created, ProviderContents(0, frozenset(), {}))
        return created

    def _remove_child(self, provider: TreeProvider) -> None:
        if any(self._usages(provider).values()):
            self._problem(
                f"Provider {provider.name} is not desired any more, but servers hold allocations of it; it takes no "
                "new ones and is deleted when they are gone."
            )
            self._update(provider, Provider(provider.name, frozenset({self._mark})))
            return
        try:
            self._client.delete(f"/resource_providers/{provider.uuid}")
        except NotFoundError:
            LOG.debug("Provider %s was gone before it was removed.", provider.name)
        except PlacementError as error:
            if error.status != 409:
                raise
            self._problem(f"Provider {provider.name} cannot be removed now. {error}")
            return
        self._known.remember(provider, None)
        self._changes.append(TreeChange(provider.name, "deleted"))

    def _usages(self, provider: TreeProvider) -> dict[str, int]:
        body = self._client.get(f"/resource_providers/{provider.uuid}/usages")
        return dict(body["usages"])

    def _update(self, provider: TreeProvider, desired: Provider) -> None:
        """Make one provider hold what is desired; an obstacle becomes a problem and the rest goes on."""
        actual = self._known.actual(provider)
        for attempt in range(_CONFLICT_TRIES):
            try:
                actual = self._write_traits(provider, actual, desired.traits)
                if not provider.is_root:
                    self._write_inventories(provider, actual, desired.inventories)
                return
            except NotFoundError:
                raise
            except PlacementError as error:
                if error.status != 409:
                    self._known.forget_names()
                    self._problem(f"Provider {provider.name} could not be written. {error}")
                    return
            # Another writer, or a server that took what was about to be removed.
            self._client.pause(attempt)
            actual = self._known.actual(provider, fresh=True)
        self._problem(
            f"Provider {provider.name} could not be written: others changed it {_CONFLICT_TRIES} times meanwhile."
        )

    def _write_traits(
        self, provider: TreeProvider, actual: ProviderContents, desired: frozenset[str]
    ) -> ProviderContents:
        traits = (actual.traits - _published(actual.traits) - self._undone) | desired
        if names.DRAINED in traits:
            traits -= frozenset(TierTrait)
        if traits == actual.traits:
            return actual
        self._known.ensure_traits(desired)
        body = {
            "resource_provider_generation": actual.generation,
            "traits": sorted(traits),
        }
        answer = self._client.put(f"/resource_providers/{provider.uuid}/traits", body)
        written = ProviderContents(
            answer["resource_provider_generation"], traits, actual.inventories
        )
        self._known.remember(provider, written)
        detail = " ".join(
            [f"+{trait}" for trait in sorted(traits - actual.traits)]
            + [f"-{trait}" for trait in sorted(actual.traits - traits)]
        )
        self._changes.append(TreeChange(provider.name, "traits", detail))
        return written

    def _write_inventories(
        self, provider: TreeProvider, actual: ProviderContents, desired: Mapping[str, Inventory]
    ) -> None:
        there = actual.inventories
        inventories = {
            **{name: there[name] for name in there if name not in names.PUBLISHED_CLASSES},
            **self._still_used(provider, actual, desired),
            **{name: _with_reserved(new, there.get(name)) for name, new in desired.items()},
        }
        if inventories == there:
            return
        self._put_inventories(provider, actual, inventories)
        self._changes.append(
            TreeChange(provider.name, "inventories", _inventory_difference(there, inventories))
        )

    def _put_inventories(
        self,
        provider: TreeProvider,
        actual: ProviderContents,
        inventories: Mapping[str, Inventory],
    ) -> None:
        body = {
            "resource_provider_generation": actual.generation,
            "inventories": {
                name: dataclasses.asdict(inventory)
                for name, inventory in sorted(inventories.items())
            },
        }
        answer = self._client.put(f"/resource_providers/{provider.uuid}/inventories", body)
        self._known.remember(
            provider,
            ProviderContents(answer["resource_provider_generation"], actual.traits, inventories),
        )

    def _still_used(
        self, provider: TreeProvider, actual: ProviderContents, desired: Mapping[str, Inventory]
    ) -> dict[str, Inventory]:
        """Inventories that should go but cannot, because servers hold some of them; reserved whole, so closed."""
        gone = actual.inventories.keys() & set(names.PUBLISHED_CLASSES) - desired.keys()
        if not gone:
            return {}
        used = self._usages(provider)
        kept = {}
        for name in sorted(gone):
            if used.get(name):
                inventory = actual.inventories[name]
                kept[name] = dataclasses.replace(inventory, reserved=inventory.total)
                self._problem(
                    f"Provider {provider.name} should not offer {name} any more, but servers hold {used[name]} of it; "
                    "it takes no new ones and goes when they are gone."
                )
        return kept


def _nothing(host: str) -> ProviderTree:
    """Return a tree of which only the root is looked at."""
    return ProviderTree(host, frozenset(), ())


def _published(traits: frozenset[str]) -> frozenset[str]:
    """Return the traits that agents publish."""
    return frozenset(filter(names.is_of_agents, traits))


def _with_reserved(desired: Inventory, there: Inventory | None) -> Inventory:
    """Keep what is reserved where the desired inventory leaves it open."""
    if desired.reserved is not None:
        return desired
    reserved = (there.reserved or 0) if there is not None else 0
    return dataclasses.replace(desired, reserved=min(reserved, desired.total))


def _inventory_difference(before: Mapping[str, Inventory], after: Mapping[str, Inventory]) -> str:
    parts = [f"-{name}" for name in sorted(before.keys() - after.keys())]
    for name in sorted(after):
        old, new = before.get(name), after[name]
        if old is None:
            parts.append(f"+{name}={new.total} reserved={new.reserved}")
        elif old != new:
            parts += [
                f"~{name}.{f.name} {getattr(old, f.name)}->{getattr(new, f.name)}"
                for f in dataclasses.fields(Inventory)
                if getattr(old, f.name) != getattr(new, f.name)
            ]
    return " ".join(parts)
