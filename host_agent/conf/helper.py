# SPDX-License-Identifier: Apache-2.0
"""Options of the privileged helper: section ``[helper]``."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from placement_traits.options import Section, option


@dataclass(frozen=True, slots=True)
class HelperOptions(Section):
    """``[helper]``."""

    section: ClassVar = "helper"
    title: ClassVar = "The privileged helper: the part of the agent that has rights"

    socket: Path = option(
        Path("/run/numa-host-agent-helper.sock"),
        "Unix socket on which the helper listens. Its folder may be writable for root only. systemd makes it "
        "(numa-host-agent-helper.socket, whose ListenStream has to be the same), else numa-host-agent-supervisor.",
        change="several agents run on one machine (tests, the lab)",
        leave="the units or the supervisor start the helper",
    )
    agent_user: str = option(
        "numa-host-agent",
        "User that the agent runs as. The helper serves processes of this user and of root, and closes connections "
        "of all others; where there is no such user, it serves root alone.",
        change="the agent runs as another user",
        leave="the package has made the user",
    )
    state_dir: Path = option(
        Path("/run/numa-host-agent-helper"),
        "Folder of what the helper has to remember until the host is booted again: root's masks before they were "
        "shrunk, servers that are throttled by CPU time. It is made when it is missing; only root may be able to "
        "write there.",
        change="several agents run on one machine (tests, the lab)",
        leave="servers run here: moving it loses what reset gives back",
    )
