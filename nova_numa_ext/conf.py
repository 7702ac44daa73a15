# SPDX-License-Identifier: Apache-2.0
"""Options of the scheduler part: section ``[numa_ext]`` of nova-scheduler's configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from oslo_config import cfg

from nova_numa_ext.policy.modes import Mode
from nova_numa_ext.policy.network.groups import PlanOptions, PolicyName
from nova_numa_ext.policy.network.singles import Singles
from placement_traits import oslo_options
from placement_traits.options import HostAddress, Port, Section, option, part
from placement_traits.view import ViewSettings

GROUP: Final = "numa_ext"


def _multiplier(default: float, name: str, what: str) -> Any:
    return option(
        default,
        f"Weight of the term ``{name}`` in the score of NumaExtWeigher: {what}\n\n"
        "The score is the mean of the terms, weighted by these numbers; only their ratios matter. 0 leaves the term "
        f"out. The metadata key ``numa_ext_{name}_multiplier`` of a host aggregate overrides it for the hosts of the "
        "aggregate.",
        minimum=0.0,
        mutable=True,
        change="this term should count more or less than the others on all hosts; per aggregate set the metadata of "
        "the same name",
        leave="decisions are as you want them: look at numa-ext-explain first",
    )


def _gpu_weight(what: str, change: str) -> Any:
    return option(
        1.0,
        f"Weight of {what} in the utility of a set of GPUs.\n\n"
        "The three ``gpu_…_weight`` are used in proportion to their sum. They move what ``numa_ext:min_utility`` of a "
        "flavor means: try others with ``openstack numa simulate trace --utility-weights`` first.",
        minimum=0.0,
        change=change,
        leave="flavors already carry min_utility: its meaning moves with this weight",
    )


@dataclass(frozen=True, slots=True)
class GpuOptions(Section):
    """How GPUs are judged: a part of the sections of all who judge them."""

    section: ClassVar = GROUP
    title: ClassVar = "Utility of sets of GPUs"

    communication_weight: float = _gpu_weight(
        "the distance of GPUs that communicate",
        "jobs spend their time in exchange between GPUs; try it with openstack numa simulate first",
    )
    interference_weight: float = _gpu_weight(
        "the slowdown by neighbours, suffered and caused,",
        "jobs disturb each other on the buses more than the model predicts",
    )
    fragmentation_weight: float = _gpu_weight(
        "breaking whole sockets of free GPUs",
        "large jobs find no free socket though enough GPUs are free",
    )
    profiles: str = option(
        "",
        "YAML or JSON file with measured run times of jobs on GPUs, read at the start.\n\n"
        "A profile named like a flavor is that flavor's; one named ``comm-0`` to ``comm-4`` belongs to all "
        "flavors with that ``numa_ext:gpu_comm``. Empty: built-in profiles by ``numa_ext:gpu_comm``. A file that "
        "cannot be used keeps the process from starting.",
        change="you have measured run times of your own jobs",
        leave="you have not: flavors are then judged by gpu_comm alone",
    )
    distances: str = option(
        "",
        "YAML or JSON file with measured distances between GPUs, read at the start.\n\n"
        "An entry belongs to all hosts whose GPUs have the addresses that it lists. Empty, and for all other "
        "hosts: the distance of two GPUs follows from the levels between them (1 at a GPU, 20 above) and from "
        "NVLinks. A file that cannot be used keeps the process from starting.",
        change="you have measured copies between GPUs, and levels and links do not give their order",
        leave="you have not: levels and links are right for NVLink and PCIe",
    )


@dataclass(frozen=True, slots=True)
class NetworkOptions(Section):
    """How leafs of a fabric are chosen: a part of the sections of all who plan server groups."""

    section: ClassVar = GROUP
    title: ClassVar = "Leafs for server groups"

    policy: Literal[
        "best_fit", "least_free", "balanced", "block", "first_available", "first_contiguous"
    ] = option(
        "best_fit",
        "How leafs are chosen for server groups that share uplinks.\n\n"
        "A group whose flavor has ``numa_ext:net_balance`` is always ``balanced``; quiet groups are placed by virtual "
        "network blocks, exclusive ones in whole pods.",
        choices={
            "best_fit": "the fullest node of the lowest level that has room for all; in it the emptiest leafs",
            "least_free": "the fullest leaf with room for all, else leafs from the fullest on",
            "balanced": "the same number of hosts in each of as few leafs as possible",
            "block": "the smallest aligned run of 1, 2, 4 … leafs",
            "first_available": "free hosts in the order of the leafs: only to compare with",
            "first_contiguous": "the first leaf with room for all, else a run of empty ones: only to compare with",
        },
        change="groups exchange between all servers alike (balanced), or leafs are to stay empty (least_free)",
        leave="you do not know what groups do: best_fit leaves the largest places to the next ones",
    )
    remainders: int = option(
        2,
        "Leafs of a pod, at most, for what is left of quiet groups beside whole leafs.\n\n"
        "Only there quiet groups share uplinks. Such a leaf is made when it is needed, and is as all others when it is "
        "empty again. 0: groups whose size leaves a remainder beside whole leafs are not placed.",
        minimum=0,
        change="quiet groups wait for a leaf for remainders (raise), or must never share an uplink (0)",
        leave="sizes of quiet groups are multiples of a block: none is made",
    )
    singles: Singles = option(
        Singles.AVOID,
        "What keeps servers of no group off the uplinks that a quiet or exclusive group has alone.\n\n"
        "Only servers whose flavor has a key of ours, and jobs, are kept off at all. What groups have is as old "
        "as what was last read of Placement: a server that comes in the same seconds as a group may be beside it.",
        choices={
            "avoid": "they go to other leafs where other hosts are as good (``net_block_multiplier``)",
            "refuse": "hosts of these leafs are refused; servers that exist may still move there",
        },
        change="groups that asked to be alone must be, even where single servers then find no host (refuse)",
        leave="a single server that finds a host matters more than a group's quiet uplinks",
    )

    @property
    def plan_options(self) -> PlanOptions:
        """How a planner of groups chooses."""
        return PlanOptions(PolicyName(self.policy), remainders_most=self.remainders)


@dataclass(frozen=True, slots=True)
class SchedulerOptions(Section):
    """``[numa_ext]``.

    Mutable is what the next decision may simply take: what is open, is shared with another process or was made of a
    file stays as it was at the start (the view, the journal's file, GPUs, metrics).
    """

    section: ClassVar = GROUP
    title: ClassVar = "NUMA, GPU and cache aware placement"

    mode: Mode = option(
        Mode.ENFORCE,
        "What becomes of what is decided.\n\n"
        "Switch the filter on with ``observe``, look at ``numa-ext-explain`` and the metrics, go on to ``rank``, then "
        "to ``enforce``. The metadata key ``numa_ext_mode`` of a host aggregate overrides it for the hosts of the "
        "aggregate; of several aggregates of a host the mode that does the least counts.",
        choices={
            "observe": "nothing is refused, cut or ordered, and our score is 0; what would be is counted and noted in "
            "the decision journal",
            "rank": "hosts and their allocation candidates are ordered, and hosts that would be refused come last; "
            "nothing is refused, nor is a flavor that contradicts itself",
            "enforce": "hosts that cannot serve a request are refused",
        },
        mutable=True,
        change="you switch the filter on in a cloud that is at work: observe first, a host aggregate at a time",
        leave="explanations in the other modes have shown no refusal that you do not want",
    )
    on_error: Literal["pass", "refuse"] = option(
        "pass",
        "What the filter answers when it fails by a fault of its own.\n\n"
        "A fault never breaks the request: it is counted, logged with the request id, and this answer is given. "
        "Choose ``refuse`` where a latency-critical server on the wrong host costs more than a server that is not "
        "built; it applies only to flavors and images with a key of this project, and to hosts whose ``mode`` is "
        "``enforce``.",
        choices={
            "pass": "every host passes and every host weighs the same",
            "refuse": "no host passes",
        },
        mutable=True,
        change="a latency-critical server on the wrong host is worse for you than one that is not started: refuse",
        leave="servers must start whatever happens, and you watch the log for faults",
    )
    on_stale: Literal["neutral", "refuse"] = option(
        "neutral",
        "What to do while the view of Placement is older than ``view_max_age``, or has never been read.\n\n"
        "Placement itself still counts ways, bandwidth and classes of service, so ``neutral`` never overbooks; it "
        "may put a server beside a neighbour of the wrong interference class. One line is logged when the view "
        "becomes stale and one when it is fresh again.",
        choices={
            "neutral": "no opinion: the host passes and its score is the mean of the others",
            "refuse": "a flavor with numa_ext:tier gets no valid host until the view is fresh again",
        },
        mutable=True,
        change="neighbours matter so much that a server should rather wait: refuse",
        leave="Placement is restarted now and then: it still counts ways and bandwidth, nothing is overbooked",
    )
    on_silent: Literal["last", "refuse"] = option(
        "last",
        "What to do with hosts whose agent is silent, for latency-critical servers: it has not beaten in Placement for "
        "108 minutes, and the host's tiers were not withdrawn.\n\n"
        "Beats are read with each complete reading of the view, every ten minutes. The clocks of agents and "
        "controllers are compared: one that is more than an hour behind makes an agent look silent.",
        choices={
            "last": "the host comes after all others",
            "refuse": "the host is refused",
        },
        mutable=True,
        change="a latency-critical server must never run without an agent, even if no other host is free: refuse",
        leave="clocks are not kept everywhere, or flavors require the tier's trait: hosts withdraw their tiers",
    )
    view_refresh_interval: float = option(
        10.0,
        "Seconds between two refreshes of the view of Placement.\n\n"
        "A refresh compares generations of all resource providers and reads again only the trees that changed. "
        "Raise it on very large clouds if Placement is short of CPU; the age of the data is part of every "
        "explanation.",
        minimum=0.1,
        change="Placement is short of CPU (raise), or agents publish much faster than it is read (lower)",
        leave="the fleet has some thousand hosts or fewer: a refresh without changes is one request",
    )
    view_max_age: float = option(
        120.0,
        "Seconds after which the view of Placement counts as stale, see ``on_stale``. Keep it several times "
        "``view_refresh_interval``, and on very large clouds more than twice the time that a refresh takes: the "
        "age counts from the beginning of a refresh, so a view is oldest when the next one ends.",
        minimum=1.0,
        change="you raise view_refresh_interval: keep it several times that",
        leave="Placement answers within the refresh interval",
    )
    view_wait: float = option(
        1.0,
        "Longest time in seconds that a scheduling decision waits for the very first reading of Placement after "
        "the start of nova-scheduler. Later decisions never wait, nor does the first one where another worker, or "
        "nova-scheduler before its restart, has left a reading on this controller.",
        minimum=0.0,
        change="the first decision after a restart of a very large cloud must not be made blind: raise",
        leave="a late answer to the first request is worse than a neutral one",
    )
    view_full_interval: float = option(
        600.0,
        "Seconds between two complete readings of Placement.\n\n"
        "A refresh between them reads only trees in which a provider of ours has changed. What changes on nova's root "
        "provider alone, such as the tiers that an agent accepts, is seen with the next complete reading.",
        minimum=1.0,
        change="what a complete reading costs Placement is too much (raise), or tiers of hosts are switched often and "
        "must be seen sooner (lower)",
        leave="ten minutes are soon enough to see a host that has changed its tiers",
    )
    view_busy_share: float = option(
        0.2,
        "Largest share of the time that one reader keeps one process of Placement busy.\n\n"
        "On a fleet so large that a refresh takes long, the pauses between refreshes grow until this share is kept, "
        "but never so much that the view becomes stale (``view_max_age``). There is one reader per controller.",
        minimum=0.01,
        maximum=1.0,
        change="Placement is short of CPU (lower), or changes must be seen sooner on a very large fleet (raise)",
        leave="a refresh takes less than a fifth of view_refresh_interval: the share never matters then",
    )
    pick_ttl: float = option(
        120.0,
        "Seconds for which nova-scheduler remembers a host it has just picked and counts the new server as a "
        "neighbour there: hosts are ranked by that, none is refused.\n\n"
        "It bridges the time until the host agent has published the new neighbourhood and the view has read it: "
        "keep it longer than the boot of a server plus the agent's reporting interval plus "
        "``view_refresh_interval``. 0 switches the memory off. Each process of nova-scheduler "
        "(``[scheduler]workers``, several controllers) remembers its own picks only.",
        minimum=0.0,
        mutable=True,
        change="agents need longer than two minutes from a server's start to publishing it",
        leave="agents publish each minute: a longer memory keeps places that have become free",
    )
    pick_limit: int = option(
        4096,
        "Largest number of picks that are remembered; the oldest go first. A pick takes about 0.5 kB.",
        minimum=1,
        mutable=True,
        change="more servers than that are started within pick_ttl",
        leave="fewer servers are started",
    )
    journal_path: str = option(
        "/var/lib/nova/numa-ext/decisions.jsonl",
        "File that takes one JSON line per decision of the filter and of the weigher, read by "
        "``numa-ext-explain``. Empty: no journal. A journal that cannot be written is logged once and never "
        "disturbs scheduling. Workers of one nova-scheduler share it; each controller writes one of its own. Where all "
        "controllers have a folder in common, ``/shared/numa-ext/$host/decisions.jsonl`` puts them beside each other.",
        change="/var/lib/nova is too small or not writable for nova-scheduler, or you need no journal (empty)",
        leave="you want numa-ext-explain to work",
    )
    journal_max_mb: int = option(
        64,
        "Size in MiB at which the journal is renamed to ``.1`` and a new one is begun.",
        minimum=1,
        change="you must look back further than the journal reaches",
        leave="the disk is small",
    )
    journal_backups: int = option(
        3,
        "Number of old journals (``.1``, ``.2`` …) that are kept.",
        minimum=0,
        change="you must look back further than the journal reaches",
        leave="the disk is small",
    )
    journal_hosts: int = option(
        20,
        "Hosts per decision that the journal describes one by one: the first that pass and the first that are refused, "
        "and the best by total; of the others it keeps the number per reason. A host that passes takes about 0.7 kB, "
        "one that is refused about 0.2 kB.",
        minimum=1,
        mutable=True,
        change="explanations must name each of more than 20 hosts",
        leave="the cloud is large: lines grow with it",
    )
    shortlist: int = option(
        128,
        "Number of hosts that the filter judges first, and of which it returns those that pass; 0: it judges and "
        "returns all.\n\n"
        "Hosts come in the order of all weighers' totals, ours by what is known before a host is judged. At least "
        "twice as many as the servers of the request, and for each of nova's weighers the hosts with the least and "
        "the most, are in the list. Too short a list refuses nothing: nova's own filters that stand after ours in "
        "``enabled_filters`` are asked, too, and while too few hosts have passed them all, more hosts are judged. "
        "Other filters than nova's own after ours switch the list off.",
        minimum=0,
        mutable=True,
        change="the best host of the whole cloud must be found whatever it costs: 0",
        leave="decisions are fast enough: hosts beyond the first hundred are hardly ever chosen",
    )
    job_hint_keys: tuple[str, ...] = option(
        (),
        "Keys of the job service's scheduler hints: those of ``[numa_ext_jobs]job_hint_keys``.\n\n"
        "By such a hint the job service names the hosts that it planned, which users may not do themselves: it is "
        "sealed with the first of its keys, and counts if one of these opens it. Without keys none counts, and a "
        "server that is made with one is refused. A key is 32 random bytes in URL-safe base64: "
        "``python3 -c 'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'``. For a new "
        "key, give both here, restart nova-scheduler, then give the new one to the job service. Keep the old one "
        "while servers made with it run: without it a move heeds the flavor alone.",
        secret=True,
        change="the job service runs in this cloud",
        leave="there is no job service",
    )
    metrics_address: HostAddress = option(
        HostAddress("127.0.0.1"),
        "Address of the Prometheus endpoint. It has no authentication: keep it on loopback.",
        change="a proxy with authentication on another address of this controller asks",
        leave="Prometheus can reach it on loopback, by an agent or tunnel: the port has no authentication",
    )
    metrics_port: Port = option(
        Port(0),
        "Its port, such as 9178; 0: there is none, and nothing is counted for it.\n\n"
        "The process that reads Placement for all workers of nova-scheduler serves them all there. It needs "
        "``prometheus_client`` (the extra ``metrics``), and ``[DEFAULT]state_path`` that the workers share.",
        change="a Prometheus scrapes this controller",
        leave="none does",
    )
    gpu: GpuOptions = part(GpuOptions, prefix="gpu_")
    net: NetworkOptions = part(NetworkOptions, prefix="net_")
    weight_multiplier: float = option(
        10.0,
        "Multiplier of NumaExtWeigher among nova's weighers.\n\n"
        "Our score lies in [0, 1] and is not stretched, whereas nova stretches each of its own weighers over the "
        "hosts at hand, so that one byte more of free memory weighs 1.0. The default lets a difference of one "
        "term count more than nova's memory, CPU and disk weighers together. Name our weigher last in "
        "``[filter_scheduler]weight_classes``: it then sees the sum of the others and remembers the right pick "
        "(see ``pick_ttl``). The metadata key ``numa_ext_weight_multiplier`` of a host aggregate overrides it for "
        "the hosts of the aggregate.",
        mutable=True,
        change="nova's own weighers should win more often (lower) or never (raise)",
        leave="other multipliers of nova are at their defaults",
    )
    slices_multiplier: float = _multiplier(
        1.0, "slices", "the guest fits one NUMA node, or few that are near each other."
    )
    neighbours_multiplier: float = _multiplier(
        1.0,
        "neighbours",
        "latency-critical and best-effort servers do not share an L3 domain, nor do interference classes that disturb "
        "each other.",
    )
    devil_packing_multiplier: float = _multiplier(
        1.0,
        "devil_packing",
        "a devil whose flavor asks for CUSTOM_LLC_NEIGHBOURHOOD goes to an L3 domain that has a devil already; one in "
        "each domain would leave none to strict rabbits.",
    )
    ways_multiplier: float = _multiplier(
        0.5, "ways", "L3 ways that stay free in the chosen domain."
    )
    bandwidth_multiplier: float = _multiplier(
        0.5,
        "bandwidth",
        "memory bandwidth that stays free where the server lives; for best-effort servers, the most spare bandwidth.",
    )
    cross_socket_bandwidth_multiplier: float = _multiplier(
        0.5,
        "cross_socket_bandwidth",
        "memory bandwidth that is free on the other sockets, for servers whose memory policy spreads their pages "
        "(best-effort without a NUMA topology).",
    )
    fragmentation_multiplier: float = _multiplier(
        0.5, "fragmentation", "what stays free is still usable by servers of the same shape."
    )
    gpu_multiplier: float = _multiplier(1.0, "gpu", "utility of the GPU set that the host offers.")
    net_block_multiplier: float = _multiplier(
        0.5,
        "net_block",
        "a server of no group stays off leafs whose uplinks a group has alone, and goes to leafs that are in use, the "
        "fullest first. Without a fabric in Placement it has no effect.",
    )

    def multiplier(self, name: str) -> float:
        """Return the weight of a term of the score, or ``weight``: of the weigher among nova's."""
        found: float = getattr(self, f"{name}_multiplier")
        return found


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register our options with ``conf``; registering twice is harmless."""
    oslo_options.register(conf, SchedulerOptions)


def read(conf: cfg.ConfigOpts) -> SchedulerOptions:
    """Return the configuration of nova-scheduler.

    :raises ConfigurationError: names the option that cannot be read
    """
    return oslo_options.read(SchedulerOptions, conf)


def view_settings(options: SchedulerOptions) -> ViewSettings:
    """Return how the view of Placement is kept."""
    return ViewSettings(
        interval_s=options.view_refresh_interval,
        full_interval_s=options.view_full_interval,
        max_age_s=options.view_max_age,
        wait_s=options.view_wait,
        busy_share=options.view_busy_share,
    )


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return (group, options) for oslo-config-generator, namespace ``nova_numa_ext``."""
    return [(GROUP, oslo_options.options(SchedulerOptions))]
