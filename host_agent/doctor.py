# SPDX-License-Identifier: Apache-2.0
"""What the agent needs on this host and what disturbs it: each finding says what is, and what to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from host_agent import conf as agent_conf
from host_agent.events import LibvirtSource
from host_agent.paths import HostPaths
from host_agent.privileged import seam
from host_agent.privileged.partitions import foreign_groups, tree
from host_agent.rdt.errors import ResctrlUnavailableError
from placement_traits.errors import NumaExtError


class Level(StrEnum):
    """How bad a finding is."""

    GOOD = "good"
    DEGRADED = "degraded"  # something works less well; the rest does
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing."""

    check: str
    level: Level
    detail: str

    @property
    def row(self) -> dict[str, Any]:
        """For a table."""
        return {"check": self.check, "level": self.level.value, "detail": self.detail}


def check(conf: agent_conf.Conf) -> list[Finding]:
    """Check everything."""
    paths = agent_conf.paths(conf)
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _libvirt(conf, paths),
        _rights,
        lambda: _rdt(paths),
        lambda: _numa_balancing(paths),
        lambda: _numad(paths),
        lambda: _huge_pages(paths),
        lambda: _placement(conf),
    )
    return [finding for one in checks for finding in one()]


def _libvirt(conf: agent_conf.Conf, paths: HostPaths) -> Iterator[Finding]:
    source = LibvirtSource(conf.libvirt_host.uri)
    try:
        number = len(source.domains())
        yield Finding("libvirt", Level.GOOD, f"{source.hostname()}, {number} domains")
    except NumaExtError as error:
        yield Finding("libvirt", Level.BROKEN, str(error))
        return
    finally:
        source.close()
    if not paths.libvirt_pids.is_dir():
        text = f"{paths.libvirt_pids} does not exist: set [libvirt_host]pid_dir"
        yield Finding("libvirt pid files", Level.BROKEN, text)


def _rights() -> Iterator[Finding]:
    if seam.has_rights(Path("/proc/self/status").read_text()):
        yield Finding("rights", Level.GOOD, "all needed capabilities are here, no helper is needed")
    else:
        text = "not all capabilities are here: the agent starts a helper through [numa_ext_privileged]helper_command"
        yield Finding("rights", Level.GOOD, text)


def _rdt(paths: HostPaths) -> Iterator[Finding]:
    resctrl = tree(paths)
    try:
        found = resctrl.capabilities()
    except ResctrlUnavailableError as error:
        yield Finding("rdt", Level.DEGRADED, f"no partitions: {error}")
        return
    except (NumaExtError, OSError) as error:
        yield Finding("rdt", Level.BROKEN, str(error))
        return
    words = [f"{cache.name} {cache.ways} ways" for cache in found.caches]
    words += [f"MB in {found.bandwidth.unit}"] if found.bandwidth else []
    words += [f"{found.monitoring.num_rmids} RMIDs"] if found.monitoring else []
    yield Finding("rdt", Level.GOOD, f"{', '.join(words)}, {found.num_closids} classes")
    if not found.l3:
        yield Finding("rdt L3 CAT", Level.DEGRADED, "latency-critical servers cannot have ways")
    foreign = foreign_groups(paths)
    if foreign:
        text = f"{foreign} groups of other software hold a class of service each and are left alone"
        yield Finding("rdt foreign groups", Level.DEGRADED, text)


def _numa_balancing(paths: HostPaths) -> Iterator[Finding]:
    try:
        value = (paths.proc / "sys/kernel/numa_balancing").read_text().strip()
    except OSError:
        yield Finding("kernel.numa_balancing", Level.GOOD, "not in this kernel")
        return
    if value == "0":
        yield Finding("kernel.numa_balancing", Level.GOOD, "off")
    else:
        text = "on: the kernel moves pages of floating servers back; sysctl kernel.numa_balancing=0"
        yield Finding("kernel.numa_balancing", Level.DEGRADED, text)


def _numad(paths: HostPaths) -> Iterator[Finding]:
    for entry in paths.proc.iterdir():
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text() == "numad\n":
                text = f"process {entry.name} moves servers against the agent: stop it"
                yield Finding("numad", Level.DEGRADED, text)
                return
        except OSError:
            continue  # ended between listing and reading
    yield Finding("numad", Level.GOOD, "does not run")


def _huge_pages(paths: HostPaths) -> Iterator[Finding]:
    file = paths.sys / "kernel/mm/transparent_hugepage/enabled"
    try:
        text = file.read_text()
    except OSError:
        yield Finding("transparent huge pages", Level.DEGRADED, "not in this kernel")
        return
    value = text.partition("[")[2].partition("]")[0]
    yield Finding("transparent huge pages", Level.GOOD, value)


def _placement(conf: agent_conf.Conf) -> Iterator[Finding]:
    if not conf.placement.enabled:
        yield Finding("placement", Level.DEGRADED, "[placement]enabled is false")
        return
    from host_agent.report import make_adapter
    from placement_traits.client import PlacementClient

    try:
        PlacementClient(make_adapter(conf)).get("/resource_classes")
    except NumaExtError as error:
        yield Finding("placement", Level.BROKEN, str(error))
        return
    yield Finding("placement", Level.GOOD, "answers")
