# SPDX-License-Identifier: Apache-2.0
"""Weights of lanes by trial (Jokanović, section 5.2): favour the least demanding, go on as long as all together gain.

Each trial is run, so a caller waits for one before it asks for the next. What has become worse, or is not better by
more than chance, is taken back: the weights of before are what is asked for at the end. A host sees latencies and no
progress; by these it tunes its lanes (``[lanes]tune``).
"""

from typing import Final

from placement_traits.errors import InvalidValueError

_STEPS: Final = (1, 2, 3, 4, 6, 8)


class WeightTrials:
    """Searches for the weight of the least demanding lane beside others that have 1.

    :param gain: share by which a trial must be better than the best one so far
    :raises InvalidValueError: it is no share
    """

    def __init__(self, gain: float = 0.01) -> None:
        if not 0 <= gain < 1:
            raise InvalidValueError("gain of a trial", gain, "0 or more, below 1")
        self._gain = gain
        self._at = 0
        self._best: tuple[int, float] | None = None
        self._done = False

    @property
    def weight(self) -> int:
        """What is to be tried now, or, once :attr:`done`, to stay."""
        return self._best[0] if self._done and self._best else _STEPS[self._at]

    @property
    def done(self) -> bool:
        """No other weight is to be tried."""
        return self._done

    def took(self, progress: float) -> None:
        """Take what the weight of now has brought.

        :param progress: of all lanes together, more is better
        """
        if self._done:
            return
        if self._best is not None and progress <= self._best[1] * (1 + self._gain):
            self._done = True
            return
        self._best = self.weight, progress
        self._at += 1
        self._done = self._at == len(_STEPS)
