# SPDX-License-Identifier: Apache-2.0
"""Options of the job service: section ``[numa_ext_jobs]`` of its own configuration file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from oslo_config import cfg

from nova_numa_ext.conf import GpuOptions, NetworkOptions
from nova_numa_ext.policy.jobs.host_aspects import PlannerSettings
from nova_numa_ext.policy.jobs.limits import SECTION
from nova_numa_ext.policy.jobs.queue_settings import QueueSettings
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from nova_numa_ext.policy.remote_gpu.making_room import Rebalancing, UsePolicy
from placement_traits import oslo_options
from placement_traits.errors import InvalidValueError
from placement_traits.options import HostAddress, Port, Section, option, part

GROUP: Final = SECTION
_LEAST_KEY: Final = 32


class FlavorSource(StrEnum):
    """Who says what servers' flavors ask of remote GPUs."""

    HOSTS = "hosts"
    NOVA = "nova"


@dataclass(frozen=True, slots=True)
class EngineOptions(Section):
    """How engines carry jobs on."""

    section: ClassVar = GROUP
    title: ClassVar = "The engine of the job service"

    round_interval_s: float = option(
        2.0,
        "Seconds between two rounds of the leading engine. What users ask for, and what hosts report of leases, starts "
        "one within half a second, or after as long as the last round took; all else is seen after this time. Each "
        "pause is up to a tenth longer or shorter, so that engines do not run in step.",
        minimum=0.1,
        change="the database is loaded by the rounds of an idle service (raise)",
        leave="jobs should start within seconds of the end of others",
    )
    workers: int = option(
        8,
        "Jobs whose servers are made or deleted at the same time; each takes a connection to the database and one to "
        "nova. A job for which nova is slow holds up no other one as long as a worker is left.",
        minimum=1,
        change="nova answers slowly and many jobs start or end at once (raise, with [database]max_pool_size)",
        leave="nova answers within a second",
    )
    watchers: int = option(
        4,
        "Jobs that run and are looked at, at the same time. They are others than the workers, so that looking never "
        "holds up what starts and ends.",
        minimum=1,
        change="watch_interval_s is not kept, because thousands of jobs run or nova answers slowly (raise)",
        leave="jobs that run are looked at in time",
    )
    build_timeout_s: float = option(
        3600.0,
        "Seconds after which a server of a job that nova still builds has failed: nova knows no end of a build whose "
        "compute host has died. What follows is what its part asks for. Where nova has not made a server at all by "
        "then, the job goes back to the queue.",
        minimum=60.0,
        change="images are so large, or jobs have so many servers, that they need longer (raise), or places must not "
        "wait an hour for a host that has died (lower)",
        leave="servers are built within minutes",
    )
    watch_interval_s: float = option(
        60.0,
        "Seconds after which a job that runs is looked at again: whether its servers are there. Ends by walltime and "
        "cancelling do not wait for it. 1,000 jobs and 60 s are 17 requests to nova a second.",
        minimum=1.0,
        change="nova is loaded by these requests (raise), or places of servers that users delete must be free sooner",
        leave="a minute is soon enough to see that a user has deleted a job's servers",
    )
    servers_per_round: int = option(
        16,
        "Servers that are asked for, for one job in one round; a job with more of them goes on in the next round.",
        minimum=1,
        change="jobs of hundreds of servers start too slowly, though nova takes more requests (raise)",
        leave="jobs are small, or nova should not get hundreds of requests in a row from one user",
    )
    trust_check_s: float = option(
        300.0,
        "Seconds after which Keystone is asked again whether a job's user may still do what the job does, while the "
        "job waits, too: for each job by its own trust, beside what user_checks_per_round asks. The default is that "
        "for which OpenStack's other services believe a token (``[keystone_authtoken]token_cache_time``).",
        minimum=1.0,
        change="users delete trusts of jobs, and such a job must end sooner (lower): one token a job and interval is "
        "made",
        leave="other services believe tokens for as long",
    )
    user_checks_per_round: int = option(
        4,
        "Users of whom Keystone is asked in each round_interval_s whether they may still do what their jobs do, by the "
        "trust of one job of each user and project; who was not asked for longest goes first. Where Keystone refuses "
        "one, all jobs of that user and project are asked for in the next round. 0: trust_check_s alone counts.",
        minimum=0,
        change="hundreds of users have jobs, and the end of one must end its jobs sooner (raise): one token a user and "
        "interval is made; or Keystone is loaded by these tokens (lower)",
        leave="two tokens a second are nothing to Keystone",
    )
    remote_gpu_unmet: Unmet = option(
        Unmet.WAIT,
        "What becomes of the leases of a server whose flavor asks for remote GPUs, where none has room. The server "
        "runs on in either case.",
        choices={
            Unmet.WAIT: "they wait until one has",
            Unmet.STOP: "they end, and it gets no others, unless ``numa-ext-manage purge`` deletes them while it is "
            "shelved",
        },
        change="servers that run without their GPUs are of no use later, and others should not wait behind them",
        leave="servers wait for their GPUs",
    )
    remote_gpu_max_wait_s: float = option(
        0.0,
        "Seconds after which the leases of a server whose flavor asks for remote GPUs are given up, where none had "
        "room; 0: never. It gets no others, unless ``numa-ext-manage purge`` deletes them while it is shelved. The "
        "server runs on in either case.",
        minimum=0.0,
        change="servers whose GPUs come late are of no use any more, and others should not wait behind them",
        leave="servers wait for their GPUs",
    )
    remote_gpu_hold_s: float = option(
        0.0,
        "Seconds for which a lease keeps its GPU while its server does not run; 0: for ever. After that it is "
        "released, and others have the GPU. The server gets another lease when it runs and there is room, where its "
        "flavor asks for that; a lease that was asked for by hand it has lost. One that is shelved loses its "
        "leases in any case.",
        minimum=0.0,
        change="users leave servers stopped, or in ERROR, that hold GPUs for which others wait",
        leave="a server that starts is to find its GPU free",
    )
    remote_gpu_rebalance: Rebalancing = option(
        Rebalancing.OFF,
        "Whether leases that run go to other GPUs, to make room for one that waits. Only those go whose flavor has "
        "``numa_ext:remote_gpu_migratable``, whose GPUs' transport loses nothing by it, and whose priority is not "
        "higher; their servers are cut off for some seconds.",
        choices={
            Rebalancing.OFF: "never",
            Rebalancing.OBSERVE: "what would move is logged, and the lease that waits says how many",
            Rebalancing.ENFORCE: "they move",
        },
        change="leases of whole GPUs wait while others are lightly used (observe first)",
        leave="no transport can be moved, or leases are alike",
    )
    remote_gpu_moves_per_minute: int = option(
        2,
        "Leases that move in a minute, all together, those that an administrator moves included; for a lease that "
        "needs more moves than that nothing moves.",
        minimum=1,
        change="GPUs have many small leases, and moves take little time (raise)",
        leave="a move takes a server its GPU for seconds",
    )
    remote_gpu_cool_down_s: float = option(
        3600.0,
        "Seconds after a move in which a lease is not moved again but by an administrator.",
        minimum=0.0,
        change="servers do not mind being cut off (lower)",
        leave="a lease should not be moved more than once an hour",
    )
    remote_gpu_by_use: UsePolicy = option(
        UsePolicy.NONE,
        "By which policy leases move while none waits, where ``remote_gpu_rebalance`` is not ``off`` (``observe``: "
        "what would move is logged). ``consolidate`` and ``balance`` go by how busy leases keep their GPUs, where "
        "hosts report that. ``openstack numa simulate remote --rebalance`` shows what each brings and costs in a "
        "simulated pool.",
        choices={
            UsePolicy.NONE: "none moves",
            UsePolicy.CONSOLIDATE: "GPUs that are used less than ``remote_gpu_cold`` are emptied, onto others",
            UsePolicy.BALANCE: "one of several leases of a busy GPU goes to an idle one",
            UsePolicy.PROMOTE: "a lease with a priority goes to a GPU that is faster by ``remote_gpu_speeds``, and "
            "where none has room, one of lower priority makes it",
        },
        change="GPUs without leases are turned off (consolidate), leases slow each other down while others idle "
        "(balance), or GPUs are of several models (promote); observe first",
        leave="no transport tells how busy a GPU is, and GPUs are alike",
    )
    remote_gpu_speeds: Mapping[str, int] = option(
        {},
        "How fast models of GPUs are, MODEL:NUMBER, relative to each other, for ``promote``; models as hosts name them "
        "([remote_gpus]models). GPUs of other models are left alone.",
        minimum=1,
        change="remote_gpu_by_use is promote, which needs it",
        leave="it is not",
    )
    remote_gpu_cold: float = option(
        0.5,
        "Part of the time in which a GPU is busy, below which ``consolidate`` empties it.",
        minimum=0.0,
        maximum=1.0,
        change="leases that move to a shared GPU get too slow (lower)",
        leave="they do not",
    )
    remote_gpu_scavenging: Rebalancing = option(
        Rebalancing.OFF,
        "Whether leases of the service level ``scavenger`` give their GPUs up where one of a higher level waits and no "
        "moves make room for it. What they had in the GPU is lost; they are asked for again, and come back when there "
        "is room.",
        choices={
            Rebalancing.OFF: "never",
            Rebalancing.OBSERVE: "the lease that waits says how many would",
            Rebalancing.ENFORCE: "they do",
        },
        change="scavengers are to have what others leave, and no more (observe first)",
        leave="a lease of any level is to stay until it is released",
    )
    remote_gpu_flavors: FlavorSource = option(
        FlavorSource.HOSTS,
        "Who says what flavors of servers ask of remote GPUs.",
        choices={
            FlavorSource.HOSTS: "the host that a server is on, of which an attacker who has it can ask for all GPUs "
            "for its servers, within the limits of their projects",
            FlavorSource.NOVA: "nova is asked, too, once a server, and the lesser counts. Nova shows servers of all "
            "projects to its administrators only, so the user of ``[placement]`` needs the role admin then; a server "
            "that nova does not show gets no lease",
        },
        change="a host that is broken out of must not get GPUs for its servers (nova), and this controller may have an "
        "administrator's password",
        leave="limits of projects bound what a host can ask for",
    )
    scaling_traces: Path = option(
        Path("/var/lib/numa-ext-jobs/traces"),
        "Folder with the CSV files of elastic groups; what is in no file there is read by no group. Every engine needs "
        "the same files.",
        change="monitoring writes elsewhere, such as to a file system that all controllers share",
        leave="there are no elastic groups",
    )
    scaling_prometheus: str = option(
        "",
        "URL of the Prometheus that knows load and latencies of elastic groups, such as http://127.0.0.1:9090; empty: "
        "there is none, and their source is a CSV file. It is asked without a user and password.",
        change="elastic groups are sized by what a Prometheus measures",
        leave="there are no elastic groups, or what they are sized by is written to files",
    )
    scaling_prometheus_timeout_s: float = option(
        5.0,
        "Seconds that one answer of it may take as a whole; a group needs two to six of them each period. Later ones "
        "are no answers, and groups wait for one another's.",
        minimum=0.1,
        change="its queries take longer (raise), better by recording rules there",
        leave="it answers within a second",
    )
    scaling_fit_timeout_s: float = option(
        30.0,
        "Seconds that a fit of an elastic group's models may take. What takes longer is ended, and begun again a "
        "minute later.",
        minimum=1.0,
        change="groups have hundreds of members, or the controller is slow (raise)",
        leave="fits take well below a second",
    )
    scaling_hooks: Path = option(
        Path("/etc/numa-ext-jobs/hooks"),
        "Folder with the programs that elastic groups may have called when members come and leave; none elsewhere is "
        "called. They run as the engine's user, so only administrators may write there. Every engine needs the same.",
        change="programs lie elsewhere",
        leave="no elastic group has a hook",
    )
    scaling_hook_timeout_s: float = option(
        10.0,
        "Seconds that one call of a hook may take; then it is killed, and called again in a later round. What takes "
        "longer has to go on by itself: the hook ends with 75 until it is done.",
        minimum=0.1,
        change="the service that takes members in answers slowly (raise): elastic groups wait for one another's hooks",
        leave="hooks answer within seconds",
    )
    metrics_address: HostAddress = option(
        HostAddress("127.0.0.1"),
        "Address of the engine's Prometheus endpoint. It has no authentication: keep it on loopback.",
        change="a proxy with authentication on another address of this controller asks",
        leave="Prometheus can reach it on loopback, by an agent or tunnel: the port has no authentication",
    )
    metrics_port: Port = option(
        Port(0),
        "Its port, such as 9179; 0: there is none. Each engine serves its own.",
        change="a Prometheus scrapes this controller",
        leave="none does",
    )
    job_hint_keys: tuple[str, ...] = option(
        (),
        "Keys by which engines let nova-scheduler know where a job's servers were planned: the first one seals the "
        "scheduler hint of each server. nova-scheduler has them as ``[numa_ext]job_hint_keys``, where a key's form "
        "and how it is replaced are described. Without a key nova chooses among all hosts by the flavor alone: extra "
        "specs of parts are planned for and not kept, and ``numa_ext:min_utility`` counts after the last postponement, "
        "too.",
        secret=True,
        change="you set up the service, right after nova-scheduler has the key",
        leave="the service is only tried out, where it matters little on which hosts jobs run",
    )
    mark_file: Path = option(
        Path("/var/lib/numa-ext-jobs/mark.json"),
        "File in which an engine keeps how far the database was when it last saw it. After a restart a database that "
        "is not as far is known to be an old one, which was restored: nothing is done on it before "
        "``numa-ext-manage recover --commit``.",
        change="the engine may not write there; systemd's unit of the engine names the folder, too",
        leave="the unit is used as it is",
    )
    reconcile_interval_s: float = option(
        60.0,
        "Seconds between two looks for what belongs to no job in Placement and nova; what is found twice in a row is "
        "released or deleted. Servers that nova makes when their job has no places any more are looked for three times "
        "as often: they are deleted within these seconds. Trusts of no job are looked for once an hour.",
        minimum=30.0,
        change="Placement is loaded by it (raise)",
        leave="amounts that a late request has claimed should be free soon",
    )
    leaf_uplinks: bool = option(
        False,
        "Say on leafs of fabrics what best-effort servers of their hosts may send, while agents ask for room on the "
        "uplinks for latency-critical ones whose objectives are violated ([lanes]leaf of numa-host-agent). Only leafs "
        "whose plan has ``uplink_mbps`` are spoken of, and only agents with that option ask or listen. Where none "
        "does, a look costs Placement two requests.",
        change="latency-critical servers wait on uplinks that hosts share, in switches that know no lanes",
        leave="switches know lanes by DSCP, or hosts have no lanes",
    )
    leaf_uplinks_interval_s: float = option(
        30.0,
        "Seconds between two looks at what agents ask for. Best-effort servers of other hosts are slowed after two "
        "of them, and up to a minute that their agents take. A limit that no host asks for any more grows by a quarter "
        "each time.",
        minimum=5.0,
        maximum=60.0,
        change="Placement is loaded by it (raise), or half a minute is too late (lower)",
        leave="it is not",
    )
    leaf_uplinks_kept: float = option(
        0.3,
        "Share of a leaf's uplinks that is kept for latency-critical servers at most, whatever agents ask for: the "
        "rest is best-effort servers', in equal parts of those hosts that use as much. It bounds what a host that is "
        "broken into can do to its neighbours.",
        minimum=0.01,
        maximum=0.9,
        change="latency-critical servers of a leaf send more than that together",
        leave="they send little",
    )


