# SPDX-License-Identifier: Apache-2.0
"""The limit of open files of this process: counters need four descriptors per vCPU, systemd's soft limit is 1024."""

import logging
import resource

LOG = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise the soft limit to the hard one, which needs no right; return what holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # ValueError: above fs.nr_open
        LOG.warning("the limit of open files stays at %d instead of %d: %s", soft, hard, error)
        return soft
    return hard
