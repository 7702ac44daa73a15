# SPDX-License-Identifier: Apache-2.0
"""The options of nova that our parts count on, read from its files without nova, and what is wrong with them."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from oslo_config import cfg

from placement_traits.errors import InvalidValueError
from placement_traits.findings import Finding, Level, verdict
from placement_traits.words import counted

FILTER: Final = "nova_numa_ext.scheduler.NumaExtFilter"
WEIGHER: Final = "nova_numa_ext.scheduler.NumaExtWeigher"
_FILTER_NAME: Final = "NumaExtFilter"
_SLOW_FILTERS: Final = ("NUMATopologyFilter", "PciPassthroughFilter")

# Hosts of which a create should see the candidate that nova-compute will use: as many as are judged one by one.
RIGHT_HOSTS: Final = 128

# Names, types and defaults as in nova 33 and 34 (nova.conf); nova itself need not be installed here.
_OPTIONS: Final = {
    "filter_scheduler": [
        cfg.MultiStrOpt("available_filters", default=["nova.scheduler.filters.all_filters"]),
        cfg.ListOpt("enabled_filters", default=[]),
        cfg.ListOpt("weight_classes", default=["nova.scheduler.weights.all_weighers"]),
        cfg.BoolOpt("pci_in_placement", default=False),
        cfg.BoolOpt("track_instance_changes", default=True),
    ],
    "scheduler": [cfg.IntOpt("max_placement_results", default=1000)],
    "workarounds": [cfg.BoolOpt("disable_fallback_pcpu_query", default=False)],
    "compute": [
        cfg.BoolOpt("packing_host_numa_cells_allocation_strategy", default=False),
        cfg.StrOpt("cpu_dedicated_set"),
        cfg.StrOpt("cpu_shared_set"),
    ],
    "pci": [
        cfg.BoolOpt("report_in_placement", default=False),
        cfg.MultiStrOpt("device_spec", default=[]),
    ],
    "libvirt": [cfg.IntOpt("num_pcie_ports", default=0)],
    "numa_ext": [cfg.StrOpt("mode", default="enforce")],
    "DEFAULT": [cfg.FloatOpt("cpu_allocation_ratio"), cfg.StrOpt("state_path")],
}


def read(files: Sequence[str | Path]) -> cfg.ConfigOpts:
    """Read nova's configuration files; later ones win.

    :raises InvalidValueError: one of them cannot be read or parsed
    """
    conf = cfg.ConfigOpts()
    for group, options in _OPTIONS.items():
        conf.register_opts(options, group=None if group == "DEFAULT" else group)
    try:
        conf([], project="nova", default_config_files=[str(file) for file in files])
        for group, options in _OPTIONS.items():
            for option in options:
                _ = conf[option.dest] if group == "DEFAULT" else conf[group][option.dest]
    except (cfg.Error, ValueError) as error:
        text = ", ".join(map(str, files))
        raise InvalidValueError("nova.conf", text, f"files that nova reads ({error})") from error
    return conf


def scheduler(
    conf: cfg.ConfigOpts, domains: Sequence[int], groups: Iterable[int] = (1,)
) -> Iterator[Finding]:
    """Check the configuration of nova-scheduler.

    :param conf: of :func:`read`
    :param domains: L3 domains of each host
    :param groups: of how many L3 domains, each in a group of its own, the cloud's flavors claim something
    """
    yield from _our_plugins(conf)
    yield from _novas_part(conf)
    if conf.state_path is not None:
        yield verdict(
            "view of Placement",
            Path(conf.state_path).is_dir(),
            f"one reader per controller, by files in {conf.state_path}",
            f"[DEFAULT]state_path is {conf.state_path}, which is not here: where the workers of nova-scheduler do not "
            "share it, each of them, or each container, reads Placement for itself; make it a volume that all workers "
            "of a controller share",
        )
    yield _candidates(conf.scheduler.max_placement_results, domains, sorted({*groups} - {0}))


def _enabled(conf: cfg.ConfigOpts) -> list[str]:
    """Return the names of the filters that nova asks."""
    return [name.rpartition(".")[2] for name in conf.filter_scheduler.enabled_filters]


def _our_plugins(conf: cfg.ConfigOpts) -> Iterator[Finding]:
    """Check whether nova asks us, and whether we act."""
    ours, filters = conf.filter_scheduler, _enabled(conf)
    yield verdict(
        "filter",
        _FILTER_NAME in filters and FILTER in ours.available_filters,
        "enabled",
        f"nova never asks our filter: set available_filters = {FILTER} (a second line) and add {_FILTER_NAME} to "
        "enabled_filters in [filter_scheduler]",
        Level.BROKEN,
    )
    if _FILTER_NAME in filters:
        yield _order(filters)
    yield verdict(
        "weigher",
        WEIGHER in ours.weight_classes,
        "enabled",
        f"add {WEIGHER} to [filter_scheduler]weight_classes: hosts are not weighed by neighbours and bandwidth",
    )
    mode = conf.numa_ext.mode
    yield verdict(
        "mode",
        mode == "enforce",
        mode,
        f"[numa_ext]mode is {mode}: our filter refuses no host, but where an aggregate has numa_ext_mode=enforce; set "
        "it to enforce when numa-ext-explain and the metrics show no refusal that you do not want",
    )


def _novas_part(conf: cfg.ConfigOpts) -> Iterator[Finding]:
    """Check what of nova's own a tier builds on."""
    yield verdict(
        "NUMATopologyFilter",
        "NUMATopologyFilter" in _enabled(conf),
        "enabled",
        "add it to enabled_filters: without it nova finds out on the host that a guest's cells do not fit",
    )
    yield verdict(
        "disable_fallback_pcpu_query",
        conf.workarounds.disable_fallback_pcpu_query,
        "true",
        "set [workarounds]disable_fallback_pcpu_query = true: Placement also offers shared CPUs for dedicated ones",
    )
    yield verdict(
        "track_instance_changes",
        conf.filter_scheduler.track_instance_changes,
        "true",
        "[filter_scheduler]track_instance_changes is false: nova asks its database for the servers of each host that "
        "Placement offers, one query a host in every request; set it to true, with the same on the compute hosts",
    )


