# SPDX-License-Identifier: Apache-2.0
"""Scheduling on a large cloud, from Placement's candidates to the selected hosts: nova with our plug-ins beside nova

Nova's own SchedulerManager, handlers, default filters, NUMATopologyFilter and PciPassthroughFilter decide about new
HostStates for each request, with our filter and weigher in the documented order and without them. Both get the same
hosts with the same candidates in the same run, and no two requests are equal; before each request 5 % of the hosts
change. What takes stock nova long is not repeated, and what is extrapolated is named in the result.

The machine may be shared: ratios are of one run, times on the clock are upper bounds, and ``_cpu_`` figures are
processor time of the deciding thread. ``--part`` runs one part, ``--profile`` shows where our time goes.
"""

import copy
import cProfile
import gc
import json
import logging
import math
import multiprocessing
import os
import pstats
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from nova import objects
from nova.conf import CONF
from nova.scheduler import host_manager

from benchmarks import report
from benchmarks.cloud import FLAVORS, Cloud, Flavor, Offered, Shown, request
from benchmarks.nova_scheduler import Scheduler, Span, Times, now, uncollected
from nova_numa_ext import conf as our_conf
from placement_traits.boot_clock import boot_time_s
from placement_traits.snapshot_file import SnapshotWriter

CHURN, SERVERS, DEFAULT_LIMIT, FITTING, THREADS = 0.05, 32, 1000, 50, 4
_FULL = 2  # requests for each flavor where the fleet is nearly sold out
_SMALL, _SHORT, _LOOKS = 48, 8, 2  # hosts, shortlist, looks of each, where refusals are counted
_CREATED = ("BE", "LC one node", "LC two nodes")
_GOALS = {
    "ours_ms_median": 300.0,
    "ours_ms_median_full_fleet": 1000.0,
    "whole_ratio_median": 0.15,
    "whole_ratio_worst": 0.5,
    "first_request_ms": 2000.0,
    "kept_mb_per_thread": 1.0,
    "view_mb_per_worker": 20.0,
    "regret_p99": 0.02,
    "refused_by_shortlist": 0.0,
    "run_s": 1500.0,
}

Figures = dict[str, float]


@dataclass
class Bench:
    """One run.

    :param cloud: its hosts
    :param options: of the command line
    :param notes: what a reader of the figures must know
    """

    cloud: Cloud
    options: Namespace
    notes: dict[str, Any] = field(default_factory=dict)
    ours: dict[tuple[str, int], list[Times]] = field(default_factory=dict)
    stock: dict[tuple[str, int], list[Times]] = field(default_factory=dict)
    _number: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def flavors(self) -> list[Flavor]:
        """Those to ask for."""
        return [f for f in FLAVORS if not self.options.flavor or f.name in self.options.flavor]

    def ask(
        self, scheduler: Scheduler, asked: Flavor, servers: int = 1, limit: int | None = None
    ) -> Times:
        """Ask once, after a change of some hosts."""
        with uncollected():
            self.cloud.churn(CHURN)
        settle()
        return scheduler.schedule(next(self._number), asked, servers, limit)

    def scheduler(
        self, *, ours: bool, slow: bool = True, shortlist: int | None = None
    ) -> Scheduler:
        """Nova's scheduler on the bench's hosts, with our plug-ins as after a start or without them.

        :param slow: with nova's slow filters
        :param shortlist: ``[numa_ext]shortlist``, None for its default
        """
        return Scheduler(
            self.cloud,
            ours=ours,
            slow=slow,
            shortlist=shortlist,
            enough_s=self.options.enough,
        )


