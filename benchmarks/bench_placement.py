# SPDX-License-Identifier: Apache-2.0
"""What a create costs in Placement, and how much of the fleet it sees, by settings of nova and Placement

The real Placement over a MariaDB of its own, filled with what agents and nova-compute publish, answers the queries
that nova-scheduler makes for flavors. Nova asks for at most ``[scheduler]max_placement_results`` *candidates*, and a
host with several L3 domains or GPUs has several. ``share_of_fleet_seen`` is the share of the hosts that fit of which at
least one candidate comes back; ``right_candidate_share`` is the share of those *seen* hosts of which the candidate
comes back that nova-compute will really use: the L3 domain where it will pin, GPUs that are linked. A query that takes
longer than two minutes is a result, too. The machine may be shared: times on the clock are upper bounds, and the two
minutes are processor time of Placement and its database, which work one after the other.
"""

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import requests

from benchmarks import report
from benchmarks.mariadb import Database, create, mariadb
from benchmarks.placement_on_mariadb import GPU_CLASS, KINDS, Kind, root_uuid
from placement_traits.client import MICROVERSION
from placement_traits.errors import NumaExtError
from placement_traits.names import TierTrait
from placement_traits.nova_conf import RIGHT_HOSTS

TIMEOUT_S = 120.0
_LOOK_S = 0.05
_HOST = {"required": f"!COMPUTE_STATUS_DISABLED,{TierTrait.LC}"}
_CPU = "PCPU:2,MEMORY_MB:2048"
_UNLIMITED = 10**6


@dataclass(frozen=True)
class Setting:
    """How nova and Placement are configured.

    :param limit: ``[scheduler]max_placement_results``
    :param most: ``[placement]max_allocation_candidates``
    :param strategy: ``[placement]allocation_candidates_generation_strategy``
    :param wide: ``[workarounds]optimize_for_wide_provider_trees``
    :param randomize: ``[placement]randomize_allocation_candidates``
    """

    limit: int = 1000
    most: int = -1
    strategy: str = "depth-first"
    wide: bool = False
    randomize: bool = False

    @property
    def options(self) -> dict[str, dict[str, object]]:
        """Those of Placement."""
        return {
            "placement": {
                "max_allocation_candidates": self.most,
                "allocation_candidates_generation_strategy": self.strategy,
                "randomize_allocation_candidates": self.randomize,
            },
            "workarounds": {"optimize_for_wide_provider_trees": self.wide},
        }


def settings(kind: Kind) -> dict[str, Setting]:
    """What is tried on a fleet of such hosts; the first is the default, the last is what we recommend."""
    breadth = "breadth-first"
    return {
        "default": Setting(),
        "all candidates": Setting(limit=_UNLIMITED),
        "wide trees": Setting(wide=True),
        "random": Setting(randomize=True),
        "at most 1000": Setting(most=1000),
        "at most 1000, breadth-first": Setting(most=1000, strategy=breadth),
        "breadth-first, wide trees": Setting(strategy=breadth, wide=True),
        "recommended": Setting(
            limit=min(8000, max(1000, RIGHT_HOSTS * math.perm(kind.domains, 2))),
            most=100_000,
            strategy=breadth,
            wide=True,
            randomize=True,
        ),
    }


@dataclass(frozen=True)
class Asked:
    """A flavor as nova asks Placement for it.

    :param query: without the limit
    :param right: (kind, host number, random source) -> providers of one right candidate, by group, several ways
    """

    query: dict[str, str]
    right: Callable[[Kind, int, random.Random], set[tuple[str, ...]]]


def _anywhere(_kind: Kind, _host: int, _random: random.Random) -> set[tuple[str, ...]]:
    return {()}


def _one_domain(kind: Kind, host: int, source: random.Random) -> set[tuple[str, ...]]:
    return {(kind.domain_uuid(host, source.randrange(kind.domains)),)}


def _two_domains(kind: Kind, host: int, source: random.Random) -> set[tuple[str, ...]]:
    first, second = source.sample(range(4), 2)
    a, b = (
        source.choice([d for d in range(kind.domains) if kind.node(d) == node])
        for node in (first, second)
    )
    return {(kind.domain_uuid(host, a), kind.domain_uuid(host, b))}


def _near_gpu(kind: Kind, host: int, source: random.Random) -> set[tuple[str, ...]]:
    node = source.choice(sorted({kind.gpu_node(gpu) for gpu in range(kind.gpus)}))
    return {(kind.gpu_uuid(host, gpu),) for gpu in range(kind.gpus) if kind.gpu_node(gpu) == node}


def _linked_gpus(kind: Kind, host: int, _random: random.Random) -> set[tuple[str, ...]]:
    half = kind.gpus // 2
    halves = (range(half), range(half, kind.gpus))
    return {
        each
        for gpus in halves
        for each in itertools.permutations([kind.gpu_uuid(host, gpu) for gpu in gpus])
    }


