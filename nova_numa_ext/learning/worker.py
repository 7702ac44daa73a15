# SPDX-License-Identifier: Apache-2.0
"""``python -m nova_numa_ext.learning.worker SEASON``: fits models for another process, line by line in JSON.

Each line on standard input is a request, each line on standard output its answer, or an object with ``error``. It ends
with its standard input, so it outlives no process that has started it.
"""

import json
import signal
import sys
from typing import Any, Final, TextIO

import numpy as np

from nova_numa_ext.learning import models
from placement_traits.errors import NumaExtError

_USAGE: Final = 2


def main(words: list[str], asked: TextIO, answers: TextIO) -> int:
    """Answer requests until there are none; return the exit status.

    :param words: the season of the load, periods
    """
    if len(words) != 1 or not words[0].isdecimal():
        sys.stderr.write("usage: python -m nova_numa_ext.learning.worker SEASON\n")
        return _USAGE
    try:
        models.check_installed()
    except NumaExtError as error:
        _say({"error": str(error), "missing": True}, answers)
        return 1
    learner = models.Models(models.ours(int(words[0])))
    _say({"predictors": learner.predictors}, answers)
    for line in asked:
        try:
            found = _answer(learner, json.loads(line))
        except Exception as error:  # noqa: BLE001 - who asks learns of it, and this process goes on
            found = {"error": f"{type(error).__name__}: {error}"}
        _say(found, answers)
    return 0


def _answer(learner: models.Models, request: dict[str, Any]) -> dict[str, Any]:
    if "history" in request:
        return {"predictions": learner.predictions(request["history"], request["leads"])}
    samples = [
        (np.array(points, dtype=float).reshape(-1, 3), np.array(labels, dtype=np.int64))
        for points, labels in request["samples"]
    ]
    planes = learner.planes(samples)
    return {
        "planes": [each and [each.reads, each.writes, each.size, each.offset] for each in planes]
    }


def _say(answer: dict[str, Any], answers: TextIO) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    # Who started it may have signals blocked, and decides by its standard input when it ends.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.exit(main(sys.argv[1:], sys.stdin, sys.stdout))