def _candidates(limit: int, domains: Sequence[int], groups: Sequence[int]) -> Finding:
    """Check how much of the fleet one create sees.

    Placement counts candidates, not hosts, and returns any ``limit`` of them: it keeps them in a set.
    """
    seen, short = [], []
    for count in groups:
        each = [math.perm(number, count) for number in domains]
        every = sum(each)
        if not every:
            continue
        share = min(1.0, limit / every)
        able = sum(candidates > 0 for candidates in each)
        hosts = sum(1 - (1 - share) ** candidates for candidates in each) / able
        what = f"{hosts:.0%} of {counted(able, 'host')}"
        kind = f"LC flavors with {counted(count, 'NUMA node')}"
        seen.append(f"{kind} see {what}")
        needed = min(every, math.ceil(RIGHT_HOSTS * every / able))
        if limit < needed:
            short.append(
                f"{kind} have up to {max(each)} a host, so a create sees {what}, and the L3 domains that nova-compute "
                f"will use of {share * able:.0f}; {needed} would do"
            )
    return verdict(
        "max_placement_results",
        not short,
        "; ".join([str(limit), *seen]),
        f"[scheduler]max_placement_results is {limit} and counts candidates, not hosts: {'; '.join(short)}",
    )


def _order(filters: Sequence[str]) -> Finding:
    """Our filter makes a short list: nova's slow filters come after it, all others before."""
    ours = filters.index(_FILTER_NAME)
    early = [name for name in filters[:ours] if name in _SLOW_FILTERS]
    late = [name for name in filters[ours + 1 :] if name not in _SLOW_FILTERS]
    advice = [
        *(
            [f"move {', '.join(early)} behind {_FILTER_NAME}, or each of them walks over all hosts"]
            * bool(early)
        ),
        *(
            [
                f"move {', '.join(late)} before {_FILTER_NAME}: a filter that is not nova's own keeps it from making a "
                "short list"
            ]
            * bool(late)
        ),
    ]
    return verdict(
        "filter order",
        not advice,
        f"before {' and '.join(_SLOW_FILTERS)}",
        f"in [filter_scheduler]enabled_filters {'; '.join(advice)}",
    )


def compute(
    conf: cfg.ConfigOpts, cell_packing: str, has_gpus: bool, *, plugs_vsock: bool = False
) -> Iterator[Finding]:
    """Check the configuration of nova-compute.

    :param conf: of :func:`read`
    :param cell_packing: ``[placement]cell_packing`` of the agent
    :param has_gpus: this host has GPUs
    :param plugs_vsock: devices are plugged into servers that run, by which they reach leases of remote GPUs
    """
    packs = "pack" if conf.compute.packing_host_numa_cells_allocation_strategy else "spread"
    yield verdict(
        "nova cell order",
        packs == cell_packing,
        packs,
        f"nova-compute fills cells by {packs!r}, the agent reports {cell_packing!r} to the scheduler: set "
        f"[placement]cell_packing = {packs} of the agent",
    )
    yield verdict(
        "nova cpu_dedicated_set",
        bool(conf.compute.cpu_dedicated_set),
        conf.compute.cpu_dedicated_set or "",
        "not set: nova offers no dedicated CPUs here, so latency-critical servers go elsewhere",
    )
    if (conf.cpu_allocation_ratio or 1.0) > 1.0:
        yield Finding(
            "nova cpu_allocation_ratio",
            Level.GOOD,
            f"{conf.cpu_allocation_ratio}: shared CPUs are oversold, so floating servers may share a core",
        )
    if plugs_vsock:
        yield verdict(
            "nova num_pcie_ports",
            conf.libvirt.num_pcie_ports > 0,
            str(conf.libvirt.num_pcie_ports),
            "set [libvirt]num_pcie_ports, to 12 for example: a q35 server may have no PCIe port left for the device by "
            "which it reaches its leases; servers have more from their next hard reboot on",
        )
    if has_gpus and conf.pci.device_spec:
        yield verdict(
            "nova report_in_placement",
            conf.pci.report_in_placement,
            "true",
            "set [pci]report_in_placement = true: Placement does not know which GPU a server gets",
        )
        yield verdict(
            "GPU links in device_spec",
            any("CUSTOM_GPU_LINK_" in spec for spec in conf.pci.device_spec),
            "there",
            "flavors cannot ask for linked GPUs: use the lines of numa-host-agent-ctl device-spec",
        )
