# SPDX-License-Identifier: Apache-2.0
"""Trusts of jobs that have ended are deleted, however long Keystone or a disabled user stand in the way."""

import logging
from collections.abc import Callable
from typing import Final

from nova_numa_ext.orchestrator.cloud.trusts import TrustError, Trusts
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from placement_traits.errors import ServiceUnavailableError

_LOG: Final = logging.getLogger(__name__)


def delete_ended(ended: EndedTrusts, trusts: Trusts, may: Callable[[], None]) -> int:
    """Delete the trusts that are due; return how many are deleted. Two engines at once do no harm.

    :param may: called right before each deletion; raises where this process may not write any more
    :raises ServiceUnavailableError: the database does not answer
    """
    deleted = 0
    for trust in ended.due():
        may()
        try:
            trusts.delete(trust)
        except TrustError as error:
            tries = ended.refused(trust)
            _LOG.warning("trust %s stays for now, tried %d times: %s", trust, tries, error)
        except ServiceUnavailableError as error:
            ended.refused(trust)
            _LOG.warning("trusts are not deleted for now: %s", error)
            break
        else:
            ended.deleted(trust)
            deleted += 1
    return deleted
