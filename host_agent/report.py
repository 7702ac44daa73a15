# SPDX-License-Identifier: Apache-2.0
"""Tell Placement what this host has and who lives where; the loop never waits for it.

:class:`Publisher` hears each round, works out the wanted provider tree (pure: :func:`wanted`), and a thread of its own
makes Placement equal to it: at once when the tree changes, now and then otherwise (a deleted compute service takes
our providers with it), and with growing pauses while Placement does not answer. What was missed meanwhile is nothing
but the newest tree, so catching up is one pass.
"""

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from oslo_config import cfg

from host_agent.loop import Round
from host_agent.metrics import Metrics
from host_agent.workloads import Activity
from placement_traits.errors import CapabilityMissingError, NumaExtError
from placement_traits.names import InterferenceClass, NeighbourTrait, PackingTrait, Tier
from placement_traits.topology import HostTopology
from placement_traits.tree import L3State, ProviderTree, TreeSettings, wanted_tree

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
    """

    root: str
    packing: PackingTrait
    tiers: frozenset[Tier]
    min_be_ways: int
    interval_s: float
    backoff_max_s: float


def neighbours(done: Round) -> dict[int, L3State]:
    """Return who lives in each L3 domain, by the CPUs that were decided.

    Paused servers count: they come back.
    """
    topology = done.observation.topology
    found: dict[int, set[NeighbourTrait]] = {domain.id: set() for domain in topology.l3_domains}
    for wanted_assignment in done.decision.assignments:
        guest = done.observation.get(wanted_assignment.uuid)
        if guest is None or guest.workload.request is None:
            continue
        if guest.workload.activity is Activity.OFF:
            continue
        request = guest.workload.request
        traits = {
            trait
            for trait in (
                _TIER_TRAITS.get(request.tier) if request.tier else None,
                _CLASS_TRAITS.get(request.interference_class),
            )
            if trait
        }
        for l3 in _domains(topology, wanted_assignment.vcpu_cpus.values()):
            found[l3] |= traits
    return {l3: L3State(frozenset(traits)) for l3, traits in found.items()}


def _domains(topology: HostTopology, chosen: Any) -> set[int]:
    return {l3 for cpus in chosen for cpu in cpus if (l3 := topology.l3_of_cpu(cpu)) is not None}


def wanted(done: Round, settings: PublishSettings, foreign_groups: int) -> ProviderTree:
    """Return the tree that Placement should hold after a round.

    :param foreign_groups: resctrl control groups of other software
    """
    tree_settings = TreeSettings(
        packing=settings.packing,
        tiers=settings.tiers,
        min_be_ways=settings.min_be_ways,
        foreign_groups=foreign_groups,
    )
    return wanted_tree(settings.root, done.observation.topology, tree_settings, neighbours(done))


class Publisher:
    """Hears rounds, writes Placement from a thread of its own; a :class:`~host_agent.loop.Listener`.

    :param make_settings: what the operator decides; called at the first round, when libvirt is known to answer
    :param make_writer: called in the thread, so that slow imports and Keystone do not delay the loop; called again
        until it succeeds
    :param foreign_groups: counts resctrl groups of other software
    :param metrics: told whether Placement is up to date
    """

    def __init__(
        self,
        make_settings: Callable[[], PublishSettings],
        make_writer: Callable[[], TreeWriter],
        foreign_groups: Callable[[], int],
        metrics: Metrics,
    ) -> None:
        self._settings = functools.cache(make_settings)
        self._make_writer = make_writer
        self._foreign_groups = foreign_groups
        self._metrics = metrics
        self._writer: TreeWriter | None = None
        self._changed = threading.Condition()
        self._wanted: ProviderTree | None = None
        self._written: ProviderTree | None = None
        self._failed = False  # the last pass did; new trees wait for its pause
        self._stopped = False
        self._problems: tuple[str, ...] = ()

    def heard(self, done: Round) -> None:
        """Take note of a round."""
        if done.paused:
            return
        tree = wanted(done, self._settings(), self._foreign_groups())
        with self._changed:
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
        """Write what was heard last, in the caller's thread; tell whether Placement is up to date."""
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
        except NumaExtError as error:
            self._say((str(error),))
            return self._synced(None)
        except Exception:  # the outermost guard of this thread: logged, and it goes on
            LOG.exception("publishing in Placement failed")
            return self._synced(None)
        for change in report.changes:
            LOG.info("Placement: %s %s %s", change.provider, change.what, change.detail)
        self._say(tuple(report.problems))
        return self._synced(tree)

    def _synced(self, tree: ProviderTree | None) -> bool:
        with self._changed:
            self._written = tree
            self._failed = tree is None
            self._metrics.placement_synced = tree is not None and tree == self._wanted
        return tree is not None

    def _say(self, problems: tuple[str, ...]) -> None:
        """Log problems once, and again only when they change."""
        if problems != self._problems:
            self._problems = problems
            for problem in problems:
                LOG.warning("%s", problem)
            if not problems:
                LOG.info("Placement is up to date again")


def publish_settings(conf: cfg.ConfigOpts, root: str) -> PublishSettings:
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
    )


def register_auth(conf: cfg.ConfigOpts) -> None:
    """Register keystoneauth's options of ``[placement]``; apart, because loading keystoneauth takes long."""
    from keystoneauth1 import loading

    loading.register_auth_conf_options(conf, "placement")
    loading.register_session_conf_options(conf, "placement")
    loading.register_adapter_conf_options(conf, "placement")


def make_adapter(conf: cfg.ConfigOpts) -> Any:
    """Return a keystoneauth adapter for Placement made from ``[placement]``.

    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from keystoneauth1 import exceptions, loading

    from placement_traits.client import REQUEST_TIMEOUT_S

    register_auth(conf)
    try:
        auth = loading.load_auth_from_conf_options(conf, "placement")
        session = loading.load_session_from_conf_options(conf, "placement", auth=auth)
        session.timeout = session.timeout or REQUEST_TIMEOUT_S
    except exceptions.ClientException as error:
        raise CapabilityMissingError(f"[placement] holds no usable credentials: {error}") from error
    if auth is None:
        raise CapabilityMissingError(
            "[placement] holds no auth_type: copy nova-compute's [placement] section, or set enabled = false"
        )
    return loading.load_adapter_from_conf_options(
        conf, "placement", session=session, auth=auth, service_type="placement"
    )


def make_reporter(conf: cfg.ConfigOpts) -> TreeWriter:
    """Return the reporter over a session made from ``[placement]``.

    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    adapter = make_adapter(conf)
    from placement_traits.client import PlacementClient
    from placement_traits.reporter import Reporter

    return Reporter(PlacementClient(adapter))
