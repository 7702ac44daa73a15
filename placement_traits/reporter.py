# SPDX-License-Identifier: Apache-2.0
"""Makes Placement equal to a host's desired tree, writing differences only.

For each provider the same small loop runs: read what is there -> compute the difference -> write it with the generation
that was read; on a conflict read again. What is not ours is carried over unchanged: other traits on any provider, other
resource classes on our children, other providers, and everything but our traits on nova's root; of those
the mode in Placement (:mod:`placement_traits.host_modes`), ``CUSTOM_NUMA_EXT_DRAINED`` and the leaf of a fabric
(:mod:`placement_traits.fabric`) are the operators'. While a root is drained its tiers are not written, so that it stays
so whatever its agent publishes.

Ownership: a child is ours when its uuid is derived from its root and name (:func:`child_uuid`), or when it carries
``CUSTOM_NUMA_EXT_OWNER``. So a child that was created just before a crash is known again although it has no trait yet.

Views compare the generations of our own providers: nova's root changes with every server. So a change of our traits on
the root is followed by a write of one child as it is, which raises its generation, and the host is read again at once.

What was read is remembered with its generation. Placement raises the generation at any change of traits, inventories or
allocations, so a pass over an unchanged host is a single GET.
"""

import dataclasses
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from placement_traits import names
from placement_traits.client import (
    CODE_DUPLICATE,
    GenerationConflictError,
    NotFoundError,
    PlacementClient,
    PlacementError,
)
from placement_traits.errors import ConflictError, NumaExtError
from placement_traits.names import TierTrait
from placement_traits.tree import Inventory, Provider, ProviderTree

LOG = logging.getLogger(__name__)

_CONFLICT_TRIES: Final = 12
_TREE_TRIES: Final = 3


class RootMissingError(NumaExtError):
    """The root is not (yet) there, or is no root; that of a compute node nova makes, never we."""


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


@dataclass(frozen=True, slots=True)
class _Actual:
    """A provider as it was read."""

    generation: int
    traits: frozenset[str]
    inventories: Mapping[str, Inventory]


@dataclass(frozen=True, slots=True)
class _Listed:
    """A provider as the list of its tree shows it."""

    uuid: str
    name: str
    generation: int
    is_root: bool = False


def child_uuid(root_uuid: str, name: str) -> str:
    """Return the uuid of our child ``name`` under a root: the same at every start, another one for another root."""
    return str(uuid.uuid5(uuid.UUID(root_uuid), name))


