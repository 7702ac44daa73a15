# SPDX-License-Identifier: Apache-2.0
"""Put together what publishes in Placement: clients, measured traffic, claims."""

from collections.abc import Callable
from dataclasses import dataclass

from host_agent.conf.configuration import Configuration
from host_agent.decide.amounts.reserved_bandwidth import ReservationSettings
from host_agent.machine.libvirt import DomainSource
from host_agent.machine.rdt.backend import foreign_groups, tree
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.observe import cables
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.report import published_host
from host_agent.report.beat import Beat, Paid
from host_agent.report.cabling import CableCheck
from host_agent.report.clients import (
    check_credentials,
    make_beat_writer,
    make_cable_sides,
    make_claim_reader,
    make_cost_writer,
    make_reporter,
)
from host_agent.report.metrics import Metrics
from host_agent.report.publisher import (
    ClaimSource,
    ModeFollower,
    PublishedFacts,
    Publisher,
    TreeWriter,
)
from host_agent.report.reserved_bandwidth import BandwidthReservation
from placement_traits.best_effort import BestEffortWriter


def build(
    conf: Configuration,
    source: DomainSource,
    metrics: Metrics,
    unsatisfiable: Callable[[], frozenset[str]] = frozenset,
    *,
    follower: ModeFollower,
    costs: Callable[[], Paid],
) -> Publisher:
    """Return what publishes in Placement, not yet started.

    :param unsatisfiable: returns the servers whose objectives cannot be kept here
    :param costs: see :class:`~host_agent.report.beat.Beat`
    :param follower: obeys the mode in Placement
    :raises ConfigurationError: ``[placement]`` holds credentials that no restart makes usable
    """
    check_credentials(conf)
    resctrl = tree(conf.paths)
    return Publisher(
        conf,
        ConfiguredPlacement(conf, source, metrics, costs),
        metrics,
        PublishedFacts(
            lambda: len(foreign_groups(resctrl)),
            unsatisfiable,
            _reservation(conf, resctrl),
            CableCheck(
                lambda: cables.heard(conf.cables, conf.paths.sys), lambda: make_cable_sides(conf)
            )
            if conf.cables.lldp
            else None,
        ),
        follower=follower,
    )


@dataclass(frozen=True, slots=True)
class ConfiguredPlacement:
    """:class:`~host_agent.report.publisher.PlacementSide` of the configured service.

    :param source: knows the host's name where the operator gives none
    :param metrics: count a state file that could not be written
    :param costs: see :class:`~host_agent.report.beat.Beat`
    """

    conf: Configuration
    source: DomainSource
    metrics: Metrics
    costs: Callable[[], Paid]

    def root(self) -> str:
        """Return the name of nova's root provider, and keep it for who withdraws the host's tiers."""
        name = self.conf.host.name or self.source.hostname()
        kept = published_host.store(self.conf.paths.published)
        if kept.load() != name:
            BestEffortWriter("state", self.metrics.lost).attempt(lambda: kept.save(name))
        return name

    def writer(self) -> TreeWriter:
        """Return what makes Placement equal to a tree."""
        return make_reporter(self.conf)

    def claims(self, root: str) -> ClaimSource:
        """Return what reads claims."""
        return make_claim_reader(self.conf, root)

    def beat(self, root: str) -> Beat:
        """Return what beats."""
        return Beat(
            make_beat_writer(self.conf, root),
            costs=self.costs,
            by_server=make_cost_writer(self.conf, root),
        )


def _reservation(conf: Configuration, resctrl: Resctrl) -> BandwidthReservation | None:
    """Return what follows the measured memory traffic, None when it is turned off."""
    interval_s = conf.placement.reserved_bandwidth_interval_s
    if not interval_s:
        return None
    # A group is read once per look; a rate is as old as the look is.
    reader = BandwidthReader(resctrl, interval_s=interval_s, stale_s=2 * interval_s)
    settings = ReservationSettings(dead_band=conf.placement.reserved_bandwidth_dead_band)
    return BandwidthReservation(reader.host, settings, interval_s)
