# SPDX-License-Identifier: Apache-2.0
"""A process that does not outlive the one that started it, whatever that one dies of."""

import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Have the kernel kill this process with the thread that forked it (prctl(2), ``PR_SET_PDEATHSIG``).

    For ``preexec_fn``, as the user that the process will be: a later change of users undoes it.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