class Reporter:
    """Writes one host's part of Placement; one reporter per host.

    :param client: Placement
    :param mark: the trait by which our children are known beside their uuids
    """

    def __init__(self, client: PlacementClient, mark: str = names.OWNER) -> None:
        self._client = client
        self.mark: Final = mark
        self._root_uuid: str | None = None
        self._seen: dict[str, _Actual] = {}
        self._known_names: set[str] = set()

    def sync(self, tree: ProviderTree) -> SyncReport:
        """Make Placement equal to ``tree``.

        :raises RootMissingError: nova has no provider of that name
        :raises ServiceUnavailableError: Placement does not answer; call again later, nothing needs undoing
        :raises ConflictError: providers vanished again and again while they were written; call again later
        """
        return self._attempt(tree.root, lambda: _Pass(self._client, self, tree).run())

    def withdraw_tiers(self, host: str) -> SyncReport:
        """Remove the tier traits from a host's root: no agent keeps what they promise.

        Placement then offers the host to no flavor that requires one of them; everything else stays, so that servers
        there keep what they hold. The next :meth:`sync` puts the traits back. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        nothing = ProviderTree(host, frozenset(), ())
        return self._attempt(
            host, lambda: _Pass(self._client, self, nothing).withdraw(frozenset(TierTrait))
        )

    def drain(self, host: str, *, on: bool) -> SyncReport:
        """Keep new servers with a tier away from a host until it is undone; those that run there stay.

        The tiers are taken from the root with the same write that sets the mark. When it is undone the host's agent
        puts them back at its next :meth:`sync`. Errors as of that.

        :param host: name of nova's root provider
        """
        nothing = ProviderTree(host, frozenset(), ())
        return self._attempt(host, lambda: _Pass(self._client, self, nothing).drain(on=on))

    def cabled(self, host: str, *, wrong: bool) -> SyncReport:
        """Let a host's root have the trait of a wrong cable, or not have it; all else stays. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        nothing = ProviderTree(host, frozenset(), ())
        return self._attempt(host, lambda: _Pass(self._client, self, nothing).cabled(wrong=wrong))

    def remove(self, host: str) -> SyncReport:
        """Take all that is ours out of a host's tree, what operators have set on its root included.

        A provider of which servers hold a part stays, takes no new ones, and is a problem of the report; call again
        when they are gone. An agent that still runs there publishes all again. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        nothing = ProviderTree(host, frozenset(), ())
        return self._attempt(host, lambda: _Pass(self._client, self, nothing).remove())

    def ours(self, host: str) -> Ours:
        """Return what :meth:`remove` would take. Errors as of :meth:`sync`.

        :param host: name of nova's root provider
        """
        root, *below = self.listed(host)
        traits = frozenset(filter(names.is_ours, self.actual(root).traits))
        return Ours(traits, {each.name: each.uuid for each in below if self.is_ours(root, each)})

    def root_traits(self, host: str) -> frozenset[str]:
        """Return all traits of a host's root; what was read is remembered for :meth:`sync`. Errors as of that.

        :param host: name of nova's root provider
        """
        return self.actual(self.listed(host)[0]).traits

    def _attempt(self, root: str, make_pass: Callable[[], SyncReport]) -> SyncReport:
        for attempt in range(_TREE_TRIES):
            try:
                return make_pass()
            except NotFoundError as error:
                # A provider or its root went away under our hands: look at everything again.
                LOG.info("Starting over with the providers of %s: %s", root, error)
                self.forget()
                self._client.pause(attempt)
        raise ConflictError(
            f"The providers of {root} vanished {_TREE_TRIES} times while they were written."
        )

    def forget(self) -> None:
        """Drop everything remembered, so that the next pass reads all."""
        self._root_uuid = None
        self._seen.clear()
        self._known_names.clear()

    # What a pass needs ----------------------------------------------------------------------------------------------

    def listed(self, root_name: str) -> list[_Listed]:
        """Return all providers of the host's tree, the root first."""
        if self._root_uuid is not None:
            found = self._tree(self._root_uuid)
            if found and found[0].name == root_name:
                return found
        self.forget()
        known = self._client.provider_named(root_name)
        if known is None:
            raise RootMissingError(
                f"Placement has no provider {root_name}; it appears when nova-compute of this host has started."
            )
        self._root_uuid = str(known["root_provider_uuid"])
        found = self._tree(self._root_uuid)
        if not found or found[0].name != root_name:
            raise RootMissingError(
                f"Provider {root_name} is not the root of its tree, so it is not a compute node."
            )
        return found

    def _tree(self, root_uuid: str) -> list[_Listed]:
        body = self._client.get(f"/resource_providers?in_tree={root_uuid}")
        found = [
            _Listed(
                provider["uuid"],
                provider["name"],
                provider["generation"],
                provider["uuid"] == root_uuid,
            )
            for provider in body["resource_providers"]
        ]
        return sorted(found, key=lambda provider: not provider.is_root)

    def actual(self, provider: _Listed, *, fresh: bool = False) -> _Actual:
        """Return what a provider holds, from memory while its generation is the one remembered.

        :param fresh: read it whatever is remembered
        """
        seen = self._seen.get(provider.uuid)
        if seen is not None and seen.generation == provider.generation and not fresh:
            return seen
        path = f"/resource_providers/{provider.uuid}"
        traits = self._client.get(f"{path}/traits")
        inventories: dict[str, Any] = {}
        if not provider.is_root:  # nova's inventories are none of our business
            body = self._client.get(f"{path}/inventories")
            if body["resource_provider_generation"] != traits["resource_provider_generation"]:
                return self.actual(provider, fresh=True)  # two different moments
            inventories = body["inventories"]
        actual = _Actual(
            traits["resource_provider_generation"],
            frozenset(traits["traits"]),
            {name: _inventory(body) for name, body in inventories.items()},
        )
        self._seen[provider.uuid] = actual
        return actual

    def is_ours(self, root: _Listed, provider: _Listed) -> bool:
        """Return whether a provider below a root is ours."""
        if provider.uuid == child_uuid(root.uuid, provider.name):
            return True
        if not provider.name.startswith(f"{root.name}:"):
            return False
        return self.mark in self.actual(provider).traits

    def traits_seen(self, provider: _Listed) -> frozenset[str]:
        """Return the traits that a provider had when it was read or written last."""
        seen = self._seen.get(provider.uuid)
        return seen.traits if seen is not None else frozenset()

    def remember(self, provider: _Listed, actual: _Actual | None) -> None:
        """Note what a write left behind; None when the provider is gone."""
        if actual is None:
            self._seen.pop(provider.uuid, None)
        else:
            self._seen[provider.uuid] = actual

    def ensure_traits(self, traits: frozenset[str]) -> None:
        """Make traits exist."""
        unknown = traits - self._known_names
        if not unknown:
            return
        existing = self._client.get(f"/traits?name=in:{','.join(sorted(unknown))}")["traits"]
        for trait in sorted(unknown.difference(existing)):
            self._client.put(f"/traits/{trait}")
        self._known_names |= unknown

    def ensure_resource_classes(self) -> None:
        """Make all resource classes of ours exist."""
        if self._known_names.issuperset(names.PUBLISHED_CLASSES):
            return
        existing = {c["name"] for c in self._client.get("/resource_classes")["resource_classes"]}
        for resource_class in names.PUBLISHED_CLASSES:
            if resource_class not in existing:
                self._client.put(f"/resource_classes/{resource_class}")
            self._known_names.add(resource_class)

    def forget_names(self) -> None:
        """Look again which traits and classes exist before the next write: a refusal may mean that one was deleted."""
        self._known_names.clear()


