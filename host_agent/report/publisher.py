# SPDX-License-Identifier: Apache-2.0
"""Publish in Placement what this host has and who lives where; the loop never waits for it.

:class:`Publisher` takes each round, works out the wanted provider tree (pure: :func:`wanted`), and a thread of its own
makes Placement equal to it: at once when the tree changes, now and then otherwise (a deleted compute service takes
our providers with it), and with growing pauses while Placement does not answer. What was missed meanwhile is nothing
but the newest tree, so catching up is one pass.
"""

import functools
import logging
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from oslo_config import cfg

from host_agent.conf.agent import Configuration
from host_agent.decide.amounts.claims import Claim, Part, claims
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.assignment import Guest
from host_agent.model.journal import ActionJournal
from host_agent.model.round import Round
from host_agent.model.workload import Activity
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.report.metrics import Metrics
from host_agent.report.rehome import Rehomer, Settled
from host_agent.report.reserved_bandwidth import BandwidthReservation
from placement_traits.errors import CapabilityMissingError, NumaExtError
from placement_traits.names import (
    GPU_COMM_TRAITS,
    InterferenceClass,
    NeighbourTrait,
    PackingTrait,
    Tier,
)
from placement_traits.reserved_bandwidth import ReservationSettings
from placement_traits.topology import HostTopology
from placement_traits.tree import L3State, ProviderTree, TreeSettings, desired_tree

if TYPE_CHECKING:
    from host_agent.report.allocations import Allocations

LOG = logging.getLogger(__name__)

_PACKING: Mapping[str, PackingTrait] = {"pack": PackingTrait.PACK, "spread": PackingTrait.SPREAD}
_TIER_TRAITS: Mapping[Tier, NeighbourTrait] = {
    Tier.LC: NeighbourTrait.LC,
    Tier.BE: NeighbourTrait.BE,
}
_CLASS_TRAITS: Mapping[InterferenceClass, NeighbourTrait] = {
    InterferenceClass.RABBIT: NeighbourTrait.RABBIT,
    InterferenceClass.DEVIL: NeighbourTrait.DEVIL,
}


class TreeWriter(Protocol):
    """What makes Placement equal to a tree: :class:`placement_traits.reporter.Reporter`."""

    def sync(self, tree: ProviderTree) -> Any:
        """Make Placement equal; return a report with ``changes`` and ``problems``."""


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """What the operator decides about publishing.

    :param root: name of nova's root provider
    :param packing: nova's cell-packing strategy
    :param tiers: tiers that are enforced here
    :param min_be_ways: ways of each L3 domain that are not offered
    :param interval_s: seconds between two passes when nothing changes
    :param backoff_max_s: longest pause while Placement does not answer
    :param pinned: vCPUs are kept on the CPUs that were decided; else they run where they are
    """

    root: str
    packing: PackingTrait
    tiers: frozenset[Tier]
    min_be_ways: int
    interval_s: float
    backoff_max_s: float
    pinned: bool = True


def neighbours(
    done: Round, *, pinned: bool = True, unsatisfiable: Container[str] = ()
) -> dict[int, frozenset[NeighbourTrait]]:
    """Return who lives in each L3 domain: a server lives in all domains that its vCPUs may run in.

    Paused servers count: they come back.

    :param pinned: vCPUs are where they were decided to be; else they are where they are
    :param unsatisfiable: servers whose objective cannot be kept here
    """
    topology = done.observation.topology
    found: dict[int, set[NeighbourTrait]] = {domain.id: set() for domain in topology.l3_domains}
    for guest in done.observation.guests:
        request = guest.workload.request
        if request is None or guest.workload.activity is Activity.OFF:
            continue
        traits = {
            trait
            for trait in (
                _TIER_TRAITS.get(request.tier) if request.tier else None,
                _CLASS_TRAITS.get(request.interference_class),
                NeighbourTrait.UNMET_SLO if guest.uuid in unsatisfiable else None,
            )
            if trait
        }
        for l3 in _domains(done, guest, pinned=pinned):
            found[l3] |= traits
        if guest.gpus and request.gpu_comm:
            for l3 in _near_gpus(topology, guest):
                found[l3].add(GPU_COMM_TRAITS[request.gpu_comm])
    return {l3: frozenset(traits) for l3, traits in found.items()}


def _near_gpus(topology: HostTopology, guest: Guest) -> set[int]:
    """L3 domains on the NUMA nodes of a server's devices: who uses a socket's buses is shown there."""
    nodes = {node for node in guest.gpus.values() if node is not None}
    return {domain.id for node in nodes for domain in topology.l3_of_node(node)}


