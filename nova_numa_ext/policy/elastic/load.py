# SPDX-License-Identifier: Apache-2.0
"""What a member of a group has to do, as the monitoring of its service reports it."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """Work of one member in a period (Gureya 2021, section 3.3).

    :param reads_per_s: operations that the objective is about
    :param writes_per_s: the others
    :param size_kb: mean size of what they read and write, KiB
    """

    reads_per_s: float
    writes_per_s: float = 0.0
    size_kb: float = 0.0

    def times(self, factor: float) -> "MemberLoad":
        """Return more or less of the same work; the size of the data stays."""
        return replace(
            self, reads_per_s=factor * self.reads_per_s, writes_per_s=factor * self.writes_per_s
        )
