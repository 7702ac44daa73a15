# SPDX-License-Identifier: Apache-2.0
"""The tables of J. Prades (rCUDA, UPV Valencia 2021) beside what the models say of them.

A row is *calculated* where the publication had its number from the same equation, *measured* where it had it from a
machine, and a *limit* where it only gives a bound. What is put into the models (tables 4.2, 5.1, 7.1 and 7.2, run times
on one GPU, slowdowns of sharing) is no row. A row may be wrong: its tolerance does not follow from it.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nova_numa_ext.policy.remote_gpu.closed_loop import ClosedLoop
from nova_numa_ext.policy.remote_gpu.fabrics import FABRICS, GpuFabric
from nova_numa_ext.policy.remote_gpu.migration import copy_s, moved_run_s, other_s
from nova_numa_ext.policy.remote_gpu.multi_tenancy import K20, Aim, CopyThenCompute, best
from nova_numa_ext.policy.remote_gpu.slices import SHARING_SLOWDOWN, energy_per_tenant
from nova_numa_ext.policy.remote_gpu.throughput import Rates, fill_client_first, most_jobs

# Table 4.2: C; a + b + c4 + c120; D.
RISK_JOBS: Final = MappingProxyType(
    {
        "qdr": CopyThenCompute(9.55, 0.00267 + 0.0048 + 0.00133 + 0.036, 1.171),
        "fdr": CopyThenCompute(9.55, 0.0027 + 0.0028 + 0.00079 + 0.0205, 0.67),
    }
)
# Table 5.1, ns per day.
GROMACS: Final = Rates(
    cpu_host=121.33, filler=22.59, gpu_job=305.46, couple=542.53, shared_host=452.64
)
MEGABYTE: Final = 10**6
# The client has 24 hardware threads, one for each virtual GPU.
_MOST_MEASURED: Final = 24
_CONTEXT_MB: Final = 72
_FOUR_GIB: Final = 4 << 30
EXACT: Final = 0.005
MODELLED: Final = 0.12


@dataclass(frozen=True, slots=True)
class Application:
    """A row of table 7.2, with the regions of figure 7.6.

    :param name: its name
    :param most_mb: most GPU memory that it has in use, with its context
    :param regions: regions that it allocates
    :param utilisation: mean utilisation of the GPU, in [0, 1]
    :param kernel_s: mean length of a kernel, seconds
    """

    name: str
    most_mb: int
    regions: int
    utilisation: float
    kernel_s: float

    def region_sizes(self) -> list[int]:
        """Return the bytes of its regions, of equal size: the publication has their sum only."""
        return [(self.most_mb - _CONTEXT_MB) * MEGABYTE // self.regions] * self.regions


APPLICATIONS: Final = (
    Application("GPUBLAST", 1302, 8, 0.325, 14.4),
    Application("CUDASW++", 931, 3, 0.70, 11.5),
    Application("TeaLeaf", 183, 35, 0.19, 0.03e-3),
    Application("CUDA-MEME", 162, 8, 0.384, 37.51e-3),
    Application("CloverLeaf", 1502, 47, 0.97, 0.68e-3),
)


class Origin(StrEnum):
    """Where the publication has a number from."""

    CALCULATED = "calculated"
    MEASURED = "measured"
    LIMIT = "limit"


class Verdict(StrEnum):
    """How near the model comes to the publication."""

    EXACT = "exact"
    MODELLED = "modelled"
    OFF = "off"


Factor = Callable[[str], float]


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A number of the publication and the model for it.

    :param name: what it is
    :param source: the publication's number
    :param origin: where that is from
    :param model: from a factor for each input to the model's number
    """

    name: str
    source: float
    origin: Origin
    model: Callable[[Factor], float]

    @property
    def ours(self) -> float:
        """The model's number with the inputs of the publication."""
        return self.model(lambda name: 1.0)

    @property
    def verdict(self) -> Verdict:
        """Exact to half a percent; modelled to 12 %, or below the limit; else off."""
        if self.origin is Origin.LIMIT:
            return Verdict.MODELLED if self.ours <= self.source else Verdict.OFF
        away = abs(self.ours / self.source - 1)
        if away <= EXACT:
            return Verdict.EXACT
        return Verdict.MODELLED if away <= MODELLED else Verdict.OFF

    def perturbed(self, draws: int, seed: int) -> list[float]:
        """Return the model's numbers with each input times a factor from 0.8 to 1.2, sorted."""
        found = []
        for draw in range(draws):
            factors: dict[str, float] = {}
            source = random.Random(f"{seed}/{draw}")

            def factor(
                name: str, factors: dict[str, float] = factors, source: random.Random = source
            ) -> float:
                return factors.setdefault(name, source.uniform(0.8, 1.2))

            found.append(self.model(factor))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that stand together in the publication.

    :param name: where
    :param rows: its rows
    """

    name: str
    rows: tuple[SourceRow, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its rows."""
        found = {row.verdict for row in self.rows}
        return next(v for v in (Verdict.OFF, Verdict.MODELLED, Verdict.EXACT) if v in found)