def _domains(done: Round, guest: Guest, *, pinned: bool) -> set[int]:
    """L3 domains of the CPUs that a server's vCPUs may run on, by the best that is known of each vCPU."""
    topology, domain = done.observation.topology, guest.workload.domain
    wanted = done.decision.get(guest.uuid) if pinned else None
    decided = wanted.vcpu_cpus if wanted else {}
    seen = guest.vcpu_cpus
    every = frozenset(topology.cpus)
    anywhere = every if domain.vcpu_cpuset is None else domain.vcpu_cpuset
    chosen = every & frozenset[int]().union(
        *(
            decided.get(vcpu) or seen.get(vcpu) or domain.vcpu_pins.get(vcpu) or anywhere
            for vcpu in range(domain.vcpus)
        )
    )
    return {l3 for cpu in chosen if (l3 := topology.l3_of_cpu(cpu)) is not None}


def declarations(done: Round, placed: Sequence[Claim], *, pinned: bool = True) -> list[Claim]:
    """Return the claims with those of servers that the agent places: their bandwidth is split over their domains.

    :param placed: of the servers that nova has bound to cells
    """
    return [*placed, *_unbound(done, placed, pinned=pinned)]


def movable(done: Round, placed: Sequence[Claim]) -> list[Claim]:
    """Return the claims that have one right place in Placement.

    Besides those of servers that nova has bound to cells, that of a floating server while its vCPU threads can run in
    one L3 domain only. One that is spread over several stays where it was claimed.

    :param placed: of the servers that nova has bound to cells
    """
    running = {
        guest.uuid
        for guest in done.observation.guests
        if guest.workload.floating and guest.workload.activity is Activity.RUNNING
    }
    unbound = _unbound(done, placed, pinned=False)
    return [*placed, *(one for one in unbound if one.uuid in running and len(one.parts) == 1)]


