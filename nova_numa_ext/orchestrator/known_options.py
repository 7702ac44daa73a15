# SPDX-License-Identifier: Apache-2.0
"""Which keys of the job service's configuration nothing reads: engine and API log them when they start.

Both read the same file, so each knows the options of both.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from keystonemiddleware import opts as of_tokens
from oslo_config import cfg
from oslo_log import _options as of_logs  # what oslo-config-generator reads, too
from oslo_messaging import opts as of_messages
from oslo_middleware import opts as of_middleware

from nova_numa_ext import endpoints
from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.store import database
from placement_traits import oslo_options, unknown_options
from placement_traits.errors import cut
from placement_traits.keystone import credential_options
from placement_traits.oslo_options import ConfigurationError

_LOG: Final = logging.getLogger(__name__)
_TOKENS: Final = "keystone_authtoken"
_DEFAULT: Final = "DEFAULT"


def report(conf: cfg.ConfigOpts) -> None:
    """Log each key that nothing reads, and each that is read by the name of an earlier release.

    :param conf: of :func:`.startup.configured`
    :raises ConfigurationError: credentials refer by ``$`` to an option that does not exist
    """
    files, known = oslo_options.files(conf), options(conf)
    for key in unknown_options.keys(files, known):
        _LOG.warning("unknown in the configuration: %s", key)
    for key in unknown_options.renamed(files, known):
        _LOG.warning("an earlier name in the configuration: %s", key)


def options(conf: cfg.ConfigOpts) -> dict[str, list[cfg.Opt]]:
    """Return all options that a process of the service or a library of it reads, by section; errors as above."""
    known: dict[str, list[cfg.Opt]] = {}
    listed: list[tuple[Any, Sequence[cfg.Opt]]] = [
        *startup.list_opts(),
        *of_logs.list_opts(),
        *database.list_opts(),
        *of_messages.list_opts(),
        *of_middleware.list_opts_healthcheck(),
        *of_tokens.list_auth_token_opts(),
    ]
    for section, found in listed:
        known.setdefault(str(section or _DEFAULT), []).extend(found)
    for section in (endpoints.SECTION, _TOKENS):
        try:
            credentials, found = credential_options(conf, section)
        except (cfg.Error, RecursionError) as error:
            raise ConfigurationError(f"[{section}]: {cut(' '.join(str(error).split()))}") from error
        known.setdefault(credentials, []).extend(found)
    return known