def _risk(network: str, factor: Factor) -> CopyThenCompute:
    job = RISK_JOBS[network]
    return CopyThenCompute(
        job.compute_s * factor("computation"),
        job.per_gpu_s * factor("per GPU"),
        job.input_s * factor("input"),
        replace(K20, idle=K20.idle * factor("idle"), busy=K20.busy * factor("busy")),
    )


def _most_per_gpu(gpus: int) -> int:
    return 4 if gpus == 1 else 12


def _times() -> Iterator[SourceRow]:
    for network, source in (("qdr", 1.23), ("fdr", 0.68)):
        name = f"copies to one GPU, {network}, s"

        def copies(f: Factor, n: str = network) -> float:
            return _risk(n, f).transfer_s(1)

        yield SourceRow(name, source, Origin.MEASURED, copies)
    yield SourceRow(
        "16 GPUs, fdr, computation, s",
        0.62,
        Origin.MEASURED,
        lambda f: _risk("fdr", f).computation_s(16),
    )
    yield SourceRow("16 GPUs, fdr, s", 1.66, Origin.MEASURED, lambda f: _risk("fdr", f).time_s(16))


def _steps() -> Iterator[SourceRow]:
    for per_gpu, source in ((1, 88), (2, 80), (4, 76)):

        def steps(f: Factor, v: int = per_gpu) -> float:
            return _risk("fdr", f).time_s(4, v) / 0.035

        yield SourceRow(
            f"{per_gpu} virtual GPUs on each of 4, steps of 35 ms", source, Origin.MEASURED, steps
        )


def _energies() -> Iterator[SourceRow]:
    for per_gpu, source in ((1, 1145), (2, 1094), (4, 1041)):

        def energy(f: Factor, v: int = per_gpu) -> float:
            return _risk("fdr", f).energy_j(4, v)

        yield SourceRow(f"{per_gpu} virtual GPUs on each of 4, J", source, Origin.MEASURED, energy)


