# SPDX-License-Identifier: Apache-2.0
"""Endpoints of Placement, Nova and Glance, with the credentials of nova's own ``[placement]`` section."""

from typing import Any

from keystoneauth1 import adapter
from keystoneauth1 import loading as keystone
from oslo_config import cfg

from placement_traits.client import REQUEST_TIMEOUT_S
from placement_traits.keystone import endpoint_options

SECTION = "placement"
COMPUTE_VERSION = "2.96"


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register what keystoneauth reads in ``[placement]``, with nova's defaults.

    Harmless where nova has registered it already.
    """
    for options in (
        keystone.get_session_conf_options(),
        keystone.get_auth_common_conf_options(),
        endpoint_options(),
    ):
        for option in options:
            try:
                conf.register_opt(option, group=SECTION)
            except cfg.DuplicateOptError:
                continue  # nova's own, with its own default


def placement(conf: cfg.ConfigOpts) -> adapter.Adapter:
    """Return the Placement endpoint that ``[placement]`` names."""
    auth, session = _session(conf)
    return keystone.load_adapter_from_conf_options(
        conf,
        SECTION,
        session=session,
        auth=auth,
        service_type=conf[SECTION].service_type or "placement",
    )


def compute(conf: cfg.ConfigOpts) -> adapter.Adapter:
    """Return the compute endpoint of the catalog, with the credentials of ``[placement]``."""
    return _catalogued(conf, "compute", COMPUTE_VERSION)


def image(conf: cfg.ConfigOpts) -> adapter.Adapter:
    """Return the image endpoint of the catalog, with the credentials of ``[placement]``."""
    return _catalogued(conf, "image", None)


def _catalogued(conf: cfg.ConfigOpts, service: str, version: str | None) -> adapter.Adapter:
    auth, session = _session(conf)
    return adapter.Adapter(
        session,
        auth=auth,
        service_type=service,
        interface=conf[SECTION].valid_interfaces,
        region_name=conf[SECTION].region_name,
        default_microversion=version,
    )


def _session(conf: cfg.ConfigOpts) -> tuple[Any, Any]:
    register_opts(conf)
    auth = keystone.load_auth_from_conf_options(conf, SECTION)
    session = keystone.load_session_from_conf_options(conf, SECTION, auth=auth)
    session.timeout = session.timeout or REQUEST_TIMEOUT_S
    return auth, session
