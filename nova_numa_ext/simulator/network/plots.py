# SPDX-License-Identifier: Apache-2.0
"""Plots of replayed logs; needs matplotlib (extra ``bench``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nova_numa_ext.simulator.network.barrio import ReplayedJob
from nova_numa_ext.simulator.plots import STYLES, figure


def waits_and_slowdowns(jobs: Mapping[str, Sequence[ReplayedJob]], path: Path, title: str) -> None:
    """Draw how long each job waited, and by how much others slowed it, worst first.

    Lines become thinner from policy to policy, so that one that lies on another leaves it visible.

    :param jobs: by policy
    """
    drawn, axes = figure(1, 2, 10, 4)
    panels = (
        (
            "waiting, h",
            {name: [each.waited_s / 3600 for each in ran] for name, ran in jobs.items()},
        ),
        (
            "slowdown by other jobs",
            {name: [each.slowdown_by_others for each in ran] for name, ran in jobs.items()},
        ),
    )
    for axis, (label, values) in zip(axes[0], panels, strict=True):
        for number, (name, of_policy) in enumerate(values.items()):
            axis.plot(
                sorted(of_policy, reverse=True),
                STYLES[number % len(STYLES)],
                label=name,
                linewidth=1.0 + 0.7 * (len(values) - 1 - number),
            )
        axis.set_xlabel("job, worst first")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    drawn.suptitle(title, fontsize=10)
    drawn.savefig(path, dpi=120)
