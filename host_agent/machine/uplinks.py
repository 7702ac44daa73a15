# SPDX-License-Identifier: Apache-2.0
"""Queues and marks of this host's own uplinks: read and written by tc and nft, which is all that does it.

Texts that are written come from :mod:`host_agent.decide.lanes`; each is one batch or one ruleset, and what a program
refuses is raised with its own sentence. Nothing is read but sysfs and what the programs print.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from host_agent.model.lanes import OFFLOAD, ShownClass, ShownMarks, ShownQueue, UplinkFacts
from placement_traits.errors import CapabilityMissingError, cut

_TABLE: Final = "numa_ext"
_BIT: Final = {"": 1e-6, "K": 1e-3, "M": 1.0, "G": 1e3, "T": 1e6}
_CLASS: Final = re.compile(
    r"class htb [0-9a-f]+:(?P<minor>[0-9a-f]+) (?:root|parent \S+)(?: leaf \S+)?(?: prio (?P<prio>\d+))?"
    r" (?:.*? )?rate (?P<rate>[\d.]+)(?P<rate_unit>[KMGT]?)bit ceil (?P<ceil>[\d.]+)(?P<ceil_unit>[KMGT]?)bit"
)
_CHAIN: Final = re.compile(r'type filter hook ingress device "?(?P<device>[^"\s;]+)"? ')
_MISSING: Final = "No such file or directory"


@dataclass(frozen=True, slots=True)
class UplinkPrograms:
    """Where the programs are.

    :param tc: of iproute2
    :param nft: of nftables
    :param ovs_vsctl: of Open vSwitch; it need not be there
    :param timeout_s: longest wait for one of them
    """

    tc: Path = Path("/usr/sbin/tc")
    nft: Path = Path("/usr/sbin/nft")
    ovs_vsctl: Path = Path("/usr/bin/ovs-vsctl")
    timeout_s: float = 10.0


class Uplinks:
    """The network devices of this host, as lanes need them.

    :param programs: that read and write
    :param sys: where sysfs is
    :param speeds_mbps: of devices whose driver does not say it, or says more than the line has
    """

    def __init__(
        self,
        programs: UplinkPrograms,
        sys: Path,
        speeds_mbps: Mapping[str, int] | None = None,
    ) -> None:
        self._programs = programs
        self._net = sys / "class/net"
        self._speeds_mbps = dict(speeds_mbps or {})

    def names(self) -> tuple[str, ...]:
        """Return all network devices of this host."""
        try:
            return tuple(sorted(each.name for each in self._net.iterdir()))
        except OSError:
            return ()

    def index(self, device: str) -> int | None:
        """Return the number of a device, which another one of its name does not have; None: it is gone."""
        try:
            return int((self._net / device / "ifindex").read_text())
        except (OSError, ValueError):
            return None

    def facts(self, device: str) -> UplinkFacts:
        """Return what is known of an uplink.

        :raises CapabilityMissingError: there is no such device, or tc cannot be asked
        """
        if self.index(device) is None:
            raise CapabilityMissingError(f"there is no network device {device}")
        root = self.queue(device)
        return UplinkFacts(
            device,
            self._speeds_mbps.get(device) or self._speed_mbps(device),
            root.kind,
            root.handle,
            is_bond=(self._net / device / "bonding").is_dir(),
            offload=self._offload(device, root),
            ovs_qos=self._ovs_qos(device),
        )

    def queue(self, device: str) -> ShownQueue:
        """Return the root qdisc of a device, with its classes where it is htb.

        :raises CapabilityMissingError: tc cannot be asked
        """
        text = self._run(self._programs.tc, "-j", "qdisc", "show", "dev", device)
        try:
            found = json.loads(text or "[]")
            roots = [each for each in found if each.get("root")]
        except (ValueError, TypeError, AttributeError) as error:
            raise CapabilityMissingError(f"tc prints no JSON: {cut(str(error))}") from None
        if not roots:
            return ShownQueue("noqueue", "")
        kind = str(roots[0].get("kind", ""))
        handle = str(roots[0].get("handle", "")).rstrip(":")
        options: dict[str, Any] = roots[0].get("options") or {}
        classes = self._classes(device) if kind == "htb" else {}
        return ShownQueue(kind, handle, options, classes)

    def marks(self) -> ShownMarks | None:
        """Return what our tables hold; None: one of them is not there.

        :raises CapabilityMissingError: nft cannot be asked
        """
        taps = self._listed("netdev")
        outer = self._listed("inet")
        if taps is None or outer is None:
            return None
        chains: dict[str, list[str]] = {}
        rules: list[str] = []
        for line in taps:
            if match := _CHAIN.match(line):
                rules = chains.setdefault(match["device"], [])
            elif " set " in line:
                rules.append(line)
        tunnels = tuple(line for line in outer if " set " in line)
        return ShownMarks({name: tuple(lines) for name, lines in chains.items()}, tunnels)

    def userland_ports(self) -> frozenset[str]:
        """Return the ports of bridges whose datapath is Open vSwitch's own program: what it passes has no mark.

        :raises CapabilityMissingError: Open vSwitch is here, and refuses to say it
        """
        if not self._programs.ovs_vsctl.exists():
            return frozenset()
        ask = (self._programs.ovs_vsctl, "--timeout=5")
        netdev = ("--bare", "--columns=name", "find", "bridge", "datapath_type=netdev")
        try:
            bridges = self._run(*ask, *netdev).split()
            return frozenset(
                port for bridge in bridges for port in self._run(*ask, "list-ports", bridge).split()
            )
        except CapabilityMissingError as error:
            if _MISSING in str(error):  # its database does not run
                return frozenset()
            raise

    def write_queues(self, batch: str) -> None:
        """Carry out a batch of tc.

        :raises CapabilityMissingError: a line was refused; those before it have been carried out
        """
        self._run(self._programs.tc, "-batch", "-", given=batch)

    def write_marks(self, ruleset: str) -> None:
        """Carry out a ruleset of nft, all of it or nothing.

        :raises CapabilityMissingError: it was refused
        """
        self._run(self._programs.nft, "-f", "-", given=ruleset)

    def _speed_mbps(self, device: str) -> int | None:
        try:
            found = int((self._net / device / "speed").read_text())
        except (OSError, ValueError):
            return None
        return found if found > 0 else None

    def _offload(self, device: str, root: ShownQueue) -> tuple[int, ...]:
        """Return the map of priorities of an adapter that does mqprio itself, or of all members of a bond.

        tc prints no ``hw``. It prints the mode, which the kernel takes for adapters alone; but "dcb" is also printed
        where no mode was given, so only "channel" is known to be the adapter's.
        """
        try:
            members = (self._net / device / "bonding/slaves").read_text().split()
        except OSError:
            members = []
        found = {_map(self.queue(member)) for member in members} if members else {_map(root)}
        return found.pop() if len(found) == 1 else ()

    def _ovs_qos(self, device: str) -> str | None:
        """Return the type of QoS of a port of Open vSwitch; one that cannot be asked has none that we know of."""
        master = self._net / device / "master"
        if not (master.exists() and master.resolve().name == "ovs-system"):
            try:
                if device not in self.userland_ports():
                    return None
            except CapabilityMissingError:  # a port that we may not ask for is none that we know of
                return None
        ask = (self._programs.ovs_vsctl, "--timeout=5", "--if-exists", "get")
        try:
            qos = self._run(*ask, "port", device, "qos").strip()
            if qos in ("", "[]"):
                return ""
            return self._run(*ask, "qos", qos, "type").strip().strip('"')
        except CapabilityMissingError:
            return ""

    def _classes(self, device: str) -> dict[str, ShownClass]:
        found = {}
        for line in self._run(self._programs.tc, "class", "show", "dev", device).splitlines():
            if match := _CLASS.match(line):
                rate = round(float(match["rate"]) * _BIT[match["rate_unit"]], 3)
                ceil = round(float(match["ceil"]) * _BIT[match["ceil_unit"]], 3)
                priority = None if match["prio"] is None else int(match["prio"])
                found[match["minor"]] = ShownClass(rate, ceil, priority)
        return found

    def _listed(self, family: str) -> list[str] | None:
        try:
            text = self._run(self._programs.nft, "-n", "list", "table", family, _TABLE)
        except CapabilityMissingError as error:
            if _MISSING in str(error):
                return None
            raise
        return [line.strip() for line in text.splitlines()]

    def _run(self, program: Path, *arguments: str, given: str = "") -> str:
        command = [str(program), *arguments]
        try:
            done = subprocess.run(
                command,
                input=given,
                capture_output=True,
                text=True,
                check=True,
                timeout=self._programs.timeout_s,
                env={},
            )
        except subprocess.CalledProcessError as error:
            why = cut(" ".join(error.stderr.split()) or f"status {error.returncode}")
            raise CapabilityMissingError(f"{program.name} {arguments[0]}: {why}") from None
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
            raise CapabilityMissingError(f"{program}: {error}") from None
        return done.stdout


def _map(root: ShownQueue) -> tuple[int, ...]:
    """Return the traffic class of each priority of an adapter's own mqprio, () for another root."""
    found = root.options.get("map")
    is_own = root.kind == OFFLOAD and root.options.get("mode") == "channel"
    return tuple(map(int, found)) if is_own and isinstance(found, list) else ()
