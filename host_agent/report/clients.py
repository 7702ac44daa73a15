# SPDX-License-Identifier: Apache-2.0
"""Clients of Placement and nova, with the credentials of ``[placement]``.

Their libraries are imported where they are needed: loading keystoneauth takes long.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from host_agent.conf.configuration import Configuration, credentials_readable
from host_agent.observe.peers import peers_of
from host_agent.observe.ports import Get
from placement_traits.errors import (
    LONGEST_TEXT,
    CapabilityMissingError,
    ServiceUnavailableError,
    cut,
)
from placement_traits.oslo_options import ConfigurationError

if TYPE_CHECKING:
    from host_agent.report.claimed import ClaimReader
    from placement_traits.beats import BeatWriter
    from placement_traits.client import PlacementClient
    from placement_traits.leaf_neighbours import LeafNeighbours
    from placement_traits.network_demand import DemandWriter, LeafReader
    from placement_traits.reporter import Reporter
    from placement_traits.server_costs import CostWriter


def _register_auth(conf: cfg.ConfigOpts) -> None:
    """Register keystoneauth's options of ``[placement]``."""
    from keystoneauth1 import loading

    from placement_traits.keystone import endpoint_options

    loading.register_auth_conf_options(conf, "placement")
    loading.register_session_conf_options(conf, "placement")
    conf.register_opts(endpoint_options(), group="placement")


def check_credentials(conf: Configuration) -> None:
    """Check what of ``[placement]`` needs no Keystone to be wrong.

    :raises ConfigurationError: keystoneauth knows no such credentials, or parts of them are missing
    """
    _credentials(conf)


def _credentials(conf: Configuration) -> tuple[Any, Any]:
    """Return keystoneauth's plug-in, None without ``auth_type``, and its session.

    :raises ConfigurationError: see :func:`check_credentials`
    """
    from keystoneauth1 import exceptions, loading

    try:
        with credentials_readable():
            _register_auth(conf.oslo)
            auth = loading.load_auth_from_conf_options(conf.oslo, "placement")
            return auth, loading.load_session_from_conf_options(conf.oslo, "placement", auth=auth)
    except exceptions.ClientException as error:
        raise ConfigurationError(f"[placement] holds no usable credentials: {error}") from error


def make_adapter(
    conf: Configuration, service: str = "placement", timeout_s: float | None = None
) -> Any:
    """Return a keystoneauth adapter for Placement, or for another service with the same credentials.

    :param service: service type; ``[placement]endpoint_override`` and the like are for Placement alone
    :param timeout_s: of each request at most; None: what ``[placement]`` has, or the usual one
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    :raises ConfigurationError: it holds some that cannot be used
    """
    from keystoneauth1 import adapter, loading

    from placement_traits.client import REQUEST_TIMEOUT_S

    auth, session = _credentials(conf)
    session.timeout = session.timeout or REQUEST_TIMEOUT_S
    if timeout_s is not None:
        session.timeout = min(session.timeout, timeout_s)
    if auth is None:
        raise CapabilityMissingError(
            "[placement] holds no auth_type: give it the Keystone user of this host, or set enabled = false"
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


def make_neutron(conf: Configuration) -> Get:
    """Return what asks Neutron for a document, with the credentials of ``[placement]``.

    Errors as of :func:`make_adapter`.

    :raises ServiceUnavailableError: what is returned raises it where Neutron does not answer
    """
    from keystoneauth1 import exceptions

    adapter = make_adapter(conf, "network")

    def get(path: str, query: Mapping[str, str]) -> Any:
        try:
            return adapter.get(path, params=dict(query)).json()
        except (exceptions.ClientException, ValueError) as error:
            why = cut(str(error), LONGEST_TEXT)
            raise ServiceUnavailableError(f"Neutron does not answer: {why}") from error

    return get


def make_peers(
    conf: Configuration, root: Callable[[], str]
) -> Callable[[], tuple[Mapping[str, Mapping[str, int]], "LeafNeighbours | None"]]:
    """Return what asks where the peers of servers are: ports by host of each tap's network, neighbours of this host.

    :param root: returns the name of nova's root provider
    """

    def ask() -> tuple[Mapping[str, Mapping[str, int]], "LeafNeighbours | None"]:
        from placement_traits.client import PlacementClient
        from placement_traits.leaf_neighbours import neighbours

        host = root()
        found = neighbours(PlacementClient(make_adapter(conf)), host)
        if found is None:  # without a leaf nothing follows from them
            return {}, None
        return peers_of(make_neutron(conf), conf.lanes.neutron_host or host), found

    return ask


def make_reporter(conf: Configuration, timeout_s: float | None = None) -> "Reporter":
    """Return the reporter over a session made from ``[placement]``.

    :param timeout_s: of each request at most, which then has one attempt; None: as usual
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from placement_traits.client import PlacementClient, RetrySettings
    from placement_traits.reporter import Reporter

    retry = None if timeout_s is None else RetrySettings(attempts=1)
    return Reporter(PlacementClient(make_adapter(conf, timeout_s=timeout_s), retry))


def make_cable_sides(conf: Configuration) -> "tuple[PlacementClient, Reporter]":
    """Return Placement and what writes the trait of a wrong cable, over a session made from ``[placement]``.

    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from placement_traits.client import PlacementClient
    from placement_traits.reporter import Reporter

    client = PlacementClient(make_adapter(conf))
    return client, Reporter(client)


def make_beat_writer(conf: Configuration, root: str) -> "BeatWriter":
    """Return what writes this host's beat, over a session made from ``[placement]``.

    :param root: name of nova's root provider
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from placement_traits.beats import BeatWriter
    from placement_traits.client import PlacementClient

    return BeatWriter(PlacementClient(make_adapter(conf)), root)


def make_cost_writer(conf: Configuration, root: str) -> "CostWriter":
    """Return what writes the costs of this host's servers, over a session made from ``[placement]``.

    :param root: name of nova's root provider
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from placement_traits.client import PlacementClient
    from placement_traits.server_costs import CostWriter

    return CostWriter(PlacementClient(make_adapter(conf)), root)


def make_leaf_sides(conf: Configuration, root: str) -> "tuple[DemandWriter, LeafReader]":
    """Return what says to Placement what this host's servers send, and what reads what is reported of its leaf.

    :param root: name of nova's root provider
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from placement_traits.client import PlacementClient
    from placement_traits.network_demand import DemandWriter, LeafReader

    client = PlacementClient(make_adapter(conf))
    return DemandWriter(client, root), LeafReader(client, root)


def make_claim_reader(conf: Configuration, root: str) -> "ClaimReader":
    """Return what reads the claims on this host, over a session made from ``[placement]``.

    :param root: name of nova's root provider
    :raises CapabilityMissingError: ``[placement]`` holds no credentials
    """
    from host_agent.report.claimed import ClaimReader
    from placement_traits.client import PlacementClient

    return ClaimReader(PlacementClient(make_adapter(conf)), root)
