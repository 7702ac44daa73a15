# SPDX-License-Identifier: Apache-2.0
"""Where pages are, as shares."""

from collections.abc import Iterable

from host_agent.model.pages import Run, resident_bytes


def resident_shares(runs: Iterable[Run]) -> dict[int, float]:
    """Node -> fraction of the resident bytes."""
    held = resident_bytes(runs)
    return {node: count / sum(held.values()) for node, count in held.items()}
