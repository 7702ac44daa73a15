# SPDX-License-Identifier: Apache-2.0
"""Control and monitoring groups of the resctrl model, and the kernel's sentences when it refuses something of them."""

import os
from dataclasses import dataclass, field
from typing import Final

STATUS_BYTES: Final = 512  # last_cmd_status_buf


@dataclass(slots=True)
class CommandStatus:
    """The kernel's sentences since they were cleared: a ``seq_buf`` that takes no more once one did not fit."""

    text: str = ""
    full: bool = False

    def clear(self) -> None:
        """Forget them: a command begins."""
        self.text, self.full = "", False

    def add(self, line: str) -> None:
        """Add a sentence, where there is room."""
        self.full = self.full or len(self.text) + len(line) >= STATUS_BYTES
        if not self.full:
            self.text += line

    def refuse(self, number: int, reason: str) -> OSError:
        """Keep the reason, and return the error to be raised."""
        self.add(reason + "\n")
        return kernel_error(number)


@dataclass(slots=True)
class MonitorGroup:
    """A monitoring group, or that part of a control group: one RMID; ``number`` distinguishes groups of one name."""

    rmid: int
    number: int = 0
    cpus: set[int] = field(default_factory=set)
    total: dict[int, float] = field(default_factory=dict)
    local: dict[int, float] = field(default_factory=dict)
    occupancy: dict[int, float] = field(default_factory=dict)
    fault: str = ""


@dataclass(slots=True)
class ControlGroup:
    """A control group: one CLOSID."""

    name: str
    closid: int
    own: MonitorGroup
    mode: str = "shareable"
    schemata: dict[str, dict[int, int]] = field(default_factory=dict)
    monitors: dict[str, MonitorGroup] = field(default_factory=dict)


def kernel_error(number: int) -> OSError:
    """Return the error of a number, in the words of the C library."""
    return OSError(number, os.strerror(number))
