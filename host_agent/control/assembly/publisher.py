# SPDX-License-Identifier: Apache-2.0
"""Put together what publishes in Placement: clients, measured traffic, claims."""

from collections.abc import Callable

from host_agent.conf.configuration import Configuration
from host_agent.decide.amounts.reserved_bandwidth import ReservationSettings
from host_agent.machine.libvirt import DomainSource
from host_agent.machine.rdt.backend import foreign_groups, tree
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.observe.bandwidth import BandwidthReader
from host_agent.report import published_host
from host_agent.report.beat import Beat
from host_agent.report.clients import (
    check_credentials,
    make_beat_writer,
    make_claim_reader,
    make_reporter,
)
from host_agent.report.metrics import Metrics
from host_agent.report.publisher import ModeFollower, PublishedFacts, Publisher
from host_agent.report.reserved_bandwidth import BandwidthReservation
from placement_traits.best_effort import BestEffortWriter


def build(
    conf: Configuration,
    source: DomainSource,
    metrics: Metrics,
    unsatisfiable: Callable[[], frozenset[str]] = frozenset,
    *,
    follower: ModeFollower,
    costs: Callable[[], tuple[float, float]],
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
        lambda: _root(conf, source, metrics),
        lambda: make_reporter(conf),
        metrics,
        PublishedFacts(
            lambda: len(foreign_groups(resctrl)), unsatisfiable, _reservation(conf, resctrl)
        ),
        make_claim_source=lambda root: make_claim_reader(conf, root),
        make_beat=lambda root: Beat(make_beat_writer(conf, root), costs=costs),
        follower=follower,
    )


def _root(conf: Configuration, source: DomainSource, metrics: Metrics) -> str:
    """Return the name of nova's root provider, and keep it for who withdraws the host's tiers."""
    name = conf.host.name or source.hostname()
    kept = published_host.store(conf.paths.published)
    if kept.load() != name:
        BestEffortWriter("state", metrics.lost).attempt(lambda: kept.save(name))
    return name


def _reservation(conf: Configuration, resctrl: Resctrl) -> BandwidthReservation | None:
    """Return what follows the measured memory traffic, None when it is turned off."""
    interval_s = conf.placement.reserved_bandwidth_interval_s
    if not interval_s:
        return None
    # A group is read once per look; a rate is as old as the look is.
    reader = BandwidthReader(resctrl, interval_s=interval_s, stale_s=2 * interval_s)
    settings = ReservationSettings(dead_band=conf.placement.reserved_bandwidth_dead_band)
    return BandwidthReservation(reader.host, settings, interval_s)
