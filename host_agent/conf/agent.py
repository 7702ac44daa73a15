# SPDX-License-Identifier: Apache-2.0
"""Options of the host agent: declared once, read into frozen settings, shown by ``oslo-config-generator``."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg, types

from host_agent.conf import balancing, check
from host_agent.conf import slo as slo_conf
from host_agent.conf.paths import HostPaths
from placement_traits.errors import InvalidValueError

AGENT = cfg.OptGroup("agent", title="The host agent's loop, files and metrics")
LIBVIRT = cfg.OptGroup("libvirt_host", title="The libvirt of this host")
HOST = cfg.OptGroup("host", title="Where the kernel's files are")
PINNING = cfg.OptGroup("pinning", title="vCPU pins")
MEMORY = cfg.OptGroup("memory", title="Placement of guest memory over NUMA nodes")
RDT = cfg.OptGroup("rdt", title="Cache and memory-bandwidth partitions (Intel RDT, AMD QoS)")
PLACEMENT = cfg.OptGroup("placement", title="What the agent tells Placement")

Conf = cfg.ConfigOpts

_ROUNDS_MISSED: Final = 3  # so that one slow round is no silence

CONFIG_FILE: Final = Path("/etc/numa-host-agent/numa-host-agent.conf")
CONFIG_VARIABLE: Final = (
    "NUMA_HOST_AGENT_CONFIG"  # names another file for agent and numa-host-agent-ctl
)

_OPTIONS: dict[cfg.OptGroup, list[cfg.Opt]] = {
    AGENT: [
        cfg.StrOpt(
            "state_dir",
            default="/var/lib/numa-host-agent",
            help="Folder of the journal, the small state file and the pause mark. Keep it over restarts: it holds "
            "the home nodes of floating servers, which the host itself does not show.",
        ),
        cfg.FloatOpt(
            "interval_s",
            default=2.0,
            min=0.05,
            help="Seconds between two rounds when nothing happens; a libvirt event starts one at once. Shorter rounds "
            "find new threads and drifted pages sooner and cost more CPU time.",
        ),
        cfg.FloatOpt(
            "resync_s",
            default=60.0,
            min=1.0,
            help="Seconds between full passes: all domains are listed and all page tables are walked. It also catches "
            "what a lost libvirt event would have told.",
        ),
        cfg.BoolOpt(
            "manage_untagged",
            default=False,
            help="Also manage servers whose flavor has no numa_ext extra spec at all (as sheep without a tier). "
            "Turn it on when every server of the host shall be mapped.",
        ),
        cfg.IntOpt(
            "journal_mb",
            default=16,
            min=1,
            help="Size at which the journal is rotated, MiB.",
        ),
        cfg.IntOpt("journal_files", default=5, min=1, help="Rotated journals that are kept."),
        cfg.HostAddressOpt(
            "metrics_address",
            default="127.0.0.1",
            help="Address of the Prometheus endpoint. It has no authentication: keep it on loopback.",
        ),
        cfg.PortOpt("metrics_port", default=9177, help="Its port; 0 turns it off."),
    ],
    LIBVIRT: [
        cfg.StrOpt("uri", default="qemu:///system", help="Connection URI."),
        cfg.StrOpt(
            "pid_dir",
            default="/run/libvirt/qemu",
            help="Folder of libvirt's pid files. Only root may be able to write there: the agent trusts it to tell "
            "which processes are domains.",
        ),
    ],
    HOST: [
        cfg.StrOpt(
            "name",
            help="Name of this host's root provider in Placement (nova's hypervisor hostname). "
            "Default: what libvirt says.",
        ),
        cfg.ListOpt(
            "gpu_products",
            default=[],
            help="vendor:product ids (hexadecimal, such as 10de:20b5) of PCI devices to take as GPUs beside display "
            "controllers.",
        ),
        cfg.StrOpt(
            "gpu_matrix",
            default="",
            help="File with a recorded `nvidia-smi topo -m`, followed by the output of `nvidia-smi "
            "--query-gpu=index,pci.bus_id --format=csv,noheader`. Needed where GPUs are given to servers: their driver "
            "is vfio-pci then, so that NVIDIA's own cannot be asked for NVLinks. Read again with the topology. Empty: "
            "NVML is asked where there are NVIDIA GPUs.",
        ),
        cfg.Opt(
            "chassis",
            type=types.Dict(types.Integer(min=0)),
            default={},
            help="Server node of each socket, such as 0:0,1:0,2:1,3:1, for machines that join several server nodes "
            "under one kernel (NumaConnect, HPE Superdome): firmware does not say it. A socket that is missing is in "
            "node 0, so leave it empty on any other machine.",
        ),
        cfg.ListOpt(
            "nova_conf",
            default=["/etc/nova/nova.conf", "/etc/nova/nova-compute.conf"],
            help="Configuration files of this host's nova-compute, later ones win. Only the doctor reads them, to "
            "compare them with what the agent and the scheduler count on; files that are not there are skipped.",
        ),
        cfg.StrOpt("proc", default="/proc", help="Mount point of proc."),
        cfg.StrOpt("sys", default="/sys", help="Mount point of sysfs."),
        cfg.StrOpt("resctrl", default="/sys/fs/resctrl", help="Mount point of resctrl."),
    ],
    PINNING: [
        cfg.BoolOpt(
            "enabled",
            default=True,
            help="Keep the vCPU threads of dedicated servers on nova's pins and those of floating servers on the CPUs "
            "of their home nodes.",
        ),
    ],
    MEMORY: [
        cfg.BoolOpt(
            "enabled",
            default=True,
            help="Move pages that are not on their node. Never widens a cpuset.",
        ),
        cfg.FloatOpt(
            "dead_band_percent",
            default=1.0,
            min=0.0,
            max=100.0,
            help="Share of a server's memory that may be elsewhere before anything is moved.",
        ),
        cfg.IntOpt(
            "rate_mbps",
            default=400,
            min=0,
            help="MB/s that page moves may use in one round; 0 is no limit. Moves take memory bandwidth from the "
            "servers.",
        ),
        cfg.FloatOpt(
            "pause_ms",
            default=50.0,
            min=0.0,
            help="Milliseconds that one call to the kernel should take at most to move pages: a server that wants one "
            "of them waits. One huge page is moved in any case, never more than 16 MiB at a time; 0 is no limit.",
        ),
        cfg.FloatOpt(
            "slice_s",
            default=1.0,
            min=0.01,
            help="Seconds that page moves of all servers together may take in one round; the rest follows in the next.",
        ),
        cfg.FloatOpt(
            "polled_slice_s",
            default=0.1,
            min=0.01,
            help="The same while a controller polls its sensors between the rounds: what it sees is acted on so much "
            "later at worst.",
        ),
        cfg.IntOpt(
            "margin_mb",
            default=256,
            min=0,
            help="Memory left free on every node when floating servers are moved there, MiB, beside what nova promised "
            "to servers that are bound to the node.",
        ),
        cfg.IntOpt(
            "sample_pages",
            default=512,
            min=16,
            max=4096,
            help="Pages of each server looked up per round to see drift between two full passes.",
        ),
    ],
    RDT: [
        cfg.BoolOpt("enabled", default=True, help="Partition cache and memory bandwidth."),
        cfg.StrOpt(
            "backend",
            choices=["resctrl", "pqos"],
            default="resctrl",
            help="What writes the kernel's resctrl files: the agent itself, or Intel's libpqos for sites that allow "
            "nothing else. libpqos takes every class of service of the host, so it works only where no other software, "
            "libvirt included, has groups; it needs the Python package pqos 4.5.0 and libpqos 4. To change it, run "
            "numa-host-agent-ctl reset before.",
        ),
        cfg.IntOpt(
            "be_mba_percent",
            default=50,
            min=1,
            max=100,
            help="Memory bandwidth level of best-effort servers in the L3 domains where a latency-critical one runs; "
            "elsewhere they have all of it.",
        ),
        cfg.BoolOpt(
            "shrink_root",
            default=True,
            help="Take the ways of latency-critical servers from the default group, too. Without it host processes and "
            "unmanaged servers fill the same ways, and no server is shown as exclusive.",
        ),
        cfg.IntOpt(
            "shared_ways_min",
            default=1,
            min=1,
            help="Ways of each L3 domain that are never given to a latency-critical server.",
        ),
        cfg.FloatOpt(
            "release_after_s",
            default=60.0,
            min=1.0,
            help="Seconds without a round of the agent (it was killed, or hangs) after which best-effort servers get "
            "all bandwidth and CPU time back; at least three times [agent]interval_s is taken. An agent that is "
            "stopped as it should leaves everything as it is.",
        ),
        cfg.BoolOpt(
            "cpu_time_fallback",
            default=False,
            help="Where the hardware cannot allocate memory bandwidth, throttle best-effort servers by the CPU time of "
            "their vCPUs instead, by the same levels. It needs no RDT, but costs them arithmetic, too, not only memory "
            "traffic: turn it on where latencies matter more.",
        ),
        cfg.FloatOpt(
            "verify_s",
            default=10.0,
            min=0.1,
            help="Seconds after which the groups are compared with the plan though nothing has changed here: finds "
            "tampering by others.",
        ),
    ],
    PLACEMENT: [
        cfg.BoolOpt("enabled", default=True, help="Publish this host's topology in Placement."),
        cfg.FloatOpt(
            "interval_s",
            default=60.0,
            min=1.0,
            help="Seconds between two comparisons with Placement when nothing changes here.",
        ),
        cfg.FloatOpt(
            "backoff_max_s",
            default=30.0,
            min=1.0,
            help="Longest pause between two attempts while Placement does not answer.",
        ),
        cfg.StrOpt(
            "cell_packing",
            choices=["pack", "spread"],
            default="spread",
            help="How nova fills this host's NUMA cells, so that the scheduler predicts the cells that "
            "nova-compute will pick: spread where nova's "
            "[compute]packing_host_numa_cells_allocation_strategy is false (its default), "
            "pack where it is true.",
        ),
        cfg.IntOpt(
            "bandwidth_mbps_per_node",
            min=1,
            help="Memory bandwidth of one NUMA node, MB/s, as long as it has not been measured. Without it no "
            "CUSTOM_MEMORY_BANDWIDTH_MBPS is offered.",
        ),
        cfg.FloatOpt(
            "pressure_s",
            default=10.0,
            min=0.0,
            help="Seconds between two looks at the measured memory traffic (MBM), which is held back from sale as far "
            "as running servers have not declared it; 0 never looks. Hosts without MBM hold nothing back.",
        ),
        cfg.FloatOpt(
            "pressure_dead_band_percent",
            default=5.0,
            min=0.0,
            max=100.0,
            help="Share of an L3 domain's bandwidth by which the measured traffic must move before Placement is told. "
            "Each write makes every scheduler read this host again.",
        ),
        cfg.BoolOpt(
            "rehome",
            default=True,
            help="Move the ways and bandwidth of a server in Placement to the L3 domain where nova-compute really put "
            "it, when nothing is under way with the server. Nova is asked for that, so the user of this section needs "
            "the admin role. Where it is off, Placement may count a server in a domain where it does not run.",
        ),
        cfg.FloatOpt(
            "rehome_after_s",
            default=10.0,
            min=0.0,
            help="Seconds that a server must have run where it is before its allocation is moved.",
        ),
    ],
}

_OPTIONS[slo_conf.GROUP] = slo_conf.OPTIONS
_OPTIONS.update(balancing.OPTIONS)

_CLI = [
    cfg.BoolOpt(
        "dry-run",
        default=False,
        help="Observe and decide, print what would be done, write nothing at all.",
    ),
    cfg.BoolOpt("once", default=False, help="One round, then end."),
]


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """``[memory]``."""

    enabled: bool = True
    dead_band: float = 0.01
    rate_mbps: int = 400
    pause_ms: float = 50.0
    slice_s: float = 1.0
    polled_slice_s: float = 0.1
    margin_mb: int = 256
    sample_pages: int = 512


@dataclass(frozen=True, slots=True)
class RdtSettings:
    """``[rdt]``."""

    enabled: bool = True
    be_mba_percent: int = 50
    shrink_root: bool = True
    shared_ways_min: int = 1
    verify_s: float = 10.0
    release_after_s: float = 60.0
    cpu_time_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the loop and the decisions read; paths are apart."""

    interval_s: float = 2.0
    resync_s: float = 60.0
    manage_untagged: bool = False
    pinning: bool = True
    memory: MemorySettings = MemorySettings()
    rdt: RdtSettings = RdtSettings()
    slo: slo_conf.SloSettings = field(default_factory=slo_conf.SloSettings)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for ``oslo-config-generator`` (entry point ``oslo.config.opts``)."""
    from keystoneauth1 import loading

    session = loading.get_session_conf_options() + loading.get_auth_common_conf_options()
    plugin = loading.get_auth_plugin_conf_options("password")
    found = dict(_OPTIONS)
    found[PLACEMENT] = [*found[PLACEMENT], *session, *plugin]
    return list(found.items())


def set_defaults() -> None:
    """Set our defaults of a library's options (entry point ``oslo.config.opts.defaults``).

    Standard output is for what a dry run prints.
    """
    from oslo_log import _options as log_options

    cfg.set_defaults(log_options.generic_log_opts, use_stderr=True)


def load(
    arguments: Sequence[str],
    *,
    conf: Any = None,
    default_config_files: Sequence[str] | None = None,
) -> cfg.ConfigOpts:
    """Read command line and configuration files.

    :param arguments: without the program's name
    :param conf: object to fill, a new one by default (oslo.privsep's helper wants its global one)
    :param default_config_files: read when ``--config-file`` is not given; default: what the environment variable
        :data:`CONFIG_VARIABLE` names, else :data:`CONFIG_FILE`
    :raises ConfigurationError: a file cannot be read, or holds a value that is not allowed
    """
    conf = cfg.ConfigOpts() if conf is None else conf
    conf.register_cli_opts(_CLI)
    register(conf)
    if default_config_files is None:
        default_config_files = _default_files()

    def parse() -> None:
        conf(list(arguments), project="numa-host-agent", default_config_files=default_config_files)

    check.read(parse, conf, [group.name for group in _OPTIONS])
    return conf


def unknown_keys(conf: cfg.ConfigOpts) -> list[str]:
    """Return the keys of the configuration files that nobody reads, each with its file."""
    from keystoneauth1 import exceptions, loading
    from oslo_log import _options as log_options  # what oslo-config-generator reads, too

    known = {group.name: list(options) for group, options in list_opts()}
    known["DEFAULT"] = [
        *_CLI,
        *(option for _, found in log_options.list_opts() for option in found),
    ]
    known[PLACEMENT.name] += loading.get_adapter_conf_options()
    loading.register_auth_conf_options(conf, PLACEMENT.name)
    credentials = conf.placement.auth_section or PLACEMENT.name
    plugin = conf[credentials].auth_type
    found = known.setdefault(credentials, loading.get_auth_common_conf_options())
    with contextlib.suppress(exceptions.NoMatchingPlugin):  # told by who asks for the credentials
        found += loading.get_auth_plugin_conf_options(plugin) if plugin else []
    return list(check.unknown(conf.config_file, known))


def _default_files() -> list[str]:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return [named]
    return [str(CONFIG_FILE)] if CONFIG_FILE.exists() else []


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of the configuration file.

    Each configuration has groups of its own: oslo.config keeps overrides in the group, and copies it shallowly.
    """
    for group, options in _OPTIONS.items():
        conf.register_opts(options, group=cfg.OptGroup(group.name, title=group.title))


def paths(conf: cfg.ConfigOpts) -> HostPaths:
    """Return where the host's files are."""
    return HostPaths(
        proc=Path(conf.host.proc),
        sys=Path(conf.host.sys),
        resctrl=Path(conf.host.resctrl),
        libvirt_pids=Path(conf.libvirt_host.pid_dir),
        state=Path(conf.agent.state_dir),
        rdt_backend=conf.rdt.backend,
    )


def chassis(conf: cfg.ConfigOpts) -> dict[int, int]:
    """Return the server node of each socket that the operator named.

    :raises InvalidValueError: a socket is not a number
    """
    given: dict[str, int] = conf.host.chassis
    for socket in given:
        if not socket.isdecimal():
            raise InvalidValueError(
                "[host]chassis, a socket", socket, "its number, such as 0:0,1:1"
            )
    return {int(socket): number for socket, number in given.items()}


def settings(conf: cfg.ConfigOpts) -> Settings:
    """Return the settings of loop and decisions."""
    memory, rdt = conf.memory, conf.rdt
    return Settings(
        interval_s=conf.agent.interval_s,
        resync_s=conf.agent.resync_s,
        manage_untagged=conf.agent.manage_untagged,
        pinning=conf.pinning.enabled,
        memory=MemorySettings(
            enabled=memory.enabled,
            dead_band=memory.dead_band_percent / 100,
            rate_mbps=memory.rate_mbps,
            pause_ms=memory.pause_ms,
            slice_s=memory.slice_s,
            polled_slice_s=memory.polled_slice_s,
            margin_mb=memory.margin_mb,
            sample_pages=memory.sample_pages,
        ),
        rdt=RdtSettings(
            enabled=rdt.enabled,
            be_mba_percent=rdt.be_mba_percent,
            shrink_root=rdt.shrink_root,
            shared_ways_min=rdt.shared_ways_min,
            verify_s=rdt.verify_s,
            release_after_s=max(rdt.release_after_s, _ROUNDS_MISSED * conf.agent.interval_s),
            cpu_time_fallback=rdt.cpu_time_fallback,
        ),
        slo=slo_conf.read(conf.slo),
    )
