# SPDX-License-Identifier: Apache-2.0
"""Options of the scheduler part, group ``[numa_ext]`` of nova-scheduler's configuration."""

from collections.abc import Sequence
from typing import Final

from oslo_config import cfg

GROUP: Final = "numa_ext"

_failures = (
    cfg.StrOpt(
        "on_error",
        default="pass",
        choices=[
            ("pass", "every host passes and every host weighs the same"),
            ("refuse", "no host passes"),
        ],
        help="""
What the filter answers when it fails by a fault of its own.

A fault never breaks the request: it is counted, logged with the request id, and this answer is given. Choose ``refuse``
where a latency-critical server on the wrong host costs more than a server that is not built; it applies only to flavors
and images that speak to this project.
""",
    ),
    cfg.StrOpt(
        "on_stale",
        default="neutral",
        choices=[
            ("neutral", "no opinion: the host passes and its score is the mean of the others"),
            (
                "refuse",
                "a flavor with numa_ext:tier gets no valid host until the view is fresh again",
            ),
        ],
        help="""
What to do while the view of Placement is older than ``view_max_age``, or has never been read.

Placement itself still counts ways, bandwidth and classes of service, so ``neutral`` never overbooks; it may put a
server beside a neighbour of the wrong interference class. One line is logged when the view becomes stale and one
when it is fresh again.
""",
    ),
)

_view = (
    cfg.FloatOpt(
        "view_refresh_interval",
        default=10.0,
        min=0.1,
        help="""
Seconds between two refreshes of the view of Placement.

A refresh compares generations of all resource providers and reads again only the trees that changed. Raise it on very
large clouds if Placement is short of CPU; the age of the data is part of every explanation.
""",
    ),
    cfg.FloatOpt(
        "view_max_age",
        default=120.0,
        min=1.0,
        help="""
Seconds after which the view of Placement counts as stale, see ``on_stale``. Keep it several times
``view_refresh_interval``, and on very large clouds more than twice the time that a refresh takes: the age counts from
the beginning of a refresh, so a view is oldest when the next one ends.
""",
    ),
    cfg.FloatOpt(
        "view_wait",
        default=5.0,
        min=0.0,
        help="""
Longest time in seconds that a scheduling decision waits for the very first reading of Placement after the start of
nova-scheduler. Later decisions never wait.
""",
    ),
)

_memory = (
    cfg.FloatOpt(
        "pick_ttl",
        default=120.0,
        min=0.0,
        help="""
Seconds for which nova-scheduler remembers a host it has just picked and counts the new server as a neighbour there.

It bridges the time until the host agent has published the new neighbourhood and the view has read it: keep it longer
than the boot of a server plus the agent's reporting interval plus ``view_refresh_interval``. 0 switches the memory off.
Each process of nova-scheduler (``[scheduler]workers``, several controllers) remembers its own picks only.
""",
    ),
    cfg.IntOpt(
        "pick_limit",
        default=4096,
        min=1,
        help="Largest number of picks that are remembered; the oldest go first. A pick takes about 0.5 kB.",
    ),
)

_journal = (
    cfg.StrOpt(
        "journal_path",
        default="/var/lib/nova/numa-ext/decisions.jsonl",
        help="""
File that takes one JSON line per decision of the filter and of the weigher, read by ``numa-ext-explain``. Empty: no
journal. A journal that cannot be written is logged once and never disturbs scheduling. Workers of one nova-scheduler
may share it.
""",
    ),
    cfg.IntOpt(
        "journal_max_mb",
        default=64,
        min=1,
        help="Size in MiB at which the journal is renamed to ``.1`` and a new one is begun.",
    ),
    cfg.IntOpt(
        "journal_backups",
        default=3,
        min=0,
        help="Number of old journals (``.1``, ``.2`` …) that are kept.",
    ),
    cfg.IntOpt(
        "journal_hosts",
        default=50,
        min=1,
        help="""
Hosts per decision that the journal describes one by one; of the others it keeps the number per reason. On a large
cloud a higher value makes longer lines and slower explanations.
""",
    ),
)


