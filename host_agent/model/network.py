# SPDX-License-Identifier: Apache-2.0
"""What servers send and receive."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrafficBytes:
    """Bytes of a server since its interfaces were made.

    :param sent: by the server
    :param received: by the server
    """

    sent: int
    received: int