def ours_single(bench: Bench) -> Figures:
    """Our plug-ins in nova's scheduler, one server at a time."""
    scheduler = bench.scheduler(ours=True)
    first = bench.ask(scheduler, bench.flavors[0])
    report.progress(f"first request: ours {_ms(first.ours_whole)}")
    for number in range(bench.options.requests):
        asked = bench.flavors[number % len(bench.flavors)]
        times = bench.ask(scheduler, asked)
        bench.ours.setdefault((asked.name, 1), []).append(times)
        if number % 10 < len(bench.flavors) or bench.options.requests < 50:
            report.progress(
                f"{number + 1} of {bench.options.requests}, {asked.name}: ours {_ms(times.ours_whole)}, "
                f"whole {_ms(times.whole)}, {times.passed} hosts pass ours"
            )
    every = _flat(bench.ours, 1)
    ours = [times.ours_whole for times in every]
    return {
        "first_request_ms": (scheduler.start + first.ours_whole).wall * 1e3,
        **_median("ours", ours),
        "ours_ms_p99": _percentile([span.wall for span in ours], 0.99) * 1e3,
        **_median("ours_nova_weighers", [times.weighers for times in every]),
        **_median("ours_look_ahead", [times.filters for times in every]),
        **_median("whole", [times.whole for times in every]),
        "faults": float(scheduler.faults),
    }


def ours_many(bench: Bench) -> Figures:
    """Our plug-ins in nova's scheduler, several servers at once."""
    scheduler = bench.scheduler(ours=True)
    for asked in bench.flavors:
        times = bench.ask(scheduler, asked, SERVERS)
        bench.ours.setdefault((asked.name, SERVERS), []).append(times)
        _print_many(f"{asked.name} with ours", times)
    _note_extrapolated(bench, "ours_extrapolated", bench.ours)
    every = _flat(bench.ours, SERVERS)
    return {
        **_median(f"ours_{SERVERS}", [times.ours_whole for times in every]),
        **_median(f"whole_{SERVERS}", [times.whole for times in every]),
    }


def stock(bench: Bench) -> Figures:
    """Nova without us; the first pass of a request for several servers is one single request more."""
    scheduler = bench.scheduler(ours=False)
    scheduler.enough_s = 0.0
    for asked in bench.flavors:
        many = bench.ask(scheduler, asked, SERVERS)
        _print_many(f"{asked.name} without ours", many)
        bench.stock[asked.name, SERVERS] = [many]
        single = bench.stock[asked.name, 1] = [Times(1, passes=many.passes[:1])]
        while len(single) < 3 and single[0].whole.wall < bench.options.once:
            single.append(bench.ask(scheduler, asked))
            report.progress(f"{asked.name} without ours: {_ms(single[-1].whole)}")
    _note_extrapolated(bench, "stock_extrapolated", bench.stock)
    bench.notes["stock_runs"] = {
        name: len(each) for (name, servers), each in bench.stock.items() if servers == 1
    }
    limited = [bench.ask(scheduler, asked, limit=DEFAULT_LIMIT).whole for asked in bench.flavors]
    return {
        **_median("stock", _by_flavor(bench.stock, 1)),
        **_median(f"stock_{SERVERS}", _by_flavor(bench.stock, SERVERS)),
        **_median("stock_default_limit", limited),
    }


def by_flavor(bench: Bench) -> Figures:
    """Medians of each flavor and number of servers, as far as they were asked for."""
    measured: dict[str, dict[tuple[str, int], list[Span]]] = {
        "ours": {key: [t.ours_whole for t in each] for key, each in bench.ours.items()},
        "whole": {key: [t.whole for t in each] for key, each in bench.ours.items()},
        "stock": {key: [t.whole for t in each] for key, each in bench.stock.items()},
    }
    found: Figures = {}
    for figure, kinds in measured.items():
        for (flavor, servers), spans in kinds.items():
            many = "" if servers == 1 else f"_{servers}"
            found |= _median(f"{figure}{many}", spans, f"_{flavor_key(flavor)}")
    return found


