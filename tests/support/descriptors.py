# SPDX-License-Identifier: Apache-2.0
"""A process that holds many files open, as the helper does: four counters for each vCPU thread."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_HELD: Final = 1100  # select(2) takes descriptors below 1,024


@contextmanager
def many_held() -> Iterator[None]:
    """Hold so many that the next descriptor is none for select(2) any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4 * _HELD, hard)), hard))
    held: list[int] = []
    try:
        first = os.open(os.devnull, os.O_RDONLY)
        held.append(first)
        held += [os.dup(first) for _ in range(_HELD)]
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