class _Pass:
    """One pass over one tree."""

    def __init__(self, client: PlacementClient, reporter: Reporter, tree: ProviderTree) -> None:
        self._client = client
        self._reporter = reporter
        self._mark = reporter.mark
        self._tree = tree
        self._changes: list[TreeChange] = []
        self._problems: dict[str, None] = {}  # in order, each once
        self._undone: frozenset[str] = frozenset()  # of what operators have set on the root
        self._requests = client.counters.requests
        self._writes = client.counters.writes

    def run(self) -> SyncReport:
        listed = self._reporter.listed(self._tree.root)
        # Whatever this host offers: asked for a class that Placement does not know, nova's scheduler breaks
        # (TypeError) instead of finding no valid host.
        self._reporter.ensure_resource_classes()
        root, below = listed[0], {provider.name: provider for provider in listed[1:]}
        # Children first: a root that accepts LC while its children are missing would attract servers in vain.
        written = [
            self._write_child(root, desired, below.get(desired.name))
            for desired in self._tree.children
        ]
        for provider in below.values():
            if self._tree.child(provider.name) is None and self._reporter.is_ours(root, provider):
                self._remove_child(provider)
        self._update_root(root, self._tree.root_traits, [child for child in written if child])
        return self._report(root)

    def withdraw(self, traits: frozenset[str]) -> SyncReport:
        """Remove some of our traits from the root, and leave all else."""
        root, *below = self._reporter.listed(self._tree.root)
        ours = _published(self._reporter.actual(root).traits)
        self._update_root(root, ours - traits, below)
        return self._report(root)

    def drain(self, *, on: bool) -> SyncReport:
        """Set or remove the operators' mark on the root."""
        return self._marked(names.DRAINED, on=on)

    def cabled(self, *, wrong: bool) -> SyncReport:
        """Set or remove the mark of a wrong cable on the root."""
        return self._marked(names.MISCABLED, on=wrong)

    def _marked(self, trait: str, *, on: bool) -> SyncReport:
        root, *below = self._reporter.listed(self._tree.root)
        mark = frozenset({trait})
        self._undone = frozenset() if on else mark
        ours = _published(self._reporter.actual(root).traits)
        self._update_root(root, ours | mark if on else ours, below)
        return self._report(root)

    def remove(self) -> SyncReport:
        """Remove everything of ours; the root first, so that no new server is attracted meanwhile."""
        root, *below = self._reporter.listed(self._tree.root)
        self._undone = frozenset(filter(names.is_ours, self._reporter.actual(root).traits))
        ours = [provider for provider in below if self._reporter.is_ours(root, provider)]
        self._update(root, Provider(root.name))
        for provider in ours:
            self._remove_child(provider)
        return self._report(root)

    def _report(self, root: _Listed) -> SyncReport:
        return SyncReport(
            root.uuid,
            tuple(self._changes),
            tuple(self._problems),
            self._client.counters.requests - self._requests,
            self._client.counters.writes - self._writes,
            self._reporter.traits_seen(root),
        )

    def _update_root(self, root: _Listed, traits: frozenset[str], below: Sequence[_Listed]) -> None:
        before = len(self._changes)
        self._update(root, Provider(root.name, traits))
        if len(self._changes) > before:
            self._touch(root, below)

    def _touch(self, root: _Listed, below: Sequence[_Listed]) -> None:
        """Write one of the children that views compare as it is."""
        compared = (names.rdt_provider(root.name), names.l3_provider(root.name, 0)[:-1])
        ours = (c for c in below if c.name.startswith(compared) and self._reporter.is_ours(root, c))
        child = max(ours, key=lambda child: child.name, default=None)
        if child is None:
            return
        actual = self._reporter.actual(child)
        for attempt in range(_CONFLICT_TRIES):
            try:
                self._put_inventories(child, actual, actual.inventories)
                return
            except GenerationConflictError:
                self._client.pause(attempt)
                actual = self._reporter.actual(child, fresh=True)

    def _problem(self, sentence: str) -> None:
        self._problems[sentence] = None

    def _write_child(
        self, root: _Listed, desired: Provider, there: _Listed | None
    ) -> _Listed | None:
        """Return the child as it is now, None where it is not ours."""
        provider = there or self._create(root, desired.name)
        if provider is None:
            return None
        if not self._reporter.is_ours(root, provider):
            self._problem(
                f"Provider {desired.name} ({provider.uuid}) exists and is not ours, it has no trait {self._mark}: "
                "delete or rename it."
            )
            return None
        self._update(provider, desired)
        return provider

    def _create(self, root: _Listed, name: str) -> _Listed | None:
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
            return _Listed(new, name, there["generation"])
        self._changes.append(TreeChange(name, "created"))
        created = _Listed(new, name, 0)
        self._reporter.remember(created, _Actual(0, frozenset(), {}))
        return created

    def _remove_child(self, provider: _Listed) -> None:
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
        self._reporter.remember(provider, None)
        self._changes.append(TreeChange(provider.name, "deleted"))

    def _usages(self, provider: _Listed) -> dict[str, int]:
        body = self._client.get(f"/resource_providers/{provider.uuid}/usages")
        return dict(body["usages"])

    def _update(self, provider: _Listed, desired: Provider) -> None:
        """Make one provider hold what is desired; an obstacle becomes a problem and the rest goes on."""
        actual = self._reporter.actual(provider)
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
                    self._reporter.forget_names()
                    self._problem(f"Provider {provider.name} could not be written. {error}")
                    return
            # Another writer, or a server that took what was about to be removed.
            self._client.pause(attempt)
            actual = self._reporter.actual(provider, fresh=True)
        self._problem(
            f"Provider {provider.name} could not be written: others changed it {_CONFLICT_TRIES} times meanwhile."
        )

    def _write_traits(self, provider: _Listed, actual: _Actual, desired: frozenset[str]) -> _Actual:
        traits = (actual.traits - _published(actual.traits) - self._undone) | desired
        if names.DRAINED in traits:
            traits -= frozenset(TierTrait)
        if traits == actual.traits:
            return actual
        self._reporter.ensure_traits(desired)
        body = {
            "resource_provider_generation": actual.generation,
            "traits": sorted(traits),
        }
        answer = self._client.put(f"/resource_providers/{provider.uuid}/traits", body)
        written = _Actual(answer["resource_provider_generation"], traits, actual.inventories)
        self._reporter.remember(provider, written)
        detail = " ".join(
            [f"+{trait}" for trait in sorted(traits - actual.traits)]
            + [f"-{trait}" for trait in sorted(actual.traits - traits)]
        )
        self._changes.append(TreeChange(provider.name, "traits", detail))
        return written

    def _write_inventories(
        self, provider: _Listed, actual: _Actual, desired: Mapping[str, Inventory]
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
        self, provider: _Listed, actual: _Actual, inventories: Mapping[str, Inventory]
    ) -> None:
        body = {
            "resource_provider_generation": actual.generation,
            "inventories": {
                name: dataclasses.asdict(inventory)
                for name, inventory in sorted(inventories.items())
            },
        }
        answer = self._client.put(f"/resource_providers/{provider.uuid}/inventories", body)
        self._reporter.remember(
            provider,
            _Actual(answer["resource_provider_generation"], actual.traits, inventories),
        )

    def _still_used(
        self, provider: _Listed, actual: _Actual, desired: Mapping[str, Inventory]
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


def _published(traits: frozenset[str]) -> frozenset[str]:
    """Return the traits that agents publish."""
    return frozenset(filter(names.is_of_agents, traits))


def _inventory(body: Mapping[str, Any]) -> Inventory:
    return Inventory(**{f.name: body[f.name] for f in dataclasses.fields(Inventory)})


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