def ratios(bench: Bench) -> Figures:
    """The whole with ours by the whole without, by flavor and number of servers."""
    found: dict[tuple[str, int], Span] = {}
    rows = []
    for key in bench.ours.keys() & bench.stock.keys():
        mine, novas = (_middle(t.whole for t in side[key]) for side in (bench.ours, bench.stock))
        found[key] = Span(mine.wall / novas.wall, mine.cpu / novas.cpu)
    for flavor in bench.flavors:
        for servers in (1, SERVERS):
            key = (flavor.name, servers)
            if key not in found:
                continue
            ours, whole, novas = (
                _middle(spans)
                for spans in (
                    [t.ours_whole for t in bench.ours[key]],
                    [t.whole for t in bench.ours[key]],
                    [t.whole for t in bench.stock[key]],
                )
            )
            each = [1e3 * s for s in (ours.wall, ours.cpu, whole.wall, novas.wall)]
            rows.append((flavor.name, servers, *each, found[key].wall, found[key].cpu))
    if not rows:
        return {}
    report.table(
        ("flavor", "servers", "ours ms", "ours cpu ms", "whole ms", "stock ms", "ratio", "by cpu"),
        rows,
    )
    return {
        "whole_ratio_median": statistics.median(span.wall for span in found.values()),
        "whole_ratio_worst": max(span.wall for span in found.values()),
        "whole_ratio_cpu_median": statistics.median(span.cpu for span in found.values()),
        "whole_ratio_cpu_worst": max(span.cpu for span in found.values()),
    }


def full_fleet(bench: Bench) -> Figures:
    """A cloud nearly sold out: what Placement offers fits hardly any host."""
    other = Bench(Cloud(bench.options.hosts, 2, min(FITTING, bench.options.hosts)), bench.options)
    settle()
    scheduler = other.scheduler(ours=True)
    spans, none = [], 0
    for number in range(_FULL * len(bench.flavors)):
        asked = bench.flavors[number % len(bench.flavors)]
        times = other.ask(scheduler, asked)
        spans.append(times.ours_whole)
        none += not times.selected
        report.progress(
            f"full, {asked.name}: ours {_ms(times.ours_whole)}, whole {_ms(times.whole)}, "
            f"{times.passed} hosts pass ours, selected {', '.join(times.selected) or 'none'}"
        )
    bench.notes["full_fleet"] = {"hosts_with_room": FITTING, "requests_without_host": none}
    return _median("ours", spans, "_full_fleet")


def memory(bench: Bench) -> Figures:
    """What a thread keeps when its request is over."""
    scheduler, sizes, end = bench.scheduler(ours=True), [], threading.Event()
    bench.ask(scheduler, bench.flavors[0])
    tracemalloc.start()
    threads = []
    for number in range(1 + THREADS):
        done = threading.Event()

        def work(number: int = number, done: threading.Event = done) -> None:
            scheduler.schedule(10**6 + number, bench.flavors[0])
            done.set()
            end.wait()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        done.wait()
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    end.set()
    for thread in threads:
        thread.join()
    return {"kept_mb_per_thread": (sizes[-1] - sizes[0]) / THREADS / 1e6}


