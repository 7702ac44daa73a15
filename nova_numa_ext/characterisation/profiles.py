# SPDX-License-Identifier: Apache-2.0
"""Measured run times as profile files, and how sensitive a remote GPU makes a workload to the network."""

import math
from typing import Any, Final

import yaml

from nova_numa_ext.characterisation.campaign import Measured
from nova_numa_ext.characterisation.plan import Surroundings
from nova_numa_ext.policy.gpu.job import p95

NETWORK_LOAD: Final = "network-load"
_DIGITS: Final = 4


def remote_name(workload: str) -> str:
    """Name of the profile of a workload whose GPU is on another host."""
    return f"{workload}-remote"


def document(measured: Measured) -> dict[str, Any]:
    """Return the document of a profile file (:func:`nova_numa_ext.policy.gpu.job.parse_profiles`).

    A workload with a GPU on another host is a profile of its own; load of the network is one more workload beside it.
    """
    profiles: dict[str, Any] = {}
    for experiment, seconds in measured.items():
        runs = [round(each, _DIGITS) for each in seconds]
        match experiment.surroundings:
            case Surroundings.PACK:
                _entry(profiles, experiment.workload)["pack_s"] = runs
            case Surroundings.SPREAD:
                _entry(profiles, experiment.workload)["spread_s"] = runs
            case Surroundings.BESIDE:
                beside = _entry(profiles, experiment.workload).setdefault("beside_s", {})
                beside[experiment.other] = runs
            case Surroundings.REMOTE:
                _entry(profiles, remote_name(experiment.workload))["pack_s"] = runs
            case Surroundings.LOADED:
                remote = _entry(profiles, remote_name(experiment.workload))
                remote["beside_s"] = {NETWORK_LOAD: runs}
    return profiles


def network_shares(measured: Measured) -> dict[str, float]:
    """Return ``numa_ext:remote_gpu_network_share`` of each workload that was measured remotely, in [0, 1].

    The part of its run time that a workload spends on the network: what it takes longer than with a GPU of its own
    host, over all of its time (Amaral 2019, section 3.3; processor and GPU take as long as before).
    """
    local = _by_workload(measured, Surroundings.PACK)
    remote = _by_workload(measured, Surroundings.REMOTE)
    return {name: max(0.0, 1.0 - local[name] / took_s) for name, took_s in remote.items()}


def text(measured: Measured, source: str, *, void: bool = False) -> str:
    """Return the text of a profile file.

    :param source: where and how it was measured, one line
    :param void: the figures mean nothing, such as those of emulated hardware: the file says so
    """
    lines = ["Measured run times of GPU workloads, seconds.", f"Source: {' '.join(source.split())}"]
    if void:
        lines.append(
            "VOID: emulated hardware. These figures show that the chain works, and nothing about speed."
        )
    lines += [
        f"{name}: numa_ext:remote_gpu_network_share={math.ceil(100 * share) / 100:g}"
        for name, share in sorted(network_shares(measured).items())
    ]
    head = "".join(f"# {line}\n" for line in lines)
    body: str = yaml.safe_dump(document(measured), default_flow_style=None, width=100)
    return head + body


def _entry(profiles: dict[str, Any], name: str) -> dict[str, Any]:
    entry: dict[str, Any] = profiles.setdefault(name, {})
    return entry


def _by_workload(measured: Measured, surroundings: Surroundings) -> dict[str, float]:
    return {
        experiment.workload: p95(list(seconds))
        for experiment, seconds in measured.items()
        if experiment.surroundings is surroundings
    }
