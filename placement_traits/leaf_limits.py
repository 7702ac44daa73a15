# SPDX-License-Identifier: Apache-2.0
"""What hosts say of what their servers send, and what is said to them of the uplinks that they share: shapes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkDemand:
    """What servers of a host send over its uplinks, Mbit/s.

    :param latency_critical: by those servers together
    :param best_effort: by those
    :param asked: part of the first that shall have room on the leaf's uplinks; 0: nothing is asked for
    """

    latency_critical: int = 0
    best_effort: int = 0
    asked: int = 0


@dataclass(frozen=True, slots=True)
class LeafLimit:
    """What the engine says of the uplinks of a leaf, Mbit/s.

    :param kept: for latency-critical servers, of all hosts
    :param best_effort: what best-effort servers of one host may send together
    """

    kept: int
    best_effort: int
