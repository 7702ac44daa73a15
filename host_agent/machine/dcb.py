# SPDX-License-Identifier: Apache-2.0
"""What an adapter does with classes of traffic by itself (Data Center Bridging), as the kernel says it by ``dcb``.

Read only: it is for those who run the network to decide, often by LLDP on the switch. No option or command here
changes it.
"""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from host_agent.model.lanes import DcbState
from placement_traits.errors import CapabilityMissingError, cut

_TIMEOUT_S: Final = 10.0
_NOT_THERE: Final = "Operation not supported"


def read(program: Path, device: str) -> DcbState | None:
    """Return what an adapter does; None: its driver knows of no DCB.

    :param program: ``dcb`` of iproute2
    :param device: its name
    :raises CapabilityMissingError: the program is not there, or refuses, or prints something else
    """
    flow, classes = _shown(program, "pfc", device), _shown(program, "ets", device)
    if flow is None and classes is None:
        return None
    try:
        paused = (
            tuple(at for at, is_on in enumerate(flow["prio_pfc"]) if is_on)
            if flow is not None
            else ()
        )
        if classes is None:
            return DcbState(paused)
        return DcbState(
            paused,
            tuple(map(str, classes["tc_tsa"])),
            tuple(map(int, classes["tc_bw"])),
            tuple(map(int, classes["prio_tc"])),
            is_willing=classes["willing"] is True,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CapabilityMissingError(f"{program} prints something else: {error!r}") from None


def _shown(program: Path, what: str, device: str) -> dict[str, Any] | None:
    """Return an object that the program prints, None where the driver does not know it."""
    command = [str(program), "-j", what, "show", "dev", device]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env={}
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise CapabilityMissingError(f"{program}: {error}") from None
    if done.returncode:
        if _NOT_THERE in done.stderr:
            return None
        why = cut(" ".join(done.stderr.split()) or f"status {done.returncode}")
        raise CapabilityMissingError(f"{program.name} {what}: {why}")
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise CapabilityMissingError(f"{program} prints no JSON: {cut(str(error))}") from None
    if not isinstance(found, dict):
        raise CapabilityMissingError(f"{program} prints no object")
    return found
