# SPDX-License-Identifier: Apache-2.0
"""Measured distances between GPUs, in place of the levels' qualitative weights (section 4.1.1.2).

A file holds an entry for each kind of host; it belongs to all hosts whose GPUs have exactly these addresses::

    dgx1:                                          # any name
      gpus: ["0000:06:00.0", "0000:07:00.0"]       # PCI addresses of all GPUs, ascending
      distances: [[0, 21], [21, 0]]                # such as microseconds per MiB copied; a row for each GPU
"""

from collections.abc import Mapping
from typing import TypeAlias

from nova_numa_ext.policy.gpu.graph import Distances, check_distances
from nova_numa_ext.policy.gpu.job import is_number
from placement_traits.errors import InvalidValueError

Measured: TypeAlias = Mapping[tuple[str, ...], Distances]


def parse_distances(document: object, where: str) -> Measured:
    """Return measured distances by the addresses of a host's GPUs.

    :param document: the decoded JSON or YAML of the file
    :raises InvalidValueError: naming the key that is wrong
    """
    if not isinstance(document, Mapping):
        raise InvalidValueError(where, document, "a mapping of names")
    found: dict[tuple[str, ...], Distances] = {}
    for name, entry in document.items():
        at = f"{where}.{name}"
        if not isinstance(entry, Mapping) or entry.keys() != {"gpus", "distances"}:
            raise InvalidValueError(at, entry, "a mapping of gpus and distances")
        gpus = entry["gpus"]
        if not isinstance(gpus, list) or gpus != sorted({str(address) for address in gpus}):
            raise InvalidValueError(f"{at}.gpus", gpus, "a list of PCI addresses, ascending")
        matrix = _matrix(entry["distances"], f"{at}.distances")
        check_distances(matrix, len(gpus), f"{at}.distances")
        found[tuple(gpus)] = matrix
    return found


def _matrix(rows: object, where: str) -> Distances:
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and all(map(is_number, row)) for row in rows
    ):
        raise InvalidValueError(where, rows, "a list of rows of numbers")
    return tuple(tuple(float(one) for one in row) for row in rows)
