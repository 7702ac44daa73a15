# SPDX-License-Identifier: Apache-2.0
"""Which rounds processes of a test have done: each appends a line to one file when one is over."""

import time
from collections import Counter
from functools import wraps

_FILE = "rounds.log"


def counted(folder, kind, who, round_of):
    """Return what does a round, and notes it when it is over and has not returned False.

    :param kind: of rounds, such as ``look``
    :param who: does them
    """

    @wraps(round_of)
    def call(*given, **more):
        began_s = time.monotonic()
        found = round_of(*given, **more)
        if found is not False:
            with (folder / _FILE).open("a") as file:
                file.write(f"{kind} {who} {began_s}\n")
        return found

    return call


def done(folder, since_s):
    """Return (kind, who) -> rounds that began since a time, of the clock that all processes share, and are over."""
    file = folder / _FILE
    lines = file.read_text().splitlines() if file.exists() else []
    words = (line.split() for line in lines)
    return Counter((kind, who) for kind, who, began_s in words if float(began_s) >= since_s)
