# SPDX-License-Identifier: Apache-2.0
"""Plots of simulated queues for remote GPUs; needs matplotlib (extra ``bench``)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nova_numa_ext.simulator.plots import STYLES, figure
from nova_numa_ext.simulator.remote_gpu.cluster import RemoteRecord
from nova_numa_ext.simulator.remote_gpu.shared_pool import SharedPoolRun


def use_and_waiting(jobs: Mapping[str, Sequence[RemoteRecord]], path: Path, title: str) -> None:
    """Draw over the time how many GPUs are used, how many of them from another host, and how many jobs wait.

    :param jobs: by setting
    """
    drawn, axes = figure(1, 3, 12, 4)
    for number, (name, ran) in enumerate(jobs.items()):
        panels = (
            (
                "GPUs in use",
                [(each.start_s, each.end_s, each.submission.work.gpus) for each in ran],
            ),
            ("of them remote", [(each.start_s, each.end_s, each.remote) for each in ran]),
            ("jobs that wait", [(each.submission.arrival_s, each.start_s, 1) for each in ran]),
        )
        for axis, (label, spans) in zip(axes[0], panels, strict=True):
            times, counts = steps(spans)
            style = STYLES[number % len(STYLES)]
            axis.step(times, counts, style, where="post", label=name)
            axis.set_xlabel("time, s")
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    drawn.suptitle(title, fontsize=10)
    drawn.savefig(path, dpi=120)


def use_waiting_and_moves(runs: Mapping[str, SharedPoolRun], path: Path, title: str) -> None:
    """Draw over the time how many GPUs compute, how many are held, how many leases wait, and moves so far.

    :param runs: by policy
    """
    drawn, axes = figure(2, 2, 10, 7)
    for number, (name, run) in enumerate(runs.items()):
        times = [each.at_s for each in run.samples]
        panels = (
            ("GPUs that compute", times, [each.busy for each in run.samples]),
            ("GPUs of which leases hold something", times, [each.held for each in run.samples]),
            ("leases that wait", times, [each.waiting for each in run.samples]),
            (
                "moves so far",
                [0.0, *(each.at_s for each in run.moves), run.makespan_s],
                [*range(len(run.moves) + 1), len(run.moves)],
            ),
        )
        for axis, (label, at, values) in zip(axes.flat, panels, strict=True):
            axis.step(at, values, STYLES[number % len(STYLES)], where="post", label=name)
            axis.set_xlabel("time, s")
            axis.set_ylabel(label)
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    drawn.suptitle(title, fontsize=10)
    drawn.savefig(path, dpi=120)


def steps(spans: Iterable[tuple[float, float, int]]) -> tuple[list[float], list[int]]:
    """Return times, and how much there is from each of them on.

    :param spans: (from, to, how much) of each
    """
    changes: dict[float, int] = {0.0: 0}
    for start_s, end_s, count in spans:
        changes[start_s] = changes.get(start_s, 0) + count
        changes[end_s] = changes.get(end_s, 0) - count
    times, counts, now = sorted(changes), list[int](), 0
    for time in times:
        now += changes[time]
        counts.append(now)
    return times, counts
