# SPDX-License-Identifier: Apache-2.0
"""What may stand while objectives are not watched: when the agent stops, or is paused for an unknown time.

A search holds best-effort servers at the minimum until it knows better, and a trial gives what may have to be taken
again. Neither may stand for hours. So levels go to the last ones at which all objectives were met; where the search has
found none yet, and where nothing helps, to those before it began.
"""

from collections.abc import Mapping
from dataclasses import replace

from host_agent.decide.slo.shapes import BalmPhase, BalmState, BeTarget


def unwatched(state: BalmState, coarse: Mapping[str, int]) -> BalmState:
    """Return the state to rest in, and to go on from later.

    :param state: of the last decision
    :param coarse: best-effort server -> level by the simple rule: for servers that came during the search
    """
    return state.resting({**state.targets, **_settled(state, coarse)})


def _settled(state: BalmState, coarse: Mapping[str, int]) -> dict[str, BeTarget]:
    if state.search is not None and state.search.valid:
        return {
            uuid: target for uuid, target in state.search.valid.items() if uuid in state.targets
        }
    if state.search is not None or state.phase is BalmPhase.RELEASE:
        before = {uuid: target.level for uuid, target in state.before.items()}
        return {
            uuid: replace(target, level=before.get(uuid, coarse.get(uuid, target.level)))
            for uuid, target in state.targets.items()
        }
    if state.trial is not None:
        return {state.trial.be: state.trial.before}
    if state.moving is not None:
        uuid, level = state.moving.be, state.moving.then
        return {uuid: replace(state.targets[uuid], level=level)}
    return {}