def view(bench: Bench) -> Figures:
    """What the view of Placement costs each worker of a controller."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "fleet"
        arrays = bench.cloud.snapshot().arrays
        SnapshotWriter(path).write(arrays, 1, boot_time_s())
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.view_worker", str(path)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return {
            "view_mb_per_worker": float(answer.split()[0]),
            "view_mb_shared": path.stat().st_size / 1e6,
        }


def copies(bench: Bench) -> Figures:
    """What nova does before its first filter: HostStates from the rows of its database, candidates copied for each."""
    sample = min(300, bench.options.hosts)
    pairs = list(bench.cloud.computes(sample))
    began = now()
    for compute, state in pairs:
        made = host_manager.HostState(state.host, state.nodename, state.cell_uuid)
        made.update(compute, {}, state.aggregates, state.instances)
    each = (now() - began) * (1 / sample)
    bench.notes["copies"] = f"HostStates of {sample} hosts, times {bench.options.hosts}"
    return {"host_states_s": each.wall * bench.options.hosts}


def regret(bench: Bench) -> Figures:
    """How much better than the host that nova took the best host of the whole fleet was, by the sum of all weighers."""
    CONF.set_override("pick_ttl", 0.0, our_conf.GROUP)  # each has picked others before
    # Without the shortlist our filter judges all hosts, as nova's slow filters would.
    every = bench.scheduler(ours=True, slow=False, shortlist=0)
    short = bench.scheduler(ours=True)
    found: list[float] = []
    until = now().wall + bench.options.regret
    for number in count():
        if now().wall > until and number >= len(bench.flavors):
            break
        asked = bench.flavors[number % len(bench.flavors)]
        bench.cloud.churn(CHURN)
        totals = every.schedule(10**7 + number, asked).totals
        chosen = short.schedule(10**7 + number, asked).selected
        if not totals or not chosen:
            continue
        found.append(max(totals.values()) - totals.get(chosen[0], -math.inf))
        report.progress(
            f"{asked.name}: {len(totals)} hosts, best {max(totals.values()):.3f}, regret {found[-1]:.4f}"
        )
    CONF.clear_override("pick_ttl", our_conf.GROUP)
    bench.notes["regret_samples"] = len(found)
    return {"regret_p99": _percentile(found, 0.99)}


def refused(bench: Bench) -> Figures:
    """Requests that a short list refuses though a host would have passed alone; our knowledge of hosts is stale.

    Nothing is timed here, so that each CPU has a part of the requests.
    """
    shares = os.cpu_count() or 1
    options = copy.copy(bench.options)
    options.refused = math.ceil(bench.options.refused / shares)
    with ProcessPoolExecutor(shares, multiprocessing.get_context("spawn")) as processes:
        found = list(processes.map(_refused_of, [options] * shares, range(3, 3 + shares)))
    refusals, asked_for, with_room = map(sum, zip(*found, strict=True))
    bench.notes["refused_of"] = {"requests": asked_for, "with_room": with_room, "hosts": _SMALL}
    return {"refused_by_shortlist": float(refusals)}


def _refused_of(options: Namespace, seed: int) -> tuple[int, int, int]:
    """Return the refusals, the requests, and those of them with room on a host, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        return _count_refusals(options, seed)


def _count_refusals(options: Namespace, seed: int) -> tuple[int, int, int]:
    chance = random.Random(seed)
    small = Bench(Cloud(_SMALL, seed), options)
    scheduler = small.scheduler(ours=True, shortlist=_SHORT)
    looks = {
        (number, fits): [small.cloud.look(number, fits=fits) for _ in range(_LOOKS)]
        for number in range(_SMALL)
        for fits in (True, False)
    }
    alone: dict[tuple[int, str], bool] = {}

    def passes(number: int, shown: Shown, asked: Flavor) -> bool:
        key = (id(shown), asked.name)
        if key not in alone:
            small.cloud.show({number: shown}, read=False)
            spec = request(0, asked)
            offered = small.cloud.offer(spec, asked)
            root = shown.view.root_uuid
            only = Offered({root: offered[root]}) if root in offered else Offered()
            alone[key] = bool(only) and bool(scheduler.select(spec, only).selected)
        return alone[key]

    refusals, asked_for, with_room = 0, 0, 0
    until = now().wall + options.refused_s
    for turn in range(options.refused):
        if now().wall > until:
            break
        asked = small.flavors[turn % len(small.flavors)]
        room = set(chance.sample(range(_SMALL), chance.randrange(_SHORT + 1)))
        shown = {n: chance.choice(looks[n, n in room]) for n in range(_SMALL)}
        expected = any(passes(n, each, asked) for n, each in shown.items())
        small.cloud.show(shown, read=turn % 10 == 0)
        spec = request(500 * turn, asked)
        selected = scheduler.select(spec, small.cloud.offer(spec, asked)).selected
        asked_for, with_room = asked_for + 1, with_room + expected
        refusals += expected and not selected
        if turn % 500 == 0:
            report.progress(f"{turn} requests: {with_room} with room somewhere, {refusals} refused")
    return refusals, asked_for, with_room


