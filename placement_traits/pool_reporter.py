# SPDX-License-Identifier: Apache-2.0
"""Makes Placement equal to what a host lends: as :mod:`placement_traits.reporter`, for a tree whose root is ours, too.

The root's uuid follows from the host's name. A provider of which leases hold a part is not deleted, by Placement
neither: it takes no new ones, and goes with a later pass.
"""

import logging
import uuid
from typing import Final

from placement_traits import names
from placement_traits.client import CODE_DUPLICATE, PlacementClient, PlacementError
from placement_traits.errors import InvalidValueError
from placement_traits.known_providers import RootMissingError, child_uuid
from placement_traits.pool_tree import LentPool, gpu_provider, pool_tree
from placement_traits.reporter import Reporter, SyncReport

LOG = logging.getLogger(__name__)

_NAMESPACE: Final = uuid.UUID("5b6ee9a5-40a4-4f4c-8f0a-97e0f4c7d6a2")


def root_uuid(host: str) -> str:
    """Return the uuid of the root of the pool on a host."""
    return str(uuid.uuid5(_NAMESPACE, names.pool_provider(host)))


def gpu_uuids(pool: LentPool) -> dict[str, str]:
    """Return the names of the GPUs that a host lends, by the uuids of their providers."""
    provider, root = names.pool_provider(pool.host), root_uuid(pool.host)
    return {child_uuid(root, gpu_provider(provider, gpu.name)): gpu.name for gpu in pool.gpus}


class PoolReporter:
    """Writes the pool of one host.

    :param client: Placement
    """

    def __init__(self, client: PlacementClient) -> None:
        self._client = client
        self._reporter = Reporter(client, mark=names.POOL)

    def sync(self, pool: LentPool) -> SyncReport:
        """Make Placement equal to what the host lends.

        :raises InvalidValueError: the pool cannot be published, or another's provider has its name
        :raises ServiceUnavailableError: Placement does not answer; call again later, nothing needs undoing
        :raises ConflictError: providers vanished again and again while they were written; call again later
        """
        tree = pool_tree(pool)
        try:
            return self._reporter.sync(tree)
        except RootMissingError:
            self._make_root(pool.host)
            return self._reporter.sync(tree)

    def remove(self, host: str) -> SyncReport | None:
        """Take the pool of a host out; return what was done, None where there was none. Errors as of :meth:`sync`.

        What leases hold stays, and is a problem of the report; call again when they are gone.
        """
        try:
            report = self._reporter.remove(names.pool_provider(host))
        except RootMissingError:
            return None
        if not report.problems:
            if not self._client.discard(f"/resource_providers/{report.root_uuid}"):
                LOG.debug("The pool of %s was gone before it was removed.", host)
            self._reporter.forget()
        return report

    def _make_root(self, host: str) -> None:
        name = names.pool_provider(host)
        body = {"name": name, "uuid": root_uuid(host)}
        try:
            self._client.post("/resource_providers", body)
        except PlacementError as error:
            if error.code != CODE_DUPLICATE:
                raise
            there = self._client.provider_named(name)
            if there is not None and there["uuid"] != root_uuid(host):
                allowed = f"the root of the pool; delete or rename provider {there['uuid']}"
                raise InvalidValueError(f"provider {name}", there["uuid"], allowed) from error
