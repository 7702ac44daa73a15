# SPDX-License-Identifier: Apache-2.0
"""What lldpd has heard at the other end of this host's cables.

lldpd hears it with the privileges that this needs; nothing of ours opens a raw socket.
"""

import json
import subprocess
from pathlib import Path

from host_agent.conf.cables import CableOptions
from placement_traits.errors import CapabilityMissingError, cut
from placement_traits.lldp import SwitchPort, neighbours

_WHERE = "neighbours of this host"


def heard(options: CableOptions, sys: Path) -> tuple[SwitchPort, ...]:
    """Return the switches at the interfaces that count.

    :param sys: where sysfs is: an interface of a server has no device there
    :raises CapabilityMissingError: lldpcli is missing, is refused by lldpd, or is too slow
    :raises InvalidValueError: it prints something else than neighbours
    """
    command = [str(options.lldpcli), "-f", "json", "show", "neighbors"]
    try:
        done = subprocess.run(
            command, capture_output=True, check=True, timeout=options.timeout_s, env={}
        )
        shown = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        why = cut(error.stderr.decode(errors="replace").strip() or f"status {error.returncode}")
        raise CapabilityMissingError(
            f"{options.lldpcli}: {why}; the agent's user must be in lldpd's group, such as _lldpd"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise CapabilityMissingError(f"{options.lldpcli}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise CapabilityMissingError(
            f"{options.lldpcli} prints no JSON: {cut(str(error))}"
        ) from None
    chosen = options.interfaces
    return tuple(
        each
        for each in neighbours(shown, _WHERE)
        if (each.interface in chosen if chosen else _has_device(sys, each.interface))
    )


def _has_device(sys: Path, interface: str) -> bool:
    return "/" not in interface and (sys / "class/net" / interface / "device").exists()
