# SPDX-License-Identifier: Apache-2.0
"""What servers hold in Placement: read with the consumer's generation, and replaced only while it is still the same.

The agent's only write to allocations; it races nova by nature. So: read -> ask nova whether something is under way ->
read again, and drop it when anything differs -> write, with the generation that was read. The second read is there
because generations begin again: nova empties a server's allocation when it starts to move it, Placement forgets the
consumer, and the claim on the target may get the very generation that was read first. Between the second read and the
write nova would have to empty *and* claim, with a scheduling in between. The write is never sent twice.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from host_agent.decide.amounts.claims import Held, NotTouchableError, Replacement
from placement_traits import names
from placement_traits.client import PlacementClient, PlacementError

_HOST_CLASSES: Final = frozenset({names.VCPU, names.PCPU, names.MEMORY_MB})
_SERVERS: Final = frozenset({"INSTANCE", "unknown"})  # nova does not say what its consumers are
_CHANGED: Final = "Its allocation has changed meanwhile."


class Allocations:
    """Allocations of the servers of one compute node.

    :param client: Placement
    :param writer: Placement, without retries, with :data:`~placement_traits.client.ALLOCATIONS_MICROVERSION`
    :param root: name of nova's root provider
    :param why_busy: asks nova: (server uuid, root) -> why its allocations may not be touched now, "" when they may
    """

    def __init__(
        self,
        client: PlacementClient,
        writer: PlacementClient,
        root: str,
        why_busy: Callable[[str, str], str],
    ) -> None:
        self._client = client
        self._writer = writer
        self._root = root
        self._why_busy = why_busy
        self._uuids: dict[str, str] = {}

    def refresh(self) -> frozenset[str]:
        """Read the names of the host's providers and return them; needed before anything else."""
        roots = self._client.get(f"/resource_providers?name={quote(self._root)}")
        found = {
            provider["name"]: provider["uuid"]
            for root in roots["resource_providers"]
            for provider in self._client.get(f"/resource_providers?in_tree={root['uuid']}")[
                "resource_providers"
            ]
        }
        self._uuids = found
        return frozenset(found)

    def held(self, server: str) -> Held:
        """Return what a server holds.

        :raises NotTouchableError: its consumer is not a server, or it holds CPUs or memory of another host: it is being
            moved, or its old host has not cleaned up after an evacuation
        """
        body = self._client.get(f"/allocations/{server}")
        names = {uuid: name for name, uuid in self._uuids.items()}
        found = {
            names.get(uuid, uuid): entry["resources"] for uuid, entry in body["allocations"].items()
        }
        consumer = {
            key: body[key]
            for key in ("project_id", "user_id", "consumer_generation")
            if key in body
        }
        kind = body.get("consumer_type", "unknown")
        if kind not in _SERVERS:
            raise NotTouchableError(f"its consumer is of type {kind}")
        for provider, resources in found.items():
            if provider not in self._uuids and _HOST_CLASSES & resources.keys():
                raise NotTouchableError(f"it holds CPUs or memory of another host ({provider})")
        return Held(found, consumer)

    def check_quiet(self, server: str) -> None:
        """Ask nova; call it after :meth:`held`.

        :raises NotTouchableError: something is under way with the server
        """
        busy = self._why_busy(server, self._root)
        if busy:
            raise NotTouchableError(busy)

    def replace(self, replacements: Sequence[Replacement]) -> dict[str, str]:
        """Replace allocations, in one request, so that servers can swap places; where that is refused, one by one.

        :returns: why it was not done, by server; the others were replaced
        """
        refused = {one.uuid: _CHANGED for one in replacements if not self._is_held(one)}
        steady = [one for one in replacements if one.uuid not in refused]
        return refused | (self._write(steady) if steady else {})

    def _is_held(self, replacement: Replacement) -> bool:
        try:
            return self.held(replacement.uuid) == replacement.held
        except NotTouchableError:
            return False

    def _write(self, replacements: Sequence[Replacement]) -> dict[str, str]:
        try:
            self._writer.post("/allocations", {one.uuid: self._body(one) for one in replacements})
        except PlacementError as error:
            if error.status != 409:
                raise
            if len(replacements) == 1:
                return {replacements[0].uuid: str(error)}
            return {uuid: why for one in replacements for uuid, why in self.replace([one]).items()}
        return {}

    def _body(self, replacement: Replacement) -> dict[str, Any]:
        return {
            "allocations": {
                self._uuids.get(provider, provider): {"resources": dict(resources)}
                for provider, resources in replacement.resources.items()
            },
            **(replacement.held.consumer or replacement.consumer),
        }
