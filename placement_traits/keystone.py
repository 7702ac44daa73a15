# SPDX-License-Identifier: Apache-2.0
"""Where services are found in Keystone's catalogue: keystoneauth's options of an endpoint, with nova's defaults."""

from typing import Any, Final

from keystoneauth1 import loading
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
