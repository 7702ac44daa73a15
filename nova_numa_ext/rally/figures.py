# SPDX-License-Identifier: Apache-2.0
"""``python -m nova_numa_ext.rally.figures FILE``: the figures of a run, from Rally's JSON report of its tasks.

``scenarios``
    workloads that were run
``sla_failed``
    SLA criteria that were not kept; a workload without a result of its own counts as one
``explain_ratio``
    median time of a what-if over the fleet, over that of nova's scheduling of one server, in the same run
``filter_ratio_single``, ``filter_ratio_32``
    median time of scheduling one server, and 32 with one request, with our filter over that without, in the same run

A ratio that was not measured is null.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova_numa_ext.rally import samples
from nova_numa_ext.rally.limits import ratio

SCHEDULE: Final = "numa_ext.schedule"
WHAT_IF: Final = "numa_ext.what_if"
_BESIDE: Final = "NumaExt.explain_beside_scheduling"
_SCHEDULE: Final = "NumaExt.schedule"
_WITH: Final = "filter-with"
_WITHOUT: Final = "filter-without"
_MANY: Final = 32


def figures(report: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Return the figures of a run.

    :param report: the decoded output of ``rally task report --json``
    """
    tasks = report["tasks"]
    workloads = list(_workloads(tasks))
    explained = [each for each in workloads if _BESIDE in each["scenario"]]
    return {
        "scenarios": len(workloads),
        "sla_failed": sum(map(_failed, workloads)),
        "explain_ratio": ratio(_took(explained, WHAT_IF), _took(explained, SCHEDULE)),
        "filter_ratio_single": _filter_ratio(tasks, 1),
        "filter_ratio_32": _filter_ratio(tasks, _MANY),
    }


def _filter_ratio(tasks: Sequence[Mapping[str, Any]], count: int) -> float | None:
    def took(tag: str) -> list[float]:
        tagged = _workloads(task for task in tasks if tag in task["tags"])
        return _took(
            (each for each in tagged if each["scenario"].get(_SCHEDULE, {}).get("count") == count),
            SCHEDULE,
        )

    return ratio(took(_WITH), took(_WITHOUT))


def _workloads(tasks: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for task in tasks:
        for subtask in task["subtasks"]:
            yield from subtask["workloads"]


def _failed(workload: Mapping[str, Any]) -> int:
    criteria = workload["sla_results"].get("sla", [])
    return sum(not each["success"] for each in criteria) if criteria else 1


def _took(workloads: Iterable[Mapping[str, Any]], action: str) -> list[float]:
    iterations = itertools.chain.from_iterable(each["data"] for each in workloads)
    return [
        seconds
        for one in iterations
        for seconds in samples.durations(one["atomic_actions"], action)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures as JSON; returns 1 when an SLA was not kept or nothing was run."""
    parser = argparse.ArgumentParser(
        prog="python -m nova_numa_ext.rally.figures",
        description="Print the figures of a run of Rally tasks as JSON.",
    )
    parser.add_argument("file", type=Path, help="output of rally task report --json")
    found = figures(json.loads(parser.parse_args(argv).file.read_text()))
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0 if found["scenarios"] and not found["sla_failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
