# SPDX-License-Identifier: Apache-2.0
"""keystoneauth's options: of an endpoint in the catalogue, with nova's defaults, and of a section's credentials."""

import contextlib
from typing import Any, Final

from keystoneauth1 import exceptions, loading
from oslo_config import cfg

INTERFACES: Final = ("internal", "public")
"""Kinds of endpoint in order of preference, as in nova; keystoneauth's default is public alone."""


def endpoint_options(service: str = "placement") -> list[Any]:
    """Return the options, for registering and for samples.

    :param service: service type that is their default
    """
    options: list[Any] = loading.get_adapter_conf_options(include_deprecated=False)
    cfg.set_defaults(options, valid_interfaces=list(INTERFACES), service_type=service)
    return options


def credential_options(conf: cfg.ConfigOpts, section: str) -> tuple[str, list[Any]]:
    """Return the section that holds the credentials of another one, and what keystoneauth reads there.

    A plug-in that does not exist adds nothing: it is reported where credentials are asked for.

    :param section: it may name another one by its ``auth_section``
    :raises cfg.Error: a value refers by ``$`` to an option that does not exist
    :raises RecursionError: or to itself
    """
    loading.register_auth_conf_options(conf, section)
    credentials = conf[section].auth_section or section
    plugin = conf[credentials].auth_type
    options: list[Any] = loading.get_auth_common_conf_options()
    with contextlib.suppress(exceptions.NoMatchingPlugin):
        options += loading.get_auth_plugin_conf_options(plugin) if plugin else []
    return credentials, options
