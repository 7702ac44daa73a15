# SPDX-License-Identifier: Apache-2.0
"""Options of groups ``[counters]``, ``[mapping]`` and ``[bwap]``: what NUMA balancing sees and how it acts."""

from dataclasses import dataclass, field
from typing import Any, Final

from oslo_config import cfg

from host_agent.conf import bwap, mapping
from host_agent.conf.mapping import Limits, Metric

COUNTERS: Final = cfg.OptGroup("counters", title="Performance counters of servers")
MAPPING: Final = cfg.OptGroup("mapping", title="A core for each vCPU, repaired at run time")
BWAP: Final = cfg.OptGroup("bwap", title="Search for the best spread of memory (BWAP)")

_MAPPING: Final = mapping.Settings()
_BWAP: Final = bwap.Settings()

OPTIONS: Final[dict[cfg.OptGroup, list[cfg.Opt]]] = {
    COUNTERS: [
        cfg.StrOpt(
            "source",
            default="auto",
            choices=["auto", "perf", "libvirt", "model", "none"],
            help="Where instructions, misses and stalls of servers come from: perf counts the vCPU threads itself, "
            "libvirt takes what nova's [libvirt]enabled_perf_events counts, auto takes perf and falls back to libvirt. "
            "model is for machines without counters, such as an emulated host of the lab: figures of a model that "
            "knows where threads and pages are, labelled as modelled, never for production. none: arrival and classes "
            "alone decide.",
        ),
        cfg.FloatOpt(
            "sample_s",
            default=1.0,
            min=0.05,
            help="Seconds between two readings while no memory search runs; a search reads every [bwap]interval_s. "
            "Above 15 latencies cannot be guessed at by instructions per cycle ([slo]ipc_tolerance_percent).",
        ),
        cfg.FloatOpt(
            "model_noise_percent",
            default=2.0,
            min=0.0,
            max=50.0,
            help="Standard deviation of each modelled figure.",
        ),
        cfg.IntOpt("model_seed", default=0, help="Seed of the model's noise."),
        cfg.DictOpt(
            "model_programs",
            default={},
            help="What the model takes to run in a server, by the server's name, such as big-1:sc; the others behave "
            "like their interference class.",
        ),
    ],
    MAPPING: [
        cfg.BoolOpt(
            "enabled",
            default=True,
            help="Give each vCPU of a floating server a core of its own, keep classes that disturb each other apart, "
            "and move servers that run worse than expected. Off: they float on the CPUs of their home nodes. Where "
            "nova overcommits the host, servers that find no core float in any case.",
        ),
        cfg.StrOpt(
            "metric",
            default=_MAPPING.metric.value,
            choices=[metric.value for metric in Metric],
            help="What tells how well a server runs: instructions per cycle, or misses per instruction.",
        ),
        cfg.FloatOpt(
            "threshold_percent",
            default=100 * _MAPPING.threshold,
            min=1.0,
            max=99.0,
            help="Deviation from the expectation that is tolerated. Lower ones react to less and move more.",
        ),
        cfg.FloatOpt(
            "interval_s",
            default=_MAPPING.interval_s,
            min=0.1,
            help="Seconds between two decisions about running servers; arrivals are placed at once.",
        ),
        cfg.BoolOpt(
            "use_siblings",
            default=False,
            help="Put vCPUs on all hardware threads of a core. Off: one per core, siblings stay idle.",
        ),
        cfg.IntOpt(
            "quiet_samples",
            default=_MAPPING.quiet_samples,
            min=2,
            help="Readings without a disturbing neighbour that make an expectation.",
        ),
        cfg.IntOpt(
            "smooth_samples",
            default=_MAPPING.smooth_samples,
            min=1,
            help="Readings whose median is compared with the expectation.",
        ),
        cfg.IntOpt(
            "blind_samples",
            default=_MAPPING.blind_samples,
            min=1,
            help="Missing readings in a row after which what was measured of a server is forgotten. A server is not "
            "judged while readings are missing.",
        ),
        cfg.FloatOpt(
            "settle_s",
            default=_MAPPING.settle_s,
            min=0.0,
            help="Seconds after a move in which nothing is learnt or judged.",
        ),
        cfg.FloatOpt(
            "cooldown_s",
            default=_MAPPING.cooldown_s,
            min=0.0,
            help="Seconds for which a moved server is left in peace.",
        ),
        cfg.FloatOpt(
            "memory_s",
            default=_MAPPING.memory_s,
            min=0.0,
            help="Seconds for which a server does not return to nodes that it left.",
        ),
        cfg.IntOpt(
            "moves_per_round",
            default=_MAPPING.moves_per_round,
            min=1,
            help="Most servers that are moved by one decision.",
        ),
        cfg.FloatOpt(
            "least_benefit",
            default=_MAPPING.least_benefit,
            min=1.0,
            max=10.0,
            help="Expected benefit (1 to 10, from the learnt matrix) below which nothing is moved.",
        ),
        cfg.FloatOpt(
            "benefit_keep",
            default=_MAPPING.benefit_keep,
            min=0.0,
            max=1.0,
            help="Weight of the old value when the benefit matrix learns from a move; 1.0 learns nothing.",
        ),
        cfg.FloatOpt(
            "reserve_share",
            default=_MAPPING.reserve_share,
            min=0.0,
            max=1.0,
            help="Part of a node's memory per core that a server with much memory leaves for each free core beside it.",
        ),
        cfg.IntOpt(
            "reshuffle_moves",
            default=_MAPPING.limits.moves,
            min=0,
            help="Most servers that make room for one that finds no good place; 0 never moves one for another.",
        ),
        cfg.IntOpt(
            "reshuffle_operations",
            default=_MAPPING.limits.operations,
            min=1,
            help="Steps after which such a search, and all searches of one decision about running servers, end without "
            "an answer: a limit of time, counted so that the same host always gives the same answer. 1000 take some "
            "tenths of a second on a host of 36 nodes.",
        ),
        cfg.IntOpt(
            "vcpu_cost_mb",
            default=_MAPPING.limits.vcpu_cost_mb,
            min=0,
            help="Memory, MiB, whose move costs as much as that of one vCPU, where servers to be moved are compared.",
        ),
    ],
    BWAP: [
        cfg.IntOpt(
            "samples",
            default=_BWAP.samples,
            min=1,
            help="n: stall rates that make one measurement.",
        ),
        cfg.IntOpt(
            "drop",
            default=_BWAP.drop,
            min=0,
            help="c: lowest and highest of them that are dropped; less than half of samples.",
        ),
        cfg.FloatOpt(
            "interval_s",
            default=_BWAP.interval_s,
            min=0.02,
            help="t: seconds between two stall rates.",
        ),
        cfg.BoolOpt(
            "interval_is_period",
            default=_BWAP.interval_is_period,
            help="Take interval_s for the length of a whole measurement, the other reading of the source.",
        ),
        cfg.FloatOpt(
            "step_percent",
            default=100 * _BWAP.step,
            min=1.0,
            max=100.0,
            help="x: part of all pages that one step brings to the nodes of the vCPUs.",
        ),
        cfg.BoolOpt("undo", default=_BWAP.undo, help="Take a step back that made it worse."),
        cfg.FloatOpt(
            "noise_sigmas",
            default=_BWAP.noise_sigmas,
            min=0.0,
            help="Standard errors below which two measurements count as equal.",
        ),
        cfg.IntOpt(
            "plateau_steps",
            default=_BWAP.plateau_steps,
            min=0,
            help="Equal steps in a row that are walked over; 0 ends the search at the first.",
        ),
        cfg.FloatOpt(
            "memory_intensive_mapi",
            default=_BWAP.memory_intensive_mapi,
            min=0.0,
            help="Memory accesses per instruction below which a server's memory is brought to its vCPUs instead of "
            "being spread.",
        ),
        cfg.IntOpt(
            "stable_samples",
            default=_BWAP.stable_samples,
            min=2,
            help="Readings that are looked at to find a steady phase.",
        ),
        cfg.FloatOpt(
            "stable_variation",
            default=_BWAP.stable_variation,
            min=0.0,
            help="Largest coefficient of variation in a steady phase.",
        ),
        cfg.FloatOpt(
            "phase_change",
            default=_BWAP.phase_change,
            min=0.01,
            help="Relative change of memory accesses or stalls that starts a new search.",
        ),
        cfg.IntOpt(
            "blind_samples",
            default=_BWAP.blind_samples,
            min=1,
            help="Missing readings in a row after which a search is given up.",
        ),
        cfg.FloatOpt(
            "stuck_s",
            default=_BWAP.stuck_s,
            min=1.0,
            help="Seconds after which a search is given up whose pages have come no nearer, by half a percent of the "
            "server's memory. Longer for very large servers, and where [memory]rate_mbps is low.",
        ),
    ],
}


