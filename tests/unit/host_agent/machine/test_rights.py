# SPDX-License-Identifier: Apache-2.0
"""Who works on the host himself and who needs the privileged helper, and what a helper lacks."""

import pytest

from host_agent.machine.privileged.rights import has_rights

ALL, NONE = "000001ffffffffff", "0000000000000000"


@pytest.mark.parametrize(
    ("uids", "capabilities", "enough"),
    [
        ("0\t0\t0\t0", ALL, True),
        ("0\t0\t0\t0", NONE, False),  # root in a container
        # Resctrl asks for the uid, not for capabilities.
        ("64055\t64055\t64055\t64055", ALL, False),
        ("64055\t0\t0\t0", ALL, True),  # the effective one counts
    ],
)
def test_only_root_with_capabilities_needs_no_helper(
    uids: str, capabilities: str, enough: bool
) -> None:
    status = f"Name:\tagent\nUid:\t{uids}\nGid:\t0\t0\t0\t0\nCapEff:\t{capabilities}\n"
    assert has_rights(status) is enough