def _gpus(count: int) -> dict[str, str]:
    request = uuid.UUID(int=1)
    groups = {f"resources_{request}-{number}": f"{GPU_CLASS}:1" for number in range(count)}
    return {"resources": _CPU, **_HOST, **groups, "group_policy": "none"}


FLAVORS: dict[str, Asked] = {
    "be": Asked({"resources": _CPU, **_HOST}, _anywhere),
    "lc_one_node": Asked(
        {
            "resources": f"{_CPU},CUSTOM_RDT_CLOS:1",
            **_HOST,
            "resources_NODE": "CUSTOM_LLC_WAY:2",
        },
        _one_domain,
    ),
    "lc_two_nodes": Asked(
        {
            "resources": f"{_CPU},CUSTOM_RDT_CLOS:1",
            **_HOST,
            "resources_N0": "CUSTOM_LLC_WAY:2",
            "resources_N1": "CUSTOM_LLC_WAY:2",
            "group_policy": "isolate",
        },
        _two_domains,
    ),
    "one_gpu": Asked(_gpus(1), _near_gpu),
    "four_gpus": Asked(_gpus(4), _linked_gpus),
}
# Kinds of host that are not asked with all settings: what generates as many candidates as the default takes as long.
TRIED = {
    "8 L3 domains": ("default", "at most 1000, breadth-first", "recommended"),
    "24 L3 domains": ("default", "at most 1000, breadth-first", "recommended"),
    "8 GPUs": ("default", "wide trees", "at most 1000, breadth-first", "recommended"),
}
LARGE = "4 L3 domains"
ASKED = {
    "4 L3 domains": ("be", "lc_one_node", "lc_two_nodes"),
    "8 L3 domains": ("lc_one_node", "lc_two_nodes"),
    "24 L3 domains": ("lc_one_node", "lc_two_nodes"),
    "8 GPUs": ("one_gpu", "four_gpus"),
}


@dataclass
class Answer:
    """What came back.

    :param seconds: on the clock
    :param cpu_s: processor time of Placement and its database
    :param lost: it took too long
    :param candidates: that came
    :param seen: share of the hosts of which a candidate came
    :param right: share of those of which the right candidate came
    """

    kind: str
    hosts: int
    setting: str
    flavor: str
    seconds: float
    cpu_s: float
    lost: bool
    candidates: int = 0
    mb: float = 0.0
    seen: float = 0.0
    right: float = 0.0


@dataclass(frozen=True)
class Reply:
    """What came back.

    :param seconds: on the clock
    :param cpu_s: processor time of Placement and its database
    :param found: Placement's answer; None when it took too long
    :param octets: of the answer
    """

    seconds: float
    cpu_s: float
    found: Any = None
    octets: int = 0


