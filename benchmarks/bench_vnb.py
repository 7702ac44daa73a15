# SPDX-License-Identifier: Apache-2.0
"""Policies for groups on a fabric, on synthetic logs: who shares uplinks, and who waits

Each mix of ``mixes.yaml`` is drawn with each seed and replayed on 172 leafs of 18 hosts under each policy. Run times
are those of the log: what is counted is sharing and waiting, not slowness. Every run is shown.
"""

import time
from itertools import pairwise

from benchmarks import report
from nova_numa_ext.policy.network.groups import PolicyName
from nova_numa_ext.simulator.network.barrio import LogReplay, replay
from nova_numa_ext.simulator.network.mixes import draw, mixes
from placement_traits.fabric import Fabric, FabricKind, FabricNode

LEAFS, HOSTS_PER_LEAF, LEAFS_PER_POD = 172, 18, 18
POLICIES = (
    PolicyName.FIRST_AVAILABLE,
    PolicyName.FIRST_CONTIGUOUS,
    PolicyName.BEST_FIT,
    PolicyName.VNB,
    PolicyName.EXCLUSIVE,
)
ORDER = tuple(each for each in POLICIES if each is not PolicyName.BEST_FIT)
"""Of the thesis: each shares less than the one before, the last one nothing."""


def marenostrum() -> Fabric:
    """Return the fabric of the thesis: 3,096 hosts in 10 pods, the last of 10 leafs."""
    pods = [FabricNode(f"p{n}", "pod") for n in range(-(-LEAFS // LEAFS_PER_POD))]
    leafs = [FabricNode(f"l{n:03}", "leaf", f"p{n // LEAFS_PER_POD}") for n in range(LEAFS)]
    return Fabric(
        "marenostrum",
        FabricKind.INFINIBAND,
        ("leaf", "pod"),
        {node.name: node for node in (*pods, *leafs)},
        {f"{leaf.name}-{n:02}": leaf.name for leaf in leafs for n in range(HOSTS_PER_LEAF)},
    )


def sharing(found: LogReplay) -> tuple[float, ...]:
    """Return the four metrics of sharing."""
    six = found.metrics
    return six.per_group, six.sharing, six.leaf_pairs, six.pod_pairs


def in_order(found: dict[PolicyName, LogReplay]) -> bool:
    """Tell whether policies share in the order of the thesis by all four metrics, the last one nothing."""
    falling = all(
        more > less
        for worse, better in pairwise(ORDER)
        for more, less in zip(sharing(found[worse]), sharing(found[better]), strict=True)
    )
    return falling and not any(sharing(found[ORDER[-1]]))


def main() -> None:
    """Replay all logs."""
    parser = report.parser(__doc__)
    parser.add_argument("--jobs", type=int, default=8000, help="of a log")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 1, 2 …")
    args = parser.parse_args()
    fabric = marenostrum()
    figures: dict[str, float] = {}
    rows, orders = [], []
    for name, mix in mixes().items():
        for seed in range(1, args.seeds + 1):
            jobs = draw(mix, args.jobs, len(fabric.hosts), seed)
            found = {}
            for policy in POLICIES:
                before = time.process_time()
                found[policy] = replay(jobs, fabric, policy)
                six = found[policy].metrics
                rows.append(
                    (
                        name,
                        seed,
                        policy.value,
                        six.completion_s / 86_400,
                        six.utilisation,
                        six.waiting_s / 60,
                        *sharing(found[policy]),
                        time.process_time() - before,
                    )
                )
                if seed == 1:
                    figures[f"{name}_{policy}_per_group"] = six.per_group
                    figures[f"{name}_{policy}_waiting_min"] = six.waiting_s / 60
            orders.append(in_order(found))
            report.progress(
                f"{name}, seed {seed}: the thesis' order {'kept' if orders[-1] else 'broken'}"
            )
    columns = ("mix", "seed", "policy", "days", "used", "wait min", "per job", "sharing")
    report.table((*columns, "leaf pairs", "pod pairs", "CPU s"), rows)
    figures |= {"logs": len(orders), "logs_in_order": sum(orders)}
    source = {
        "jobs": args.jobs,
        "seeds": args.seeds,
        "fabric": f"{LEAFS} leafs of {HOSTS_PER_LEAF} hosts, {LEAFS_PER_POD} in a pod",
        "publication": "per job 17, 3.95, 0.9, 0; its log is not published, and these mixes are no copy of it",
    }
    report.finish("vnb", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