def creates(bench: Bench) -> Figures:
    """A whole create: Placement, by the result of bench-placement, then nova's copies, its handlers and ours."""
    if bench.options.placement is None:
        bench.notes["create_s"] = "needs --placement FILE: the result of make bench-placement"
        return {}
    placement = json.loads(bench.options.placement.read_text())
    host_state_s = copies(bench)["host_states_s"] / bench.options.hosts
    found: Figures = {}
    for setting, ours in (("default", False), ("recommended", True)):
        scheduler = bench.scheduler(ours=ours)
        limit = placement["source"]["settings"][setting]["limit"]
        for flavor in _CREATED:
            name = flavor_key(flavor)
            asked = next(each for each in bench.flavors if each.name == flavor)
            spec = request(10**8, asked)
            offered = bench.cloud.offer(spec, asked).limited(limit, random.Random(4))
            began = now()
            copy.deepcopy([list(candidates) for candidates in offered.values()])
            copied = (now() - began).wall + len(offered) * host_state_s
            handlers = scheduler.select(spec, offered).whole.wall
            asking = placement["figures"][f"create_s_{name}_{setting}"]
            found[f"create_s_{name}_{setting}"] = asking + copied + handlers
            report.progress(
                f"{flavor}, {setting}: Placement {asking:.1f} s, copies {copied:.1f} s, handlers {handlers:.1f} s"
            )
    return found


PARTS: dict[str, Callable[[Bench], Figures]] = {
    "single": ours_single,
    "many": ours_many,
    "stock": stock,
    "ratios": ratios,
    "full": full_fleet,
    "memory": memory,
    "view": view,
    "copies": copies,
    "regret": regret,
    "refused": refused,
    "creates": creates,
}