class Placement:
    """One Placement with one fleet.

    :param url: of its database
    :param database: the database's process
    """

    def __init__(self, url: str, database: int) -> None:
        self._url = url
        self._database = database
        self._setting: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        command = [
            *(sys.executable, "-W", "ignore"),
            *("-m", "benchmarks.placement_on_mariadb", self._url),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())

    def command(self, command: dict[str, Any]) -> str:
        """Let it do something besides answering queries."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return [self._process.stdout.readline() for _ in command][-1].strip()

    def configure(self, setting: Setting) -> None:
        """Change its configuration."""
        self._setting = dict(setting.options)
        self.command(self._setting)

    def candidates(self, query: dict[str, str], limit: int) -> "Reply":
        """Ask as nova does."""
        before, began = self._processor_s(), time.perf_counter()
        replies: list[requests.Response] = []
        asking = threading.Thread(target=self._get, args=(query, limit, replies), daemon=True)
        asking.start()
        while asking.is_alive():
            asking.join(_LOOK_S)
            if self._processor_s() - before > TIMEOUT_S:
                break
        took = Reply(time.perf_counter() - began, self._processor_s() - before)
        if not replies:
            self.stop()
            self._start()
            self.command(self._setting)
            return took
        if not replies[0].ok:
            raise NumaExtError(f"Placement answers {replies[0].status_code}: {replies[0].text}")
        return replace(took, found=replies[0].json(), octets=len(replies[0].content))

    def _get(self, query: dict[str, str], limit: int, replies: list[requests.Response]) -> None:
        with suppress(requests.RequestException):
            replies.append(
                requests.get(
                    f"http://127.0.0.1:{self._port}/allocation_candidates",
                    params={**query, "limit": str(limit)},
                    headers={"X-Auth-Token": "admin", "OpenStack-API-Version": MICROVERSION},
                    timeout=None,
                )
            )

    def _processor_s(self) -> float:
        """What Placement and its database have computed so far."""
        ticks = 0
        for pid in (self._process.pid, self._database):
            with suppress(FileNotFoundError):
                ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().split()[13:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()


@dataclass
class Fleet:
    """A Placement full of hosts of one kind."""

    placement: Placement
    name: str
    hosts: int
    answers: list[Answer] = field(default_factory=list)

    def ask(self, setting_name: str, setting: Setting, flavor: str) -> Answer:
        """Measure one create."""
        reply = self.placement.candidates(FLAVORS[flavor].query, setting.limit)
        found = reply.found
        answer = Answer(
            self.name, self.hosts, setting_name, flavor, reply.seconds, reply.cpu_s, found is None
        )
        if found is not None:
            answer.candidates, answer.mb = len(found["allocation_requests"]), reply.octets / 1e6
            answer.seen, answer.right = self._shares(FLAVORS[flavor], found)
        self.answers.append(answer)
        shown = "no answer" if found is None else f"{answer.candidates} candidates"
        report.progress(
            f"{self.hosts} hosts, {self.name}, {setting_name}, {flavor}: {shown}, {reply.seconds:.2f} s "
            f"(processor {reply.cpu_s:.2f}), {answer.mb:.1f} MB, "
            f"{answer.seen:.0%} of the fleet seen, of {answer.right:.0%} of it the right candidate"
        )
        return answer

    def _shares(self, asked: Asked, found: dict[str, Any]) -> tuple[float, float]:
        kind = KINDS[self.name]
        number_of = {root_uuid(host): host for host in range(self.hosts)}
        offered: defaultdict[int, set[tuple[str, ...]]] = defaultdict(set)
        summaries = found["provider_summaries"]
        for candidate in found["allocation_requests"]:
            mappings = candidate["mappings"]
            root = summaries[mappings[""][0]]["root_provider_uuid"]
            groups = sorted(group for group in mappings if group)
            offered[number_of[root]].add(tuple(mappings[group][0] for group in groups))
        right = sum(
            not offered[host].isdisjoint(asked.right(kind, host, random.Random(host)))
            for host in offered
        )
        return len(offered) / self.hosts, right / len(offered)


@contextmanager
def filled(server: Database, name: str, hosts: int) -> Iterator[Fleet]:
    """A Placement with so many hosts of a kind."""
    database = f"placement_{abs(hash((name, hosts)))}"
    create(server, database)
    began = time.perf_counter()
    placement = Placement(server.url.format(database), server.pid)
    try:
        providers = placement.command({"fill": [name, hosts]})
        took = time.perf_counter() - began
        report.progress(f"-- {hosts} hosts with {name}, {providers} providers: {took:.0f} s")
        yield Fleet(placement, name, hosts)
    finally:
        placement.stop()


def measure(server: Database, name: str, hosts: int, tried: dict[str, Setting]) -> list[Answer]:
    """Ask for each flavor of a kind of host with each of the settings."""
    with filled(server, name, hosts) as fleet:
        for setting_name, setting in tried.items():
            fleet.placement.configure(setting)
            for flavor in ASKED[name]:
                fleet.ask(setting_name, setting, flavor)
        return fleet.answers


def figures(answers: list[Answer]) -> dict[str, float]:
    """The largest fleet of each flavor, with recommended and with default settings."""
    found: dict[str, float] = {}
    largest = {a.flavor: a.hosts for a in sorted(answers, key=lambda a: a.hosts)}
    for a in answers:
        if a.hosts != largest[a.flavor] or a.setting not in ("default", "recommended"):
            continue
        if f"create_s_{a.flavor}_{a.setting}" in found:  # its first kind of host only
            continue
        suffix = "" if a.setting == "recommended" else "_default"
        found |= {
            f"create_s_{a.flavor}_{a.setting}": a.seconds,
            f"create_cpu_s_{a.flavor}_{a.setting}": a.cpu_s,
            f"candidates_{a.flavor}{suffix}": float(a.candidates),
            f"share_of_fleet_seen_{a.flavor}{suffix}": a.seen,
            f"right_candidate_share_{a.flavor}{suffix}": a.right,
        }
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    """Measure all, print a table, report."""
    options = report.parser(__doc__)
    options.add_argument("--hosts", type=int, default=1000, help="with all settings; 0: none")
    options.add_argument(
        "--large", type=int, default=10_000, help="with default and recommended; 0: none"
    )
    options.add_argument("--kind", action="append", choices=KINDS, help="only this kind of host")
    options.add_argument(
        "--setting", action="append", choices=settings(KINDS[LARGE]), help="only this one"
    )
    arguments = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without ending the servers
    answers: list[Answer] = []
    with mariadb() as server:
        for name in (arguments.kind or KINDS) if arguments.hosts else ():
            every = settings(KINDS[name])
            chosen = arguments.setting or TRIED.get(name, every)
            tried = {each: every[each] for each in chosen}
            answers += measure(server, name, arguments.hosts, tried)
        if arguments.large:
            every = settings(KINDS[LARGE])
            tried = {name: every[name] for name in ("default", "recommended")}
            answers += measure(server, LARGE, arguments.large, tried)
    source = {
        "database": "MariaDB",
        "timeout_s": TIMEOUT_S,
        "settings": {n: asdict(s) for n, s in settings(KINDS[LARGE]).items()},
        "answers": [asdict(answer) for answer in answers],
    }
    report.finish("placement", "measured", figures(answers), source, arguments.json)


if __name__ == "__main__":
    main()
