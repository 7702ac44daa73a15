# SPDX-License-Identifier: Apache-2.0
"""How far a member is that the service adds to a group, or takes out of it."""

from enum import StrEnum
from typing import Final


class MemberStep(StrEnum):
    """Steps of a member; each is stored before it is begun, so that who follows goes on with it."""

    ASKED = "asked"  # nova is asked for a server
    BUILDING = "building"  # nova builds it
    ADDING = "adding"  # hook add: the service takes it in
    JOINING = "joining"  # hook ready: until it carries load
    JOINED = "joined"
    DRAINING = "draining"  # hook drain: until it carries load no more
    DELETING = "deleting"  # nova deletes it; hook delete: the service forgets it
    DROPPED = "dropped"  # it was never taken in: nova deletes it
    LOST = "lost"  # nova did not answer, and nothing is there: what comes late is deleted


COMING: Final = frozenset({MemberStep.BUILDING, MemberStep.ADDING, MemberStep.JOINING})
GOING: Final = frozenset({MemberStep.DRAINING, MemberStep.DELETING, MemberStep.DROPPED})
