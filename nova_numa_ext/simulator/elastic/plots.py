# SPDX-License-Identifier: Apache-2.0
"""Drawings of a replayed group: forecast and load, members and decisions, and the model's plane; needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nova_numa_ext.policy.elastic.boundary import Plane
from nova_numa_ext.policy.elastic.following import DecidedPeriod
from nova_numa_ext.simulator import plots

_HOUR_S = 3600.0


def draw(done: Sequence[DecidedPeriod], objective_ms: float, path: Path, title: str) -> None:
    """Draw three panels into a file of the kind that its name says.

    :raises ImportError: matplotlib is not installed
    """
    figure, axes = plots.figure(3, 1, 9, 10)
    load, members, plane = axes[:, 0]
    first_s = done[0].period.at_s
    hours = [(one.period.at_s - first_s) / _HOUR_S for one in done]
    _load(load, hours, done)
    _members(members, hours, done)
    _plane(plane, done, objective_ms)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)


def _load(axis: Any, hours: Sequence[float], done: Sequence[DecidedPeriod]) -> None:
    """Reads per second now, and what was said of them at the time they were said for."""
    axis.plot(hours, [one.evaluation.total[0] for one in done], label="reads/s", linewidth=1.4)
    for lead in sorted({one.evaluation.forecasts[0].lead for one in done}):
        said = [
            (hours[at + lead], one.evaluation.forecasts[0].value)
            for at, one in enumerate(done[: len(done) - lead])
            if one.evaluation.forecasts[0].lead == lead
        ]
        if said:
            axis.plot(*zip(*said, strict=True), ".", markersize=4, label=f"said {lead} before")
    axis.set_ylabel("reads per second")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _members(axis: Any, hours: Sequence[float], done: Sequence[DecidedPeriod]) -> None:
    """Members of the trace, and how many were asked for."""
    counts = [len(one.period.members) for one in done]
    changes = [one.evaluation.decision.change for one in done]
    axis.step(hours, counts, where="post", label="members")
    for sign, marker, name in ((1, "^", "more asked for"), (-1, "v", "fewer asked for")):
        at = [number for number, change in enumerate(changes) if change * sign > 0]
        if at:
            axis.plot(
                [hours[one] for one in at],
                [counts[one] + changes[one] for one in at],
                marker,
                linestyle="",
                label=name,
            )
    axis.set_xlabel("time, hours")
    axis.set_ylabel("members")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _plane(axis: Any, done: Sequence[DecidedPeriod], objective_ms: float) -> None:
    """Loads of members by whether they met the objective, and the last plane of the first member that has one."""
    members = [one for step in done for one in step.period.members if one.readings_ms]
    for met, colour, name in ((True, "tab:green", "met"), (False, "tab:red", "violated")):
        points = [
            (one.load.reads_per_s, one.load.writes_per_s)
            for one in members
            if (sorted(one.readings_ms)[len(one.readings_ms) // 2] <= objective_ms) == met
        ]
        if points:
            axis.plot(*zip(*points, strict=True), ".", color=colour, markersize=3, label=name)
    planes = done[-1].evaluation.planes
    if planes and members:
        name, plane = next(iter(planes.items()))
        size_kb = members[-1].load.size_kb
        most = max(one.load.reads_per_s for one in members)
        line = _line(plane, size_kb, most)
        if line is not None:
            axis.plot(*line, color="black", linewidth=1.0, label=f"plane of {name}")
    axis.set_xlabel("reads per second of a member")
    axis.set_ylabel("writes per second")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


def _line(
    plane: Plane, size_kb: float, most: float
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Return where the plane is at a size of data, in reads and writes; None where it is not between 0 and most."""
    idle = plane.offset + plane.size * size_kb
    if plane.writes < 0.0:
        ends = (0.0, 1.2 * most)
        return ends, (
            -idle / plane.writes,
            -(idle + plane.reads * ends[1]) / plane.writes,
        )
    if plane.reads < 0.0:
        at = -idle / plane.reads
        return (at, at), (0.0, most)
    return None