def profile(bench: Bench) -> None:
    """Show where the time of nova's scheduler with our plug-ins goes, by flavor."""
    scheduler = bench.scheduler(ours=True)
    bench.ask(scheduler, bench.flavors[0])
    for asked in bench.flavors:
        bench.cloud.churn(CHURN)
        profiler = cProfile.Profile()
        profiler.runcall(scheduler.schedule, 10**6, asked)
        report.progress(f"--- {asked.name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


def settle() -> None:
    """Keep the fleet out of the garbage collector's sight, as it is when nova has just made all HostStates."""
    gc.collect()
    gc.freeze()


def _ms(span: Span) -> str:
    return f"{span.wall * 1e3:.0f} ms (processor {span.cpu * 1e3:.0f})"


def flavor_key(name: str) -> str:
    """A flavor's name as part of a figure's."""
    return name.lower().replace(" ", "_").replace("-", "_")


def _print_many(what: str, times: Times) -> None:
    report.progress(
        f"{what}, {SERVERS} at once: {_ms(times.whole)}, passes "
        f"{', '.join(f'{span.wall * 1e3:.0f}' for span in times.passes[:4])}…"
        + (", the rest extrapolated" if times.extrapolated else "")
    )


def _note_extrapolated(bench: Bench, name: str, kind: dict[tuple[str, int], list[Times]]) -> None:
    bench.notes[name] = sorted(
        {flavor for (flavor, _), each in kind.items() if any(times.extrapolated for times in each)}
    )


def _flat(kind: dict[tuple[str, int], list[Times]], servers: int) -> list[Times]:
    return [times for key, each in kind.items() if key[1] == servers for times in each]


def _by_flavor(kind: dict[tuple[str, int], list[Times]], servers: int) -> list[Span]:
    """The middle of each flavor: some are asked for more often than others."""
    return [
        _middle(times.whole for times in each) for key, each in kind.items() if key[1] == servers
    ]


def _middle(spans: Iterable[Span]) -> Span:
    each = list(spans)
    return Span(statistics.median(s.wall for s in each), statistics.median(s.cpu for s in each))


def _median(figure: str, spans: Sequence[Span], suffix: str = "") -> Figures:
    middle = _middle(spans)
    return {
        f"{figure}_ms_median{suffix}": middle.wall * 1e3,
        f"{figure}_cpu_ms_median{suffix}": middle.cpu * 1e3,
    }


def _percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def summary(figures: Figures) -> None:
    """Print goals beside figures."""
    report.table(
        ("figure", "measured", "goal", ""),
        [
            (name, figures[name], f"<= {goal:g}", "pass" if figures[name] <= goal else "MISS")
            for name, goal in _GOALS.items()
            if name in figures
        ],
    )


def prepare(directory: Path) -> None:
    """Configure nova as its scheduler would be, with a journal in ``directory``."""
    objects.register_all()
    logging.disable(logging.INFO)
    our_conf.register_opts(CONF)
    CONF([], project="nova", default_config_files=[])
    CONF.set_override("service_down_time", 10**9)  # hosts stay up however long this takes
    CONF.set_override("journal_path", str(directory / "decisions.jsonl"), our_conf.GROUP)


def run(options: Namespace) -> tuple[Figures, dict[str, Any]]:
    """Run the parts; returns figures and what to know about them."""
    bench = Bench(Cloud(options.hosts, 1), options)
    settle()
    if options.profile:
        profile(bench)
        return {}, {}
    figures: Figures = {"hosts": float(options.hosts)}
    seconds = {}
    for name in options.part or PARTS:
        report.progress(f"-- {name}")
        began = now()
        figures |= PARTS[name](bench)
        seconds[name] = round((now() - began).wall, 1)
    bench.notes["part_s"] = seconds
    figures |= {"run_s": sum(seconds.values()), **by_flavor(bench)}
    summary(figures)
    return figures, bench.notes


def main() -> None:
    """Run all parts and report."""
    options = report.parser(__doc__)
    options.add_argument("--hosts", type=int, default=int(os.environ.get("HOSTS", "10000")))
    options.add_argument("--requests", type=int, default=int(os.environ.get("REQUESTS", "200")))
    options.add_argument("--part", action="append", choices=PARTS, help="only this part")
    options.add_argument("--flavor", action="append", choices=[f.name for f in FLAVORS])
    options.add_argument("--profile", action="store_true", help="show where the time goes instead")
    options.add_argument(
        "--enough", type=float, default=20.0, help="extrapolate a multi-create after these seconds"
    )
    options.add_argument(
        "--once", type=float, default=60.0, help="do not repeat what takes stock nova this long"
    )
    options.add_argument(
        "--regret", type=float, default=90.0, help="seconds for as many samples of regret"
    )
    options.add_argument("--refused", type=int, default=10_000, help="requests to short lists")
    options.add_argument("--refused-s", type=float, default=300.0, help="seconds for them at most")
    options.add_argument(
        "--placement",
        type=Path,
        default=os.environ.get("PLACEMENT"),
        help="result of bench-placement, for the time of whole creates",
    )
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        prepare(Path(directory))
        figures, notes = run(arguments)
    if figures:
        source = {
            "seeds": [1, 2],
            "requests": arguments.requests,
            "churn": CHURN,
            "servers": SERVERS,
            "flavors": {flavor.name: flavor_key(flavor.name) for flavor in FLAVORS},
            "load_average": os.getloadavg()[0],
            **notes,
        }
        rounded = {name: round(value, 4) for name, value in figures.items()}
        report.finish("scheduler", "measured", rounded, source, arguments.json)


if __name__ == "__main__":
    main()
