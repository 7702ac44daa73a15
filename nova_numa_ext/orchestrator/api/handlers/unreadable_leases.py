# SPDX-License-Identifier: Apache-2.0
"""Leases that are stored in another release's form, as by a newer one beside this one while it is upgraded."""

import logging
from typing import Final, NoReturn

from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError

_LOG: Final = logging.getLogger(__name__)


def leave_out(uuid: str, error: Exception) -> None:
    """Leave one out of a list or a sum."""
    _LOG.warning("lease %s cannot be read and is left out: %s", uuid, error)


def refuse(uuid: str, error: Exception) -> NoReturn:
    """Answer no host while there is one: what its answer lacks would be ended.

    :raises RefusedRequestError: always
    """
    _LOG.error("lease %s cannot be read, and its hosts learn nothing: %s", uuid, error)
    raise RefusedRequestError(
        503, "A lease is stored in a form of another release: leases run on as they are."
    )
