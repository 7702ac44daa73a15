# SPDX-License-Identifier: Apache-2.0
"""Remote GPUs: every table of Prades 2021 that a model says something of, beside what it says

Nothing is fitted here: what goes into the models (tables 4.2, 5.1, 7.1 and 7.2, the slowdowns of sharing) is not
counted. A table is exact (each row within half a percent), modelled (within 12 %, or below the limit that is given) or
off. Then every input is multiplied by a factor from 0.8 to 1.2, each draw all at once, to show what hangs on it.
"""

from benchmarks import report
from nova_numa_ext.simulator.metrics import percentile
from nova_numa_ext.simulator.remote_gpu.prades import Origin, SourceRow, Table, Verdict, tables

SEED = 0


def shown(table: Table, draws: int) -> None:
    """Print a table with the 5th and 95th percentile of its perturbed rows."""
    report.progress(f"{table.name}: {table.verdict}")
    rows = []
    for row in table.rows:
        found = row.perturbed(draws, SEED)
        low, high = percentile(found, 0.05), percentile(found, 0.95)
        rows.append((row.name, row.origin, row.source, row.ours, row.verdict, low, high))
    columns = ("", "source is", "source", "ours", "", "±20 %: p5", "p95")
    report.table(columns, rows)


def within(row: SourceRow, draws: int) -> float:
    """Share of the perturbed draws in which a row comes no farther from its source than it may."""
    found = [
        SourceRow(row.name, row.source, row.origin, lambda f, v=v: v)
        for v in row.perturbed(draws, SEED)
    ]
    return sum(each.verdict is not Verdict.OFF for each in found) / draws


def main() -> None:
    """Compare all tables."""
    parser = report.parser(__doc__)
    parser.add_argument("--draws", type=int, default=200, help="perturbed draws of each row")
    args = parser.parse_args()
    found = tables()
    for table in found:
        shown(table, args.draws)
    rows = [row for table in found for row in table.rows]
    predicted = [row for row in rows if row.origin is not Origin.CALCULATED]
    figures = {
        **{f"tables_{v}": sum(table.verdict is v for table in found) for v in Verdict},
        **{f"rows_{v}": sum(row.verdict is v for row in rows) for v in Verdict},
        **{
            f"rows_{v}_not_calculated_by_source": sum(row.verdict is v for row in predicted)
            for v in Verdict
        },
        "perturbed_within_tolerance_share": sum(within(row, args.draws) for row in predicted)
        / len(predicted),
    }
    source = {
        "seed": SEED,
        "draws": args.draws,
        "off": [f"{t.name}: {r.name}" for t in found for r in t.rows if r.verdict is Verdict.OFF],
        "labels": {name: "replayed" for name in figures if name.endswith("_exact")},
    }
    report.finish("rcuda", "modelled", figures, source, args.json)


if __name__ == "__main__":
    main()
