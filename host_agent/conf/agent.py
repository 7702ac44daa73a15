# SPDX-License-Identifier: Apache-2.0
"""Options of the agent's loop, its files and metrics: sections ``[agent]`` and ``[pinning]``."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from placement_traits.options import HostAddress, Port, Section, option


@dataclass(frozen=True, slots=True)
class AgentOptions(Section):
    """``[agent]``."""

    section: ClassVar = "agent"
    title: ClassVar = "The host agent's loop, files and metrics"

    mode: Literal["observe", "enforce"] = option(
        "enforce",
        "What is done with what was decided on this host. Of this, the mode of a feature ([pinning], [memory], [rdt], "
        "[slo]) and the mode in Placement (openstack numa host set --mode) the one counts that does the least.",
        choices={
            "observe": "everything is read and planned; what would be done is in the journal and in metrics (result "
            "would), and nothing on the host is changed",
            "enforce": "what was decided is done",
        },
        change="the agent is new on this host, and what it would do is to be seen first",
        leave="the host is in service with the agent",
    )
    state_dir: Path = option(
        Path("/var/lib/numa-host-agent"),
        "Folder of the journal, the small state file and the pause mark. Keep it over restarts: it holds the home "
        "nodes of floating servers, which the host itself does not show.",
        change="/var/lib is not kept over reinstallations, or several agents run on one machine (tests)",
        leave="servers run here: moving it loses home nodes and journal",
    )
    interval_s: float = option(
        2.0,
        "Seconds between two rounds when nothing happens; a libvirt event starts one at once. Shorter rounds find "
        "new threads and drifted pages sooner and cost more CPU time.",
        minimum=0.05,
        change="rounds take a good part of it (metrics, loop time): raise",
        leave="you hope for faster answers: events start rounds at once, controllers have turns of their own",
    )
    resync_s: float = option(
        60.0,
        "Seconds between full passes: all domains are listed and page tables are walked. A server of whose pages a "
        "sample finds nothing changed is walked each five minutes only: what others move is seen so late at worst, "
        "where it is so little that no page of the sample is among it. A full pass also catches what a lost libvirt "
        "event would have reported.",
        minimum=1.0,
        change="servers have hundreds of GB, and walking their page tables shows: raise",
        leave="drift must be found within a minute",
    )
    deny_servers: Path = option(
        Path("/etc/numa-host-agent/deny-servers"),
        "File with the UUIDs of servers that are never touched, one a line (# begins a comment), whatever their "
        "flavors say: a flavor cannot be changed in a server that has it. It is read again when it changes, and need "
        "not be there; when it goes away the servers that it named stay denied, and an empty file frees them. A server "
        "that is named while it has a partition leaves it for the default group; its pins and pages stay.",
        change="your configuration management keeps such lists elsewhere",
        leave="the file is where you look for it",
    )
    takeover_interval_s: float = option(
        5.0,
        "Seconds between two servers that the agent takes over when it begins to enforce on a host where servers run: "
        "one after the other, latency-critical ones first, and none while pages of the last one are still to be "
        "moved. Servers that are as they should be, and those that start later, do not wait. 0 takes all at once.",
        minimum=0.0,
        change="you watch each server while it is taken over (raise), or the host is empty of customers (0)",
        leave="an hour for 700 servers is quick enough",
    )
    manage_untagged: bool = option(
        False,
        "Also manage servers whose flavor has no numa_ext extra spec at all (as sheep without a tier). Turn it on "
        "when every server of the host shall be mapped.",
        change="all servers of the host shall be placed, also those of flavors without a key of ours",
        leave="some servers must be left exactly as nova made them",
    )
    journal_mb: int = option(
        16,
        "Size at which the journal is rotated, MiB.",
        minimum=1,
        change="you must look back further than the journal reaches",
        leave="the disk is small",
    )
    journal_files: int = option(
        5,
        "Rotated journals that are kept.",
        minimum=1,
        change="you must look back further than the journal reaches",
        leave="the disk is small",
    )
    metrics_address: HostAddress = option(
        HostAddress("127.0.0.1"),
        "Address of the Prometheus endpoint. It has no authentication: keep it on loopback.",
        change="a proxy with authentication on another address of this host asks",
        leave="Prometheus can reach it on loopback, by an agent or tunnel: the port has no authentication",
    )
    metrics_port: Port = option(
        Port(19177),
        "Its port; 0 turns it off. Outside 9100 to 9999, which the exporters of Prometheus share out among themselves: "
        "9177 is prometheus-libvirt-exporter's.",
        change="the port is taken; 0 when no metrics are scraped",
        leave="anything reads it",
    )


@dataclass(frozen=True, slots=True)
class PinningOptions(Section):
    """``[pinning]``."""

    section: ClassVar = "pinning"
    title: ClassVar = "vCPU pins"

    mode: Literal["observe", "enforce"] = option(
        "enforce",
        "What is done with pins; see [agent]mode.",
        choices={
            "observe": "threads stay where they are",
            "enforce": "threads are pinned",
        },
        change="pins are the last feature to be switched on",
        leave="[agent]mode is enough",
    )
    enabled: bool = option(
        True,
        "Keep the vCPU threads of dedicated servers on nova's pins and those of floating servers on the CPUs of "
        "their home nodes.",
        change="another tool pins, or you only want partitions",
        leave="latency-critical servers run here: without pins nothing else holds",
    )
