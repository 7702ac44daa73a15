# SPDX-License-Identifier: Apache-2.0
"""Where the host's files are: one object, so that tests put /proc, /sys and resctrl somewhere else."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Roots of everything that is read from or written to the host, and how it is written.

    :param proc: the proc file system
    :param sys: the sysfs file system
    :param resctrl: mount point of resctrl
    :param pid_dir: folder of libvirt's own files of running domains, ``NAME.pid`` and ``NAME.xml`` each
    :param state: folder of the agent's own journal, state and pause mark
    :param helper_state: folder of what the privileged helper remembers, writable for root only
    :param rdt_backend: what writes resctrl: ``resctrl`` (we ourselves) or ``pqos`` (libpqos)
    :param full_bandwidth_mbps: what 100 % stands for where bandwidth levels are absolute, MB/s; 0: not known
    """

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    resctrl: Path = Path("/sys/fs/resctrl")
    pid_dir: Path = Path("/run/libvirt/qemu")
    state: Path = Path("/var/lib/numa-host-agent")
    helper_state: Path = Path("/run/numa-host-agent-helper")
    rdt_backend: str = "resctrl"
    full_bandwidth_mbps: int = 0

    @property
    def journal(self) -> Path:
        """The journal that is written to now; rotated ones have a number appended."""
        return self.state / "journal.jsonl"

    @property
    def home_nodes(self) -> Path:
        """The small state file: what is not visible on the host itself."""
        return self.state / "state.json"

    @property
    def published(self) -> Path:
        """The name under which this host is published in Placement."""
        return self.state / "published.json"

    @property
    def rollout(self) -> Path:
        """Which modes are effective, and which servers wait to be taken over."""
        return self.state / "rollout.json"

    @property
    def costs(self) -> Path:
        """What best-effort servers have paid, for the console."""
        return self.state / "costs.json"

    @property
    def slo(self) -> Path:
        """The targets of the SLO controller and how objectives stand."""
        return self.state / "slo.json"

    @property
    def lane_door(self) -> Path:
        """The socket by which the agent and the unit of lanes speak."""
        return self.state / "lanes.sock"

    @property
    def balancing(self) -> Path:
        """What the run-time controllers have learnt."""
        return self.state / "balancing.json"

    @property
    def calibration(self) -> Path:
        """Measured memory bandwidths, see ``numa-host-agent-ctl calibrate``."""
        return self.state / "calibration.json"

    @property
    def topology(self) -> Path:
        """Where CPUs belong that may be offline later."""
        return self.state / "topology.json"

    @property
    def kept(self) -> tuple[Path, ...]:
        """All files of the state folder that an agent makes, without what is appended to names; the lock last."""
        return (
            *(self.journal, self.home_nodes, self.published, self.rollout, self.costs, self.slo),
            *(self.balancing, self.calibration, self.topology, self.paused, self.acting, self.lock),
        )

    @property
    def lock(self) -> Path:
        """Locked while an agent runs; holds its process id."""
        return self.state / "agent.lock"

    @property
    def acting(self) -> Path:
        """Locked, shared, while a round acts on the host; exclusively by who wants it at rest."""
        return self.state / "acting.lock"

    @property
    def paused(self) -> Path:
        """Exists while an operator has paused the agent."""
        return self.state / "paused"
