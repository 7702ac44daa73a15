# SPDX-License-Identifier: Apache-2.0
"""How each daemon of a compute host begins and ends: its configuration, its user, its log, its exit status."""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from oslo_config import cfg
from oslo_log import log

from host_agent.cmd.identity import act_as_owner
from host_agent.conf import configuration
from host_agent.conf.configuration import Configuration
from placement_traits.command_line import version
from placement_traits.errors import NumaExtError
from placement_traits.oslo_options import ConfigurationError

_LOG: Final = logging.getLogger(__name__)


def run_daemon(
    program: str,
    arguments: Sequence[str],
    run: Callable[[Configuration], int],
    *,
    as_owner: bool = True,
) -> int:
    """Run a daemon; return its exit status, ``EX_CONFIG`` where its configuration cannot be used.

    :param program: name of the command
    :param arguments: of :func:`host_agent.conf.configuration.load`
    :param run: returns the exit status of what is run
    :param as_owner: started by root, it goes on as the agent's user; not where it needs rights of its own
    """
    try:
        configuration.set_defaults()
        oslo = cfg.ConfigOpts()
        log.register_options(oslo)
        conf = configuration.load(arguments, conf=oslo, version=version())
        if as_owner:
            act_as_owner(conf.paths.state)
    except NumaExtError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return os.EX_CONFIG
    log.setup(oslo, program)
    try:
        return run(conf)
    except NumaExtError as error:
        _LOG.error("%s", error)
        return os.EX_CONFIG if isinstance(error, ConfigurationError) else 1
