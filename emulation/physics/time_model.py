# SPDX-License-Identifier: Apache-2.0
"""BWAP's closed-form time model: the slowest of the parallel transfers decides.

Source: Gureya 2021, equations 4.1 (one worker) and 4.4 (several).
"""

from collections.abc import Collection

from host_agent.model.pages import Shares
from host_agent.model.traffic import NodeBandwidth


def transfer_time(
    shares: Shares, bandwidth: NodeBandwidth, workers: Collection[int], data: float = 1.0
) -> float:
    """Return the time to read ``data`` that is spread by ``shares``.

    :param shares: node -> fraction of the data
    :param bandwidth: memory node -> worker -> bandwidth, unit of ``data`` per unit of the result
    :param workers: nodes the threads run on
    :param data: amount read
    """
    return max(
        data * share / min(bandwidth[node][worker] for worker in workers)
        for node, share in shares.items()
        if share > 0
    )
