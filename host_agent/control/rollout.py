# SPDX-License-Identifier: Apache-2.0
"""How far the agent is switched on here: the modes in effect, for all threads."""

from typing import Final

from host_agent.conf.options import Options
from host_agent.decide.modes import in_effect
from host_agent.model.modes import Feature, Modes
from nova_numa_ext.policy.modes import Mode

_DRY: Final = Modes.all(Mode.OBSERVE)


class Rollout:
    """The modes in effect; any thread may ask.

    :param options: the operator's
    :param dry_run: whatever they say, nothing is carried out
    """

    def __init__(self, options: Options, *, dry_run: bool = False) -> None:
        self._modes = _DRY if dry_run else in_effect(options, Mode.ENFORCE)

    @property
    def modes(self) -> Modes:
        """The modes in effect now."""
        return self._modes

    def acts(self, feature: Feature) -> bool:
        """Tell whether what a feature decides is carried out now."""
        return self._modes.act(feature)