@dataclass(frozen=True, slots=True)
class CounterSettings:
    """``[counters]``."""

    source: str = "auto"
    sample_s: float = 1.0
    model_noise: float = 0.02
    model_seed: int = 0
    model_programs: dict[str, str] = field(default_factory=dict)


def counters(conf: Any) -> CounterSettings:
    """Read ``[counters]``."""
    return CounterSettings(
        source=conf.source,
        sample_s=conf.sample_s,
        model_noise=conf.model_noise_percent / 100,
        model_seed=conf.model_seed,
        model_programs=dict(conf.model_programs),
    )


def mapper(conf: Any) -> mapping.Settings:
    """Read ``[mapping]``."""
    return mapping.Settings(
        metric=Metric(conf.metric),
        threshold=conf.threshold_percent / 100,
        interval_s=conf.interval_s,
        quiet_samples=conf.quiet_samples,
        smooth_samples=conf.smooth_samples,
        blind_samples=conf.blind_samples,
        settle_s=conf.settle_s,
        cooldown_s=conf.cooldown_s,
        memory_s=conf.memory_s,
        moves_per_round=conf.moves_per_round,
        least_benefit=conf.least_benefit,
        benefit_keep=conf.benefit_keep,
        reserve_share=conf.reserve_share,
        limits=Limits(conf.reshuffle_moves, conf.reshuffle_operations, conf.vcpu_cost_mb),
    )


def search(conf: Any) -> bwap.Settings:
    """Read ``[bwap]``.

    :raises InvalidValueError: more samples are dropped than there are
    """
    return bwap.Settings(
        samples=conf.samples,
        drop=conf.drop,
        interval_s=conf.interval_s,
        interval_is_period=conf.interval_is_period,
        step=conf.step_percent / 100,
        undo=conf.undo,
        noise_sigmas=conf.noise_sigmas,
        plateau_steps=conf.plateau_steps,
        memory_intensive_mapi=conf.memory_intensive_mapi,
        stable_samples=conf.stable_samples,
        stable_variation=conf.stable_variation,
        phase_change=conf.phase_change,
        blind_samples=conf.blind_samples,
        stuck_s=conf.stuck_s,
    )
