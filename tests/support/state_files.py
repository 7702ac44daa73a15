# SPDX-License-Identifier: Apache-2.0
"""Every state file of our services on hosts and controllers: content of the last version, and who reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from host_agent.conf.paths import HostPaths
from host_agent.control import (
    balancing_store,
    calibration_store,
    home_nodes_store,
    rollout_store,
    slo_store,
    topology_store,
)
from host_agent.machine.privileged import dead_man_switch, vcpu_quota
from host_agent.machine.rdt import pqos, root_masks
from host_agent.machine.rdt.pqos import ClassNames
from host_agent.machine.rdt.root_masks import RootMemory
from host_agent.model.modes import Feature
from host_agent.remote_gpu import doors, gpu_host, turns
from host_agent.report import costs_store, published_host
from nova_numa_ext.orchestrator.store import recovery
from placement_traits.interference import INITIAL_BENEFIT
from tests.support.booted import boot

BENEFIT = {
    domain.value: {kind.value: figure for kind, figure in row.items()}
    for domain, row in INITIAL_BENEFIT.items()
}
SEARCH = {
    "canonical": {"0": 0.25, "1": 0.75},
    "workers": [1],
    "co_scheduled": False,
    "found": True,
    "dwp": 0.5,
    "lower_bound": 0.0,
    "best": [0.5, 1e8, 1e6],
    "phase_mapi": 0.01,
}
LEASE = "11111111-2222-3333-4444-555555555555"
FILES: dict[str, dict[str, Any]] = {
    "state.json": {"home_nodes": {"a": [0, 1]}},
    "balancing.json": {
        "mapping": {"benefit": BENEFIT, "expectations": {"a": 1.5}},
        "searches": {"a": SEARCH},
    },
    "slo.json": {
        "targets": {"be": {"level": 40, "shares": {"0": 1.0}}},
        "reporting": ["lc"],
        "report": {"lcs": {"lc": {}}, "actions": [{"time": "1", "action": "a", "server": "lc"}]},
        "taken": {
            "full_s": {"lc": 1200},
            "overdrawn": ["lc"],
            "causes": {"be": ["lc"]},
            "hours": {"be": {"7": 5400}},
            "spared": ["be"],
        },
    },
    "calibration.json": {
        "measured": "today",
        "distances": {"0": {"0": 10, "1": 21}, "1": {"0": 21, "1": 10}},
        "sets": [{"workers": [0], "bandwidth": {"0": {"0": 9.0}, "1": {"0": 3.0}}}],
        "pairs": {"0": {"0": 9.0, "1": 3.0}, "1": {"0": 3.0, "1": 9.0}},
    },
    "topology.json": {
        "topology": {
            "sockets": [{"id": 0}],
            "nodes": [{"id": 0, "socket": 0}],
            "l3_domains": [{"id": 3, "socket": 0, "nodes": [0], "size_kb": 512}],
            "cores": [{"id": 0, "node": 0, "socket": 0, "l3": 3, "cpus": [0, 1]}],
        }
    },
    "rollout.json": {
        "placement_mode": "enforce",
        "modes": dict.fromkeys(map(str, Feature), "observe"),
        "waiting": ["a", "b"],
    },
    "costs.json": {
        "servers": {"a": {"name": "be", "seconds": 9.5, "throttled_s": 4.0, "withheld_s": 2.0}}
    },
    "published.json": {"host": "compute1"},
    "rdt-root.json": {"boot": "one", "root": {"L3": {"0": 2047, "1": 2047}}},
    "throttled.json": {"boot": "one", "servers": ["a"]},
    "pqos-classes.json": {"boot": "one", "lives": 4, "names": {"numa_a": [1, 4]}},
    "dead-man-switch.json": {"fired": 3},
    "epochs.json": {"epochs": {LEASE: 7}, "given": {LEASE: 6}},
    "answer.json": {
        "serves": [
            {
                "id": LEASE,
                "epoch": 7,
                "gpu": "g1_gpu_0",
                "memory_mb": 1000,
                "service_level": "silver",
                "api": "opencl",
                "network_mbps": 100,
                "client_host": "c1",
            }
        ],
        "ends": [{"id": "b", "epoch": 2}],
        "attaches": [
            {
                "id": LEASE,
                "epoch": 7,
                "server_id": "a",
                "api": "opencl",
                "address": "10.0.0.1:7001",
                "gpu_host": "g1",
                "network_mbps": 100,
            }
        ],
    },
    "attachments.json": {
        "attachments": [
            {
                "lease": LEASE,
                "epoch": 7,
                "cid": 3,
                "pid": 1234,
                "started": 5678,
                "host": "g1",
                "address": "10.0.0.1:7001",
                "mbps": 100,
                "port": 10998,
                "ports": 1,
                "environment": {"FAKE_GPUS": "127.0.0.1:10998"},
            }
        ]
    },
    "mark.json": {"mark": 12},
}
# Where the stores of these files are made.
OWNERS = {
    "state.json": home_nodes_store,
    "balancing.json": balancing_store,
    "slo.json": slo_store,
    "calibration.json": calibration_store,
    "topology.json": topology_store,
    "rollout.json": rollout_store,
    "costs.json": costs_store,
    "published.json": published_host,
    "rdt-root.json": root_masks,
    "throttled.json": vcpu_quota,
    "pqos-classes.json": pqos,
    "dead-man-switch.json": dead_man_switch,
    "epochs.json": gpu_host,
    "answer.json": turns,
    "attachments.json": doors,
    "mark.json": recovery,
}

VERSIONS = dict.fromkeys(FILES, 1) | {"state.json": 2, "slo.json": 2, "rollout.json": 2}


def host_paths(folder: Path) -> HostPaths:
    """Return the paths of a host that has booted once, with one folder for the state of both."""
    boot(folder / "proc")
    (folder / "state").mkdir()
    return HostPaths(proc=folder / "proc", state=folder / "state", helper_state=folder / "state")


def loaded(paths: HostPaths, name: str) -> object:
    """Return what the owner of a file reads from it; falsy for nothing."""
    file = paths.state / name
    readers: dict[str, Callable[[], object]] = {
        "state.json": lambda: home_nodes_store.store(file).load(),
        "balancing.json": lambda: balancing_store.store(file).load(),
        "slo.json": lambda: slo_store.load(file).targets,
        "calibration.json": lambda: (
            (found := calibration_store.store(file).load()) and found.weights()
        ),
        "topology.json": lambda: topology_store.store(file).load(),
        "rollout.json": lambda: (found := rollout_store.store(file).load()) and found.text,
        "costs.json": lambda: costs_store.store(file).load(),
        "published.json": lambda: published_host.store(file).load(),
        "rdt-root.json": lambda: RootMemory(paths.helper_state, paths.proc).recall(),
        "throttled.json": lambda: vcpu_quota.throttled_servers(paths).load(),
        "pqos-classes.json": lambda: ClassNames(paths.helper_state, paths.proc).recall(),
        "dead-man-switch.json": lambda: dead_man_switch.count_in(paths.helper_state).load(),
        "epochs.json": lambda: gpu_host.epochs_in(file).load(),
        "answer.json": lambda: turns.answer_in(file).load(),
        "attachments.json": lambda: doors.attachments_in(file).load(),
        "mark.json": lambda: recovery.seen_in(file).load(),
    }
    return readers[name]()
