# SPDX-License-Identifier: Apache-2.0
"""How much the programs that share a GPU slow each other, by exact mean value analysis.

A program computes on its GPU for a part of its run time and does something else in the rest. Its kernels share the GPU
equally with those of others that are there at that moment, and the rest is not slowed: a closed network of one
processor-sharing queue and a delay, each program a class of its own (M. Reiser, S. S. Lavenberg, *Mean-Value Analysis
of Closed Multichain Queuing Networks*, Journal of the ACM 27(2), 1980). Nothing is fitted: of programs that keep a GPU
busy half of the time alone, it says 1.25 for two and 1.60 for three, where Prades 2021 (section 3.4) measured 1.33 and
1.65, of which 1.03 are those of a single remote one.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations


@lru_cache(maxsize=4096)
def slowdowns(busy: Sequence[float], speed: float = 1.0) -> tuple[float, ...]:
    """Return the run time of each program over that alone on a GPU of speed 1.

    :param busy: part of its run time in which each one's kernels run, alone on such a GPU, in [0, 1]; hashable
    :param speed: of the GPU that they share
    """
    kernel_s = [each / speed for each in busy]
    # Of each set of programs, how many of each are on the GPU in the mean.
    before: dict[tuple[int, ...], dict[int, float]] = {(): {}}
    found: dict[int, float] = {}
    for count in range(1, len(busy) + 1):
        now = {}
        for some in combinations(range(len(busy)), count):
            on_gpu = {}
            for one in some:
                others = tuple(each for each in some if each != one)
                there_s = kernel_s[one] * (1 + sum(before[others].values()))
                found[one] = 1 - busy[one] + there_s
                on_gpu[one] = there_s / found[one] if found[one] else 0.0
            now[some] = on_gpu
        before = now
    return tuple(found[one] for one in range(len(busy)))
