# SPDX-License-Identifier: Apache-2.0
"""How a benchmark reports: words to the terminal while it runs, one JSON object as the last line of standard
output.

``{"bench": NAME, "label": LABEL, "figures": {...}, "source": {...}}``; ``--json FILE`` keeps the object in a file,
too. The label is what the figures are: *measured* on this machine, *modelled* by a model whose hash stands in
``source``, or *replayed* from numbers of a publication. A figure with another label than the whole has it in
``source["labels"]``.
"""

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

Label = Literal["measured", "modelled", "replayed"]


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that all benchmarks share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="keep the result in FILE")
    return made


def progress(text: str) -> None:
    """Print what happens now."""
    print(text, flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their columns, numbers with four significant digits."""
    lines = [list(columns)]
    lines += [[f"{c:.4g}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        progress("  " + "  ".join(cells))


def finish(
    bench: str,
    label: Label,
    figures: Mapping[str, Any],
    source: Mapping[str, Any],
    file: Path | None,
) -> None:
    """Print the result as the last line, and write it to ``file``.

    :param figures: numbers by name; the unit is part of the name
    :param source: seeds, sizes, hash of the model, figures of the publication beside ours
    """
    machine = f"Python {platform.python_version()} on {platform.machine()}"
    result = {
        "bench": bench,
        "label": label,
        "figures": dict(figures),
        "source": {"interpreter": machine, **source},
    }
    line = json.dumps(result)
    if file is not None:
        file.write_text(line + "\n")
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
