# SPDX-License-Identifier: Apache-2.0
"""How much each term of the score weighs on each host, where nova's own objects are not at hand.

As nova-scheduler does it (``nova.scheduler.utils.get_weight_multiplier``): the option counts, unless aggregates of the
host have the key; then the lowest of their values, provided that all of them are numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nova_numa_ext.policy.numa.score import SCORED
from nova_numa_ext.policy.terms import Term


def aggregate_key(name: str) -> str:
    """Return the metadata key of aggregates that replaces the option ``[numa_ext]<name>_multiplier``."""
    return f"numa_ext_{name}_multiplier"


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Weights of the terms.

    :param options: values of the configuration
    :param metadata: of the aggregates of each host, by its root provider
    """

    options: Mapping[Term, float]
    metadata: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)

    def of(self, root_uuid: str) -> list[float]:
        """Return the weights on one host in the order of :data:`.score.SCORED`."""
        aggregates = self.metadata.get(root_uuid, ())
        return [_multiplier(aggregate_key(term), self.options[term], aggregates) for term in SCORED]


def _multiplier(key: str, option: float, aggregates: Sequence[Mapping[str, str]]) -> float:
    try:
        values = [float(metadata[key]) for metadata in aggregates if key in metadata]
    except ValueError:
        return option
    return max(0.0, min(values, default=option))
