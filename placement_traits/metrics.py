# SPDX-License-Identifier: Apache-2.0
"""What a metric is; each wing has one table of them, which its exporter serves and the documentation prints."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: name, ``gauge``, ``counter`` or ``histogram``, sentence, labels."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
