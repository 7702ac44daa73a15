# SPDX-License-Identifier: Apache-2.0
"""Withdraw this host's tiers from Placement: no agent is here that keeps what they promise."""

import logging
import random
import time
from collections.abc import Callable
from typing import Any, Final

from host_agent.conf.configuration import Configuration
from host_agent.machine.libvirt import LibvirtSource
from host_agent.report import published_host
from placement_traits.errors import NumaExtError
from placement_traits.known_providers import RootMissingError
from placement_traits.reporter import Reporter

LOG = logging.getLogger(__name__)

_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0


def withdraw(
    conf: Configuration,
    *,
    make_reporter: Callable[[], Reporter],
    sleep: Callable[[float], object] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> list[dict[str, Any]]:
    """Remove the tier traits of this host's root provider; attempted until Placement has done it.

    An agent that reports puts them back.

    :param make_reporter: called again until it succeeds
    :param jitter: uniform in [0, 1): hosts of a fleet do not all attempt it at the same moment
    """
    pause_s, problem = _FIRST_S, ""
    while True:
        try:
            host = _host(conf)
            report = make_reporter().withdraw_tiers(host)
            found = " ".join(report.problems)
        except RootMissingError as error:
            return [{"host": host, "result": "nothing to do", "detail": str(error)}]
        except NumaExtError as error:
            found = str(error)
        if not found:
            detail = " ".join(change.detail for change in report.changes)
            return [
                {"host": host, "result": "done" if detail else "nothing to do", "detail": detail}
            ]
        if found != problem:
            LOG.warning("%s; trying again", found)
        problem = found
        sleep(pause_s * (1 + jitter()) / 2)
        pause_s = min(2 * pause_s, _LONGEST_S)


def _host(conf: Configuration) -> str:
    """Return the name under which the host was published last, or would be."""
    known = published_host.store(conf.paths.published).load() or conf.host.name
    if known:
        return known
    source = LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s)
    try:
        return source.hostname()
    finally:
        source.close()