@dataclass(frozen=True, slots=True)
class ApiOptions(Section):
    """What users may submit, and how the service acts for them."""

    section: ClassVar = GROUP
    title: ClassVar = "The API of the job service"

    waiting_jobs: int = option(
        1000,
        "Jobs of a project that wait at the same time; one more is refused. Requests of one moment may exceed it by as "
        "many as there are of them.",
        minimum=1,
        change="a project has good reason to submit more at once (raise): each round looks at all jobs that wait",
        leave="projects submit hundreds of jobs at most",
    )
    waiting_servers: int = option(
        10_000,
        "Servers that a project's waiting jobs ask for, together; a job that exceeds it is refused.",
        minimum=1,
        change="jobs of a project are larger (raise)",
        leave="no project's jobs come near it",
    )
    trust_roles: tuple[str, ...] = option(
        ("member",),
        "Roles that a job's user passes on to the service by a Keystone trust: those that nova and Neutron need to "
        "make and delete servers. A user without one of them cannot submit jobs.",
        change="policies of the cloud ask for another role to make servers",
        leave="nova's and Neutron's own policies are used: never pass on more than is needed, such as admin",
    )
    trust_lasts_s: float = option(
        365 * 86_400.0,
        "Seconds after which a trust ends at the latest. It ends sooner for jobs whose deadline, or whose max_wait and "
        "walltime, are sooner. With its trust a job ends as failed; its servers stay, and are its user's to delete.",
        minimum=86_400.0,
        change="jobs run for years (raise), or rights must be given again more often (lower)",
        leave="no job without a walltime runs for a year",
    )

    topology_key: str = option(
        "",
        "Secret by which the API hashes names of switches, 32 characters or more, for each project otherwise: users "
        "see which servers of a group of theirs are near each other, and can compare it with no other project's. "
        "``openstack numa group topology --key-file`` with a file of the same text gives the same names. Every API "
        "needs the same one; with another one all names are others. Empty: the API shows no topology.",
        secret=True,
        change="users run schedulers such as Slurm or Kueue in groups of servers: ``openssl rand -hex 32`` makes one",
        leave="there is no fabric, or its shape is not for users",
    )

    def __post_init__(self) -> None:
        if 0 < len(self.topology_key) < _LEAST_KEY:
            raise InvalidValueError(
                f"[{GROUP}]topology_key",
                f"{len(self.topology_key)} characters",
                f"{_LEAST_KEY} or more: with a key that is guessed, names of switches can be tried",
            )