def _multiplier(name: str, default: float, what: str) -> cfg.FloatOpt:
    return cfg.FloatOpt(
        f"{name}_multiplier",
        default=default,
        min=0.0,
        help=f"""
Weight of the term ``{name}`` in the score of NumaExtWeigher: {what}

The score is the mean of the terms, weighted by these numbers; only their ratios matter. 0 leaves the term out. The
metadata key ``numa_ext_{name}_multiplier`` of a host aggregate overrides it for the hosts of the aggregate.
""",
    )


def _gpu_weight(name: str, what: str) -> cfg.FloatOpt:
    return cfg.FloatOpt(
        f"gpu_{name}_weight",
        default=1.0,
        min=0.0,
        help=f"""
Weight of {what} in the utility of a set of GPUs.

The three ``gpu_…_weight`` are used in proportion to their sum. They move what ``numa_ext:min_utility`` of a flavor
means: try others with ``openstack numa simulate trace --utility-weights`` first.
""",
    )


_gpus = (
    _gpu_weight("communication", "the distance of GPUs that communicate"),
    _gpu_weight("interference", "the slowdown by neighbours, suffered and caused,"),
    _gpu_weight("fragmentation", "breaking whole sockets of free GPUs"),
    cfg.StrOpt(
        "gpu_profiles",
        default="",
        help="""
YAML or JSON file with measured run times of jobs on GPUs, read when nova-scheduler takes its first decision.

A profile named like a flavor is that flavor's; one named ``comm-0`` to ``comm-4`` belongs to all flavors with that
``numa_ext:gpu_comm``. Empty: built-in profiles by ``numa_ext:gpu_comm``. A file that cannot be used is logged as an
error, and the built-in profiles and equal weights are used.
""",
    ),
    cfg.StrOpt(
        "gpu_distances",
        default="",
        help="""
YAML or JSON file with measured distances between GPUs, read when nova-scheduler takes its first decision.

An entry belongs to all hosts whose GPUs have the addresses that it lists. Empty, and for all other hosts: the distance
of two GPUs follows from the levels between them (1 at a GPU, 20 above) and from NVLinks. A file that cannot be used is
logged as an error, and default weights, profiles and distances are used.
""",
    ),
)

_weigher = (
    cfg.FloatOpt(
        "weight_multiplier",
        default=10.0,
        help="""
Multiplier of NumaExtWeigher among nova's weighers.

Our score lies in [0, 1] and is not stretched, whereas nova stretches each of its own weighers over the hosts at
hand, so that one byte more of free memory weighs 1.0. The default lets a difference of one term count more than
nova's memory, CPU and disk weighers together. Name our weigher last in ``[filter_scheduler]weight_classes``: it then
sees the sum of the others and remembers the right pick (see ``pick_ttl``). The metadata key
``numa_ext_weight_multiplier`` of a host aggregate overrides it for the hosts of the aggregate.
""",
    ),
    _multiplier("slices", 1.0, "the guest fits one NUMA node, or few that are near each other."),
    _multiplier(
        "neighbours",
        1.0,
        "latency-critical and best-effort servers do not share an L3 domain, nor do animals that "
        "disturb each other.",
    ),
    _multiplier("ways", 0.5, "L3 ways that stay free in the chosen domain."),
    _multiplier(
        "bandwidth",
        0.5,
        "memory bandwidth that stays free where the server lives; for best-effort servers, the most "
        "spare bandwidth.",
    ),
    _multiplier(
        "cross_socket_bandwidth",
        0.5,
        "memory bandwidth that is free on the other sockets, for servers whose memory policy spreads "
        "their pages (best-effort without a NUMA topology).",
    ),
    _multiplier(
        "fragmentation", 0.5, "what stays free is still usable by servers of the same shape."
    ),
    _multiplier("gpu", 1.0, "utility of the GPU set that the host offers."),
)

OPTIONS: Final[tuple[cfg.Opt, ...]] = (
    *_failures,
    *_view,
    *_memory,
    *_journal,
    *_gpus,
    *_weigher,
)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register our options with ``conf``; registering twice is harmless."""
    conf.register_opts(OPTIONS, group=GROUP)


def defaults() -> cfg.ConfigOpts:
    """Return our options as they are where nobody has set any."""
    conf = cfg.ConfigOpts()
    register_opts(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    return conf


def list_opts() -> list[tuple[str, Sequence[cfg.Opt]]]:
    """Return (group, options) for oslo-config-generator, namespace ``nova_numa_ext``."""
    return [(GROUP, OPTIONS)]
