# SPDX-License-Identifier: Apache-2.0
"""How a scenario hands figures to an SLA.

All that Rally carries from one to the other are charts of an iteration (``add_output``). So a sample is a chart: its
title says of what, its data are figures by name.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any


class Topic(StrEnum):
    """What samples are of: titles of charts."""

    PLACEMENT = "Servers whose decision, allocation and place differ"
    READ_BACK = "Servers for which their host does not do what was allocated"
    OVERLAP = "L3 ways that two latency-critical servers share"
    ORPHANS = "What is left of deleted servers"
    OBJECTIVE = "Readings of the 99th percentile above its objective"
    SCALED = "Loads at which an elastic group does not come to its size"
    SCALING_LIMITS = "Looks at an elastic group outside its limits"
    SHARING = "Groups that share uplinks with another one"


LOOKED_AT = "looked at"
FAULTS = "faults"


def chart(topic: Topic, looked_at: int, faults: int) -> dict[str, Any]:
    """Return a sample as the chart that Rally's ``add_output(additive=...)`` takes.

    :param looked_at: servers, pairs of servers or readings; 0: there was nothing to look at
    :param faults: how much of it is wrong
    """
    return {
        "title": str(topic),
        "chart_plugin": "StackedArea",
        "data": [[LOOKED_AT, looked_at], [FAULTS, faults]],
    }


def of(iteration: Mapping[str, Any], topic: Topic) -> Iterator[tuple[int, int]]:
    """Yield (looked at, faults) of each sample of a topic in Rally's record of an iteration."""
    for one in iteration["output"]["additive"]:
        if one["title"] == topic:
            figures = dict(one["data"])
            yield int(figures[LOOKED_AT]), int(figures[FAULTS])


def durations(actions: list[Mapping[str, Any]], name: str) -> Iterator[float]:
    """Yield the seconds of each atomic action of a name, those inside of others, too."""
    for action in actions:
        if action["name"] == name and not action.get("failed"):
            yield float(action["finished_at"]) - float(action["started_at"])
        yield from durations(action.get("children", []), name)