def _unbound(done: Round, placed: Sequence[Claim], *, pinned: bool) -> Iterator[Claim]:
    known = {claim.uuid for claim in placed}
    for guest in done.observation.guests:
        workload = guest.workload
        request = workload.request
        if request is None or not request.bandwidth_mbps or guest.uuid in known:
            continue
        domains = sorted(_domains(done, guest, pinned=pinned))
        parts = tuple(Part(l3, 0, request.bandwidth_mbps // len(domains)) for l3 in domains)
        yield Claim(guest.uuid, workload.title, parts)


def wanted(
    done: Round,
    settings: PublishSettings,
    foreign_groups: int,
    reserved_mbps: Mapping[int, int] | None = None,
    unsatisfiable: Container[str] = (),
) -> ProviderTree:
    """Return the tree that Placement should hold after a round.

    :param foreign_groups: resctrl control groups of other software
    :param reserved_mbps: bandwidth that is not for sale now, by L3 domain; one that is missing keeps what Placement
        has, None: nothing is held back
    :param unsatisfiable: servers whose objective cannot be kept here
    """
    tree_settings = TreeSettings(
        packing=settings.packing,
        tiers=settings.tiers,
        min_be_ways=settings.min_be_ways,
        foreign_groups=foreign_groups,
    )
    states = {
        l3: L3State(traits, 0 if reserved_mbps is None else reserved_mbps.get(l3))
        for l3, traits in neighbours(
            done, pinned=settings.pinned, unsatisfiable=unsatisfiable
        ).items()
    }
    return desired_tree(settings.root, done.observation.topology, tree_settings, states)


@dataclass(frozen=True, slots=True)
class PublishedFacts:
    """What is published beside what a round shows.

    :param foreign_groups: counts resctrl groups of other software
    :param unsatisfiable: returns the servers whose objectives cannot be kept here
    :param reservation: how much bandwidth is held back; None holds nothing back
    """

    foreign_groups: Callable[[], int] = int
    unsatisfiable: Callable[[], Container[str]] = frozenset
    reservation: BandwidthReservation | None = None


@dataclass(frozen=True, slots=True)
class Rehoming:
    """How allocations follow the servers.

    :param settled: picks servers that have been where they are for some time
    :param make: makes what moves their allocations there, for a root's name, in the publisher's thread; called again
        until it succeeds
    """

    settled: Settled
    make: Callable[[str], Rehomer]


_NO_FACTS: Final = PublishedFacts()


class Publisher:
    """Takes rounds, writes Placement from a thread of its own; a :class:`~host_agent.control.agent.Listener`.

    :param make_settings: what the operator decides; called at the first round, when libvirt is known to answer
    :param make_writer: called in the thread, so that slow imports and Keystone do not delay the loop; called again
        until it succeeds
    :param metrics: show whether Placement is up to date
    :param facts: published beside what a round shows
    :param rehoming: moves allocations; None moves none
    """

    def __init__(
        self,
        make_settings: Callable[[], PublishSettings],
        make_writer: Callable[[], TreeWriter],
        metrics: Metrics,
        facts: PublishedFacts = _NO_FACTS,
        rehoming: Rehoming | None = None,
    ) -> None:
        self._settings = functools.cache(make_settings)
        self._make_writer = make_writer
        self._metrics = metrics
        self._facts = facts
        self._settled = rehoming.settled if rehoming else None
        self._rehomer = functools.cache(rehoming.make) if rehoming else None
        self._claims: tuple[Claim, ...] = ()
        self._writer: TreeWriter | None = None
        self._changed = threading.Condition()
        self._wanted: ProviderTree | None = None
        self._written: ProviderTree | None = None
        self._failed = False  # the last pass did; new trees wait for its pause
        self._stopped = False
        self._problems: tuple[str, ...] = ()

    def on_round(self, done: Round) -> None:
        """Take note of a round; without present knowledge of who runs where no allocation is moved."""
        if done.paused:
            with self._changed:
                self._claims = self._settled.of(()) if self._settled else ()
            return
        placed = claims(done.observation)
        settings = self._settings()
        reserved: Mapping[int, int] | None = None
        reservation = self._facts.reservation
        if reservation is not None:
            declared = declarations(done, placed, pinned=settings.pinned)
            reserved = reservation.reserved_mbps(done.observation.topology, declared)
        facts = self._facts
        tree = wanted(done, settings, facts.foreign_groups(), reserved, facts.unsatisfiable())
        with self._changed:
            present = movable(done, placed) if done.listed else ()
            self._claims = self._settled.of(present) if self._settled else ()
            if tree != self._wanted:
                self._wanted = tree
                self._metrics.placement_synced = tree == self._written
                self._changed.notify()

    def start(self) -> threading.Thread:
        """Start the thread."""
        thread = threading.Thread(target=self._run, name="placement", daemon=True)
        thread.start()
        return thread

    def publish_once(self) -> bool:
        """Write what came last, in the caller's thread; tell whether Placement is up to date."""
        return self._wanted is not None and self._pass(self._wanted)

    def stop(self) -> None:
        """End the thread after its present pass."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        pause: float | None = None
        while True:
            tree = self._next(pause)
            if tree is None:
                return
            pause = self._settings().interval_s if self._pass(tree) else self._longer(pause)

    def _longer(self, pause: float | None) -> float:
        if pause is None or pause == self._settings().interval_s:
            return min(1.0, self._settings().backoff_max_s)
        return min(pause * 2, self._settings().backoff_max_s)

    def _next(self, pause: float | None) -> ProviderTree | None:
        """Wait for a new tree or the end of the pause; None at the end."""
        with self._changed:
            # While Placement is down a new tree is no reason to hurry; when it is up it is.
            ready = (lambda: self._stopped) if self._failed else self._is_new
            self._changed.wait_for(ready, pause)
            while self._wanted is None and not self._stopped:
                self._changed.wait()
            return None if self._stopped else self._wanted

    def _is_new(self) -> bool:
        return self._stopped or (self._wanted is not None and self._wanted != self._written)

    def _pass(self, tree: ProviderTree) -> bool:
        """Write once; tell whether Placement is up to date."""
        try:
            if self._writer is None:
                self._writer = self._make_writer()
            report = self._writer.sync(tree)
            problems = (*report.problems, *self._rehome())
        except NumaExtError as error:
            self._log((str(error),))
            return self._synced(None)
        except Exception:  # the outermost guard of this thread: logged, and it goes on
            LOG.exception("publishing in Placement failed")
            return self._synced(None)
        for change in report.changes:
            LOG.info("Placement: %s %s %s", change.provider, change.what, change.detail)
        self._log(problems)
        return self._synced(tree)

    def _rehome(self) -> tuple[str, ...]:
        """Move allocations; that it cannot be done is a problem to log, not a tree that is not written."""
        if self._rehomer is None:
            return ()
        try:
            return self._rehomer(self._settings().root).turn(self._claims)
        except NumaExtError as error:
            return (f"Allocations are not re-homed. {error}",)

    def _synced(self, tree: ProviderTree | None) -> bool:
        with self._changed:
            self._written = tree
            self._failed = tree is None
            self._metrics.placement_synced = tree is not None and tree == self._wanted
        return tree is not None

    def _log(self, problems: tuple[str, ...]) -> None:
        """Log problems once, and again only when they change."""
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                LOG.warning("%s", problem)
            if not problems:
                LOG.info("Placement is up to date again")


def publish_settings(conf: Configuration, root: str) -> PublishSettings:
    """Return the settings of the configuration.

    :param root: name of nova's root provider
    """
    return PublishSettings(
        root,
        _PACKING[conf.placement.cell_packing],
        frozenset(Tier) if conf.rdt.enabled else frozenset({Tier.BE}),
        conf.rdt.shared_ways_min,
        conf.placement.interval_s,
        conf.placement.backoff_max_s,
        conf.pinning.enabled,
    )


def register_auth(conf: cfg.ConfigOpts) -> None:
    """Register keystoneauth's options of ``[placement]``; apart, because loading keystoneauth takes long."""
    from keystoneauth1 import loading

    loading.register_auth_conf_options(conf, "placement")
    loading.register_session_conf_options(conf, "placement")
    loading.register_adapter_conf_options(conf, "placement")


def make_adapter(conf: Configuration, service: str = "placement") -> Any:
    """Return a keystoneauth adapter for Placement, or for another service with the same credentials.

    :param service: service type; ``[placement]endpoint_override`` and the like are for Placement alone
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from keystoneauth1 import adapter, exceptions, loading

    from placement_traits.client import REQUEST_TIMEOUT_S

    register_auth(conf.oslo)
    try:
        auth = loading.load_auth_from_conf_options(conf.oslo, "placement")
        session = loading.load_session_from_conf_options(conf.oslo, "placement", auth=auth)
        session.timeout = session.timeout or REQUEST_TIMEOUT_S
    except exceptions.ClientException as error:
        raise CapabilityMissingError(f"[placement] holds no usable credentials: {error}") from error
    if auth is None:
        raise CapabilityMissingError(
            "[placement] holds no auth_type: copy nova-compute's [placement] section, or set enabled = false"
        )
    if service != "placement":
        return adapter.Adapter(
            session,
            auth=auth,
            service_type=service,
            interface=conf.oslo.placement.valid_interfaces,
            region_name=conf.oslo.placement.region_name,
        )
    return loading.load_adapter_from_conf_options(
        conf.oslo, "placement", session=session, auth=auth, service_type="placement"
    )


def make_reporter(conf: Configuration) -> TreeWriter:
    """Return the reporter over a session made from ``[placement]``.

    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from placement_traits.client import PlacementClient
    from placement_traits.reporter import Reporter

    return Reporter(PlacementClient(make_adapter(conf)))


def make_allocations(conf: Configuration, root: str) -> "Allocations":
    """Return the allocations of this host's servers, over sessions made from ``[placement]``.

    :param root: name of nova's root provider
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from host_agent.report.allocations import Allocations
    from host_agent.report.nova_api import NovaApi
    from placement_traits.client import ALLOCATIONS_MICROVERSION, PlacementClient, RetrySettings

    placement, nova = make_adapter(conf), NovaApi(make_adapter(conf, "compute"))
    once = PlacementClient(
        placement, RetrySettings(attempts=1), microversion=ALLOCATIONS_MICROVERSION
    )
    return Allocations(PlacementClient(placement), once, root, nova.why_busy)


def make_rehomer(conf: Configuration, root: str, journal: ActionJournal) -> Rehomer:
    """Return what moves allocations; parameters and errors as of :func:`make_allocations`."""
    return Rehomer(make_allocations(conf, root), root, journal)


def make_reservation(conf: Configuration, resctrl: Resctrl) -> BandwidthReservation | None:
    """Return what follows the measured memory traffic, None when it is turned off."""
    interval_s = conf.placement.pressure_s
    if not interval_s:
        return None
    # A group is read once per look; a rate is as old as the look is.
    reader = BandwidthReader(resctrl, interval_s=interval_s, stale_s=2 * interval_s)
    settings = ReservationSettings(dead_band=conf.placement.pressure_dead_band)
    return BandwidthReservation(reader.host, settings, interval_s)
