# SPDX-License-Identifier: Apache-2.0
"""One turn of the agent's loop: what was seen, what should be, what was done."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from host_agent.model.assignment import Decision, Observation, Outcome
from host_agent.model.modes import Modes
from nova_numa_ext.policy.modes import Mode


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of the loop.

    :param observation: what was seen
    :param decision: what should be
    :param outcomes: what was done, by server
    :param seconds: time taken
    :param paused: an operator has paused the agent: nothing was decided or done
    :param modes: what of the decision was carried out
    :param listed: the servers are those that libvirt runs; False: those known before it was lost
    """

    observation: Observation
    decision: Decision = field(default_factory=Decision)
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0
    paused: bool = False
    listed: bool = True
    modes: Modes = field(default_factory=lambda: Modes.all(Mode.ENFORCE))

    @property
    def unfinished(self) -> bool:
        """Pages are left to be moved."""
        return any(
            outcome.remaining_kb and not outcome.problems for outcome in self.outcomes.values()
        )