@dataclass(frozen=True, slots=True)
class PlanningOptions(Section):
    """Where jobs are planned."""

    section: ClassVar = GROUP
    title: ClassVar = "Planning of the job service"

    planner: PlannerSettings = part(PlannerSettings)
    aggregate: str = option(
        "",
        "The uuid of an aggregate of nova's: jobs are planned on its hosts only; empty: on all hosts with an agent. "
        "Places that the queue keeps for a job are kept from other jobs. Servers that users make beside the queue take "
        "CPUs, memory and devices of them all the same; of these nova's Placement holds nothing for a job that waits.",
        change="servers are made beside the queue: give the queue hosts of its own, and keep other servers off them by "
        "nova's ``[scheduler]enable_isolated_aggregate_filtering``",
        leave="all servers of these hosts are made by jobs, or a promise that is broken now and then does no harm",
    )
    hosts_interval_s: float = option(
        10.0,
        "Seconds between two readings of the hosts in Placement. Each reads all of them, for no generation shows that "
        "a server was deleted; on a large cloud the pauses grow until Placement is kept busy for a fifth of the time.",
        minimum=0.1,
        change="Placement is short of CPU (raise), or servers that are deleted should make place sooner (lower)",
        leave="the cloud has some thousand hosts or fewer",
    )
    pci_alias: tuple[str, ...] = option(
        (),
        "A PCI alias that flavors name, as ``[pci]alias`` of nova.conf: the same lines. GPUs behind an alias that is "
        "not here are not seen before nova's scheduler looks.",
        repeated=True,
        change="flavors ask for GPUs by ``pci_passthrough:alias``",
        leave="flavors ask for GPUs by resource classes, or for none",
    )
    gpu: GpuOptions = part(GpuOptions, prefix="gpu_")
    net: NetworkOptions = part(NetworkOptions, prefix="net_")