def _hidden() -> Iterator[SourceRow]:
    measured = {"qdr": (0.70, 0.84, 0.66, 0.42), "fdr": (0.65, 0.77, 0.57, 0.56)}
    for network, sources in measured.items():
        for gpus, source in zip((1, 2, 4, 6), sources, strict=True):

            def hidden(f: Factor, n: str = network, p: int = gpus) -> float:
                job = _risk(n, f)
                most = min(_most_per_gpu(p), _MOST_MEASURED // p)
                least = min(job.exposed_s(p, v) for v in range(1, most + 1))
                return 1 - least / job.exposed_s(p)

            yield SourceRow(f"{gpus} GPUs, {network}", source, Origin.MEASURED, hidden)


def _optima() -> Iterator[SourceRow]:
    for network, gpus, per_gpu in (("qdr", 7, 2), ("fdr", 9, 2)):
        for aim, shape in ((Aim.TIME, (gpus, per_gpu)), (Aim.ENERGY, (1, 4))):
            for what, source in zip(("gpus", "per_gpu"), shape, strict=True):

                def optimum(f: Factor, n: str = network, a: Aim = aim, w: str = what) -> float:
                    return float(getattr(best(_risk(n, f), a, 16, _most_per_gpu), w))

                yield SourceRow(
                    f"least {aim}, {network}, {what}", source, Origin.CALCULATED, optimum
                )


def _rates(factor: Factor) -> Rates:
    return Rates(
        GROMACS.cpu_host * factor("A"),
        GROMACS.filler * factor("B"),
        GROMACS.gpu_job * factor("C"),
        GROMACS.couple * factor("D"),
        GROMACS.shared_host * factor("E"),
    )


def _throughput() -> Iterator[SourceRow]:
    def gain(f: Factor) -> float:
        return _rates(f).hybrid_shared(2, 2) / _rates(f).hybrid(2, 3)

    def gain_alone(f: Factor) -> float:
        return _rates(f).homogeneous_shared(1) / _rates(f).homogeneous(1, 3)

    calculated = Origin.CALCULATED
    yield SourceRow("couple, ns/day", 494.56, calculated, lambda f: _rates(f).hybrid(2, 3))
    yield SourceRow(
        "couple, shared, ns/day", 587.71, calculated, lambda f: _rates(f).hybrid_shared(2, 2)
    )
    yield SourceRow("host, ns/day", 373.23, calculated, lambda f: _rates(f).homogeneous(1, 3))
    yield SourceRow("couple, gain of sharing", 1.19, calculated, gain)
    yield SourceRow("host, gain of sharing", 1.21, calculated, gain_alone)


def _budget() -> Iterator[SourceRow]:
    for threads, source in ((20, 2), (10, 4), (5, 7), (3, 10)):

        def first(f: Factor, t: int = threads) -> float:
            return float(most_jobs(t, round(20 * f("cores"))) + 1)

        yield SourceRow(f"first job beyond, {threads} threads", source, Origin.MEASURED, first)

    def fillers(f: Factor) -> float:
        return float(fill_client_first(8, 3, round(20 * f("cores"))).fillers)

    yield SourceRow("CPU-only jobs beside eight", 2, Origin.CALCULATED, fillers)


def _downtime(name: str, sizes: list[int], factor: Factor) -> float:
    slower = GpuFabric(name, FABRICS[name].gbps * factor("bandwidth"), FABRICS[name].rdma)
    return copy_s(slower, sizes) + other_s(slower, len(sizes)) * factor("other")


def _moves() -> Iterator[SourceRow]:
    for name, source in (("edr", 128), ("fdr", 91)):

        def gain(f: Factor, n: str = name) -> float:
            return _downtime("1gbe", [_FOUR_GIB], f) / _downtime(n, [_FOUR_GIB], f)

        yield SourceRow(f"4 GiB, {name} over 1 GbE", source, Origin.MEASURED, gain)
    yield SourceRow(
        "GPU-BLAST on 1 GbE, s",
        20,
        Origin.MEASURED,
        lambda f: _downtime("1gbe", [1300 * MEGABYTE // 9] * 9, f),
    )


def _downtimes() -> Iterator[SourceRow]:
    for app in APPLICATIONS:
        for name in ("fdr", "edr"):

            def downtime(f: Factor, a: Application = app, n: str = name) -> float:
                return _downtime(n, a.region_sizes(), f)

            yield SourceRow(f"{app.name}, {name}, s", 0.5, Origin.LIMIT, downtime)


def _promotion() -> Iterator[SourceRow]:
    slow, fast = 271.0, 80.0

    def run(first_s: float, then_s: float) -> Callable[[Factor], float]:
        def moved(f: Factor) -> float:
            downtime = _downtime("fdr", APPLICATIONS[-1].region_sizes(), f)
            return moved_run_s(first_s * f("first"), then_s * f("then"), 0.33, downtime)

        return moved

    yield SourceRow("K20 to P100 at 33 %, s", 150, Origin.MEASURED, run(slow, fast))
    yield SourceRow("P100 to K20 at 33 %, s", 227, Origin.MEASURED, run(fast, slow))


def _sharing() -> Iterator[SourceRow]:
    def throughput(f: Factor) -> float:
        loop = ClosedLoop(90 * f("job"), 0.5)
        return loop.throughput(3, SHARING_SLOWDOWN[3] * f("slowdown"), 90.0)

    yield SourceRow("throughput of 12 servers, at most", 2.0, Origin.MEASURED, throughput)
    yield SourceRow(
        "energy of one of 8", 0.85, Origin.MEASURED, lambda f: energy_per_tenant(2) * f("e")
    )


def _consolidation() -> Iterator[SourceRow]:
    def used_before(f: Factor) -> float:
        return 0.4 * f("utilisation")

    def used_after(f: Factor) -> float:
        return 2 * used_before(f) * 210 / (240 * f("run time"))

    yield SourceRow("utilisation of one GPU with two jobs", 0.60, Origin.MEASURED, used_after)
    yield SourceRow(
        "two GPUs before, W", 140, Origin.LIMIT, lambda f: 2 * K20.mean_w(used_before(f))
    )
    yield SourceRow(
        "power after over before",
        1.0,
        Origin.LIMIT,
        lambda f: (K20.mean_w(used_after(f)) + K20.unused) / (2 * K20.mean_w(used_before(f))),
    )


def tables() -> tuple[Table, ...]:
    """Return all tables."""
    return (
        Table("section 4.5, times", tuple(_times())),
        Table("figure 4.13, makespan of 4 GPUs", tuple(_steps())),
        Table("figure 4.14, energy of 4 GPUs", tuple(_energies())),
        Table("section 4.5.5, share of copies that is hidden", tuple(_hidden())),
        Table("section 4.6, optima", tuple(_optima())),
        Table("section 5.6, throughput of GROMACS", tuple(_throughput())),
        Table("section 5.5, budget of cores", tuple(_budget())),
        Table("section 7.5.1, moves", tuple(_moves())),
        Table("section 7.5.2, downtime", tuple(_downtimes())),
        Table("table 7.3, promotion and demotion", tuple(_promotion())),
        Table("section 3.4, sharing", tuple(_sharing())),
        Table("figure 7.10, consolidation", tuple(_consolidation())),
    )
