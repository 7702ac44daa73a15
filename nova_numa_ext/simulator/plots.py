# SPDX-License-Identifier: Apache-2.0
"""Plots of finished simulations, in the manner of figures 17, 19 and 20 of Amaral 2019; needs matplotlib (extra
``bench``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova_numa_ext.simulator.gpu.simulation import SimulationRun

STYLES: Final = ("-", "--", "-.", ":")


def figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """Return figure and axes that need no display.

    :param width: inches, as ``height``
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns, squeeze=False)


def timeline(runs: Sequence[SimulationRun], path: Path, title: str) -> None:
    """Draw which job had which GPU when, one panel per strategy (figure 17 a-d)."""
    from matplotlib import colormaps

    colours = colormaps["tab10"]
    gpus = sum(len(graph.gpus) for graph in runs[0].graphs)
    height = max(1.4, 0.32 * gpus) * len(runs) + 0.8
    drawn, axes = figure(len(runs), 1, 9, height)
    last = max(record.end_s for run in runs for record in run.records)
    for axis, run in zip(axes[:, 0], runs, strict=True):
        starts: list[int] = []
        names: list[str] = []
        for machine, graph in enumerate(run.graphs):
            starts.append(len(names))
            names += [
                f"M{machine} GPU{gpu}" if len(run.graphs) > 1 else f"GPU{gpu}"
                for gpu in range(len(graph.gpus))
            ]
        for record in run.records:
            number = record.submission.number
            span = record.end_s - record.start_s
            for place in record.places:
                for gpu in place.gpus:
                    line = starts[place.machine] + gpu
                    axis.barh(
                        line,
                        span,
                        0.9,
                        record.start_s,
                        color=colours(number % 10),
                        edgecolor="white",
                    )
                    if span > last / 40:
                        axis.text(
                            record.start_s + span / 2,
                            line,
                            f"J{number}",
                            ha="center",
                            va="center",
                            fontsize=7,
                        )
        makespan_s = max(record.end_s for record in run.records)
        axis.axvline(makespan_s, color="black", linewidth=0.8)
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.set_xlim(0, last * 1.02)
        axis.invert_yaxis()
        axis.set_title(f"{run.strategy}: all ended at {makespan_s:.0f} s", loc="left", fontsize=9)
    axes[-1, 0].set_xlabel("time, s")
    drawn.suptitle(title, fontsize=10)
    drawn.savefig(path, dpi=120)


def sorted_slowdowns(runs: Sequence[SimulationRun], path: Path, title: str) -> None:
    """Draw the slowdown of every job, worst first: by placement alone, and with waiting (figures 19 and 20).

    Lines become thinner from strategy to strategy, so that one that lies on another leaves it visible.
    """
    drawn, axes = figure(1, 2, 10, 4)
    panels = (
        ("placement only", [[r.slowdown for r in run.records] for run in runs]),
        ("with waiting", [[r.slowdown_with_waiting for r in run.records] for run in runs]),
    )
    for axis, (name, columns) in zip(axes[0], panels, strict=True):
        for number, (run, values) in enumerate(zip(runs, columns, strict=True)):
            axis.plot(
                sorted(values, reverse=True),
                STYLES[number % len(STYLES)],
                label=run.strategy,
                linewidth=1.0 + 0.7 * (len(runs) - 1 - number),
            )
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("job, worst first")
        axis.set_ylabel("slowdown against the best placement")
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    drawn.suptitle(title, fontsize=10)
    drawn.savefig(path, dpi=120)


def growth(
    machines: Sequence[int], milliseconds: Mapping[str, Sequence[float]], path: Path, title: str
) -> None:
    """Draw the mean time of a decision over the number of machines, both logarithmic."""
    drawn, axes = figure(1, 1, 6, 4)
    axis = axes[0, 0]
    for number, (name, values) in enumerate(milliseconds.items()):
        axis.loglog(machines, values, STYLES[number % len(STYLES)] + "o", label=name, markersize=4)
    axis.set_xlabel("machines")
    axis.set_ylabel("mean decision, ms")
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    drawn.suptitle(title, fontsize=10)
    drawn.savefig(path, dpi=120)