@dataclass(frozen=True, slots=True)
class NotifyOptions(Section):
    """Whom engines tell of jobs that come to another state, beside the message bus."""

    section: ClassVar = GROUP
    title: ClassVar = "Notifications of the job service"

    webhook_url: str = option(
        "",
        "URL to which engines post each job that comes to another state, as JSON: what the message bus gets by "
        "``[oslo_messaging_notifications]``; empty: none. A post may be lost; what happened to a job is in its events.",
        secret=True,
        change="something outside of the cloud follows jobs and has no message bus",
        leave="users ask for the events of their jobs, or a consumer is on the message bus",
    )
    webhook_networks: tuple[str, ...] = option(
        (),
        "Networks in which the receiver is, such as ``203.0.113.0/24``. Whatever a name server says, nothing is sent "
        "to other addresses, and redirects are not followed.",
        change="you set ``webhook_url``: name the smallest network, and none of the control plane",
        leave="there is no webhook",
    )
    webhook_timeout_s: float = option(
        5.0,
        "Seconds that the receiver may take to connect, and again to answer. No job waits for it.",
        minimum=0.1,
        change="the receiver is far away (raise)",
        leave="it answers within a second",
    )


@dataclass(frozen=True, slots=True)
class JobsOptions(Section):
    """``[numa_ext_jobs]``."""

    section: ClassVar = GROUP
    title: ClassVar = "Jobs: what waits, or concerns more than one server"

    engine: EngineOptions = part(EngineOptions)
    api: ApiOptions = part(ApiOptions)
    queue: QueueSettings = part(QueueSettings)
    planning: PlanningOptions = part(PlanningOptions)
    notify: NotifyOptions = part(NotifyOptions)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options with ``conf``; registering twice is harmless."""
    oslo_options.register(conf, JobsOptions)


def read(conf: cfg.ConfigOpts) -> JobsOptions:
    """Return the options of a loaded configuration.

    :raises ConfigurationError: names the option that cannot be read
    """
    return oslo_options.read(JobsOptions, conf)


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return (group, options) for oslo-config-generator."""
    return [(GROUP, oslo_options.options(JobsOptions))]
