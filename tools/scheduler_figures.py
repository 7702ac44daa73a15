# SPDX-License-Identifier: Apache-2.0
"""The table of the performance page: what ``make bench-scheduler`` has measured of each flavor, out of its result."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

_KINDS: Final = ("ours", "whole", "stock")


def scheduler_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return head and rows of the table of flavors; what was measured of none of them has no column.

    :param result: of the benchmark
    """
    figures, flavors = result["figures"], result["source"]["flavors"]
    columns = {
        **{f"{kind} ms": f"{kind}{{many}}_ms_median_{{key}}" for kind in _KINDS},
        **{f"{kind} cpu ms": f"{kind}{{many}}_cpu_ms_median_{{key}}" for kind in _KINDS},
    }
    rows = []
    for name, key in flavors.items():
        for servers in (1, result["source"]["servers"]):
            many = "" if servers == 1 else f"_{servers}"
            found = {
                title: figures.get(figure.format(many=many, key=key))
                for title, figure in columns.items()
            }
            if any(value is not None for value in found.values()):
                for unit in ("ms", "cpu ms"):
                    whole, stock = found[f"whole {unit}"], found[f"stock {unit}"]
                    ratio = whole / stock if whole is not None and stock else None
                    found["ratio" if unit == "ms" else "by cpu"] = ratio
                rows.append((name, str(servers), found))
    shown = [
        title
        for title in (*columns, "ratio", "by cpu")
        if any(found[title] is not None for *_, found in rows)
    ]
    return (
        ["flavor", "servers", *shown],
        [
            [name, servers, *(_number(found[title]) for title in shown)]
            for name, servers, found in rows
        ],
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def simple_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as reStructuredText shows simple ones."""
    every = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    line = " ".join("=" * width for width in widths)
    first, *others = (
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    )
    return "\n".join((line, first, line, *others, line))
