# SPDX-License-Identifier: Apache-2.0
"""Move a server's ways and bandwidth in Placement to the L3 domain where it really runs.

Placement's candidate and the cells that nova-compute picks differ now and then (``az:host`` skips our filter; another
server came in between), and servers without a NUMA topology are placed by the agent. The host wins. Nothing else of the
allocation is touched, and nothing at all unless

* the domain runs here, bound to its cells or kept in one L3 domain, and has been where it is for some seconds;
* the consumer is the server itself, not a migration, and holds nothing of another host;
* nova says it is ACTIVE on this host, without a task and without a migration that is not over;
* the allocation was not changed since it was read (consumer generation).
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from host_agent.decide.amounts.claims import (
    L3_CLASSES,
    Claim,
    NotTouchableError,
    Replacement,
    Resources,
    moved,
    split,
    totals,
)
from host_agent.model.journal import ActionJournal, Entry, Result
from host_agent.model.terms import Term
from placement_traits.reason import Reason

if TYPE_CHECKING:  # HTTP clients are loaded when they are needed: it takes long
    from host_agent.report.allocations import Allocations

LOG = logging.getLogger(__name__)

RECHECK_S: Final = 600.0


class Settled:
    """Which claims have been the same for some seconds.

    :param after_s: seconds since the server was first seen running where it is
    """

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        self._since: dict[Claim, float] = {}

    def of(self, claims: Iterable[Claim]) -> tuple[Claim, ...]:
        """Return those of the present claims that have settled; one that was away for a moment begins again."""
        now = self._clock()
        self._since = {claim: self._since.get(claim, now) for claim in claims}
        return tuple(c for c, since in self._since.items() if now - since >= self._after_s)


class Rehomer:
    """Makes the L3 part of allocations agree with the host.

    :param allocations: what servers hold
    :param root: name of nova's root provider
    :param journal: gets each move
    :param recheck_s: seconds after which an allocation that was right is looked at again
    """

    def __init__(
        self,
        allocations: "Allocations",
        root: str,
        journal: ActionJournal,
        *,
        recheck_s: float = RECHECK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allocations = allocations
        self._root = root
        self._journal = journal
        self._recheck_s = recheck_s
        self._clock = clock
        self._right: dict[Claim, float] = {}  # until when each is taken to be right

    def turn(self, claims: Sequence[Claim]) -> tuple[str, ...]:
        """Look at the claims that are not known to be right; return what stands in the way of the others.

        :raises NumaExtError: Placement or nova does not answer, or does not let us
        """
        now = self._clock()
        self._right = {c: until for c, until in self._right.items() if c in claims and now < until}
        suspect = [claim for claim in claims if claim not in self._right]
        if not suspect:
            return ()
        self._allocations.refresh()
        problems: list[str] = []
        misplaced: dict[str, tuple[Claim, Replacement]] = {}
        for claim in suspect:
            try:
                replacement = self._replacement(claim)
            except NotTouchableError as error:
                # Not a problem: it passes by itself.
                LOG.debug("%s is not re-homed now: %s", claim.title, error)
                continue
            if isinstance(replacement, str):
                problems.append(replacement)
            elif replacement is None:
                self._right[claim] = now + self._recheck_s
            else:
                misplaced[claim.uuid] = claim, replacement
        return (*problems, *self._move(misplaced))

    def _replacement(self, claim: Claim) -> Replacement | str | None:
        """Return the replacement, None when all is right, or a sentence when it takes more than a move."""
        held = self._allocations.held(claim.uuid)
        resources = moved(claim, self._root, held.resources)
        if resources is not None:
            self._allocations.check_quiet(claim.uuid)
            return Replacement(claim.uuid, held, resources)
        if totals(_ours(held.resources)) != totals(claim.l3(self._root)):
            return (
                f"Server {claim.title} ({claim.uuid}) does not hold in Placement what its flavor asks of L3 domains: "
                "see numa-host-agent-ctl heal --dry-run."
            )
        return None

    def _move(self, misplaced: dict[str, tuple[Claim, Replacement]]) -> list[str]:
        refused = self._allocations.replace([replacement for _, replacement in misplaced.values()])
        problems = []
        for uuid, (claim, replacement) in misplaced.items():
            why = refused.get(uuid, "")
            if why:
                problems.append(f"Server {claim.title} ({uuid}) could not be re-homed. {why}")
            else:
                self._right[claim] = self._clock() + self._recheck_s
                LOG.info(
                    "re-homed %s in Placement to %s", claim.title, sorted(claim.l3(self._root))
                )
            self._journal.write(_entry(claim, replacement, why))
        return problems


def _ours(held: Mapping[str, Resources]) -> dict[str, dict[str, int]]:
    return split(held, L3_CLASSES)[1]


def _entry(claim: Claim, replacement: Replacement, problem: str) -> Entry:
    before, after = _ours(replacement.held.resources), _ours(replacement.resources)
    reason = Reason(Term.RUNS_ELSEWHERE, ",".join(sorted(after)), ",".join(sorted(before)))
    return Entry(
        "rehome",
        Result.FAILED if problem else Result.DONE,
        claim.uuid,
        claim.title,
        {"from": before, "to": after},
        (str(reason),),
        problem=problem,
    )
