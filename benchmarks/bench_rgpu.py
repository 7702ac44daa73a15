# SPDX-License-Identifier: Apache-2.0
"""The link of remote GPUs: what it adds to plain TCP, and to a relay that only copies

Three ways lead from a client to a server, in the same run, one after the other in each round: loopback TCP; a bare
relay over the same three hops (TCP, Unix socket, TCP, TCP), without TLS and without resume; and the link, guest,
doorman and gateway in processes of their own, TLS 1.3 between the last two. Unix sockets stand for vsock, and a server
that takes and sends bytes for that of a GPU's transport. All processes share the machine: with more of them than cores,
what is measured is processor time.
"""

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.link_certificates import write_certificates

TENANTS: Final = (1, 2, 4, 6)
WAYS: Final = ("plain", "relay", "link")
COMPUTE, GPU = "compute1", "gpu1"
FIRST_CID: Final = 3
STARTS_S: Final = 20.0
_START_FIELD: Final = 19  # of /proc/PID/stat, after the name
GOALS: Final[Mapping[str, tuple[str, float]]] = {
    "latency_over_plain_us": ("≤", 60),
    "bandwidth_share_1mib": ("≥", 0.5),
    "bandwidth_share_16mib": ("≥", 0.7),
    "relay_floor_share": ("≥", 0.85),
    "tenants_share_least": ("≥", 0.85),
}


@dataclass
class LinkWorld:
    """Servers, relays and links for some tenants.

    :param folder: for sockets, certificates and the doorman's file
    :param programs: folder of the link's programs
    """

    folder: Path
    programs: Path
    ports: dict[str, list[int]] = field(default_factory=dict)


@contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program until the end of the block; what it logs of broken links at the end is of no interest."""
    with subprocess.Popen(
        [*map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def started(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program that prints a line when it serves; yield it with that line."""
    with running(*words) as process:
        yield process, process.stdout.readline().strip()


@contextmanager
def a_world(programs: Path, tenants: int) -> Iterator[LinkWorld]:
    """Yield all that so many tenants need, each of the three ways apart."""
    with ExitStack() as open_, tempfile.TemporaryDirectory(prefix="bench-rgpu-") as name:
        made = LinkWorld(Path(name), programs)
        load = made.programs / "load"
        servers = [
            open_.enter_context(started(load, "serve", "tcp:127.0.0.1:0")) for _ in range(tenants)
        ]
        made.ports["plain"] = [port(line) for _, line in servers]
        made.ports["relay"] = [
            bare_relay(open_, load, made.folder / f"relay-{number}", to)
            for number, to in enumerate(made.ports["plain"])
        ]
        made.ports["link"] = linked(open_, made, [process.pid for process, _ in servers])
        yield made


def port(address: str) -> int:
    """Return the port of ADDRESS:PORT."""
    return int(address.rpartition(":")[2])


def bare_relay(open_: ExitStack, load: Path, socket: Path, to: int) -> int:
    """Start three relays in a row; return the port of the first."""
    _, last = open_.enter_context(started(load, "relay", "tcp:127.0.0.1:0", f"tcp:127.0.0.1:{to}"))
    open_.enter_context(started(load, "relay", f"unix:{socket}", f"tcp:127.0.0.1:{port(last)}"))
    _, first = open_.enter_context(started(load, "relay", "tcp:127.0.0.1:0", f"unix:{socket}"))
    return port(first)


def linked(open_: ExitStack, world: LinkWorld, servers: Sequence[int]) -> list[int]:
    """Start a gateway and a guest for each server, and one doorman; return the ports in the guests."""
    program = world.programs / "numa-ext-rgpu"
    doors, gates = write_certificates(world.folder, COMPUTE, GPU)
    attachments, ports = [], []
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    for number, (to, server) in enumerate(zip(world.ports["plain"], servers, strict=True)):
        lease = f"00000000-0000-4000-8000-{number:012}"
        words = ("-lease", lease, "-listen", "127.0.0.1:0", "-ports", to, "-server", server)
        gateway = open_.enter_context(running(program, "gateway", *words, *gates))
        gateway.stdin.write(json.dumps({"epoch": 1, "client": COMPUTE}) + "\n")
        gateway.stdin.flush()
        address = json.loads(gateway.stdout.readline())["address"]
        ports.append(free_port())
        attachments.append(
            {
                "lease": lease,
                "epoch": 1,
                "cid": FIRST_CID + number,
                "pid": os.getpid(),
                "started": int(stat[_START_FIELD]),
                "host": GPU,
                "address": address,
                "mbps": 0,
                "port": ports[-1],
                "ports": 1,
            }
        )
    file, door = world.folder / "attachments.json", world.folder / "door"
    file.write_text(json.dumps({"attachments": attachments}))
    open_.enter_context(
        running(program, "doorman", "-listen", f"unix:{door}", "-attachments", file, *doors)
    )
    for number in range(len(servers)):
        open_.enter_context(
            running(program, "guest", "-doorman", f"unix:{door}#{FIRST_CID + number}")
        )
    for each in ports:
        reached(each)
    return ports


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def reached(to: int) -> None:
    """Wait until a port takes connections."""
    until_s = time.monotonic() + STARTS_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", to)).close()
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
        else:
            return


def measured(world: LinkWorld, way: str) -> dict[str, float]:
    """Return what one way reaches now: the median round trip, µs, and MB/s of all tenants."""
    ran = subprocess.run(
        [world.programs / "load", "measure", *map(str, world.ports[way])],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def best(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the best of each figure: the least time, the most bandwidth."""
    return {
        name: (min if name.endswith("_us") else max)(each[name] for each in rounds)
        for name in rounds[0]
    }


def share(found: Mapping[str, Mapping[str, float]], way: str, size: str, of: str) -> float:
    """Return the bandwidth of a way as a part of another one's, mean of writing and reading."""
    names = (f"write_{size}", f"read_{size}")
    return statistics.mean(found[way][name] / found[of][name] for name in names)


def main() -> None:
    """Measure all ways, for one tenant and for several."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "--programs", type=Path, required=True, help="folder of the link's programs"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    shares, rows = [], []
    for tenants in TENANTS:
        report.progress(f"{tenants} tenants")
        with a_world(args.programs, tenants) as world:
            rounds = [{way: measured(world, way) for way in WAYS} for _ in range(args.rounds)]
        found = {way: best([each[way] for each in rounds]) for way in WAYS}
        for way in WAYS:
            sizes = ("write_1mib", "read_1mib", "write_16mib", "read_16mib")
            rows.append((tenants, way, found[way]["latency_us"], *(found[way][n] for n in sizes)))
        shares.append(share(found, "link", "16mib", "plain"))
        figures[f"share_16mib_{tenants}_tenants"] = shares[-1]
        if tenants == 1:
            plain_us = found["plain"]["latency_us"]
            figures["latency_over_plain_us"] = found["link"]["latency_us"] - plain_us
            figures["relay_over_plain_us"] = found["relay"]["latency_us"] - plain_us
            figures["bandwidth_share_1mib"] = share(found, "link", "1mib", "plain")
            figures["bandwidth_share_16mib"] = shares[-1]
            figures["relay_floor_share"] = share(found, "link", "16mib", "relay")
            figures["relay_share_16mib"] = share(found, "relay", "16mib", "plain")
    figures["tenants_share_least"] = min(shares)
    columns = (
        "tenants",
        "way",
        "trip µs",
        "write 1 MiB",
        "read 1 MiB",
        "write 16 MiB",
        "read 16 MiB",
    )
    report.table(columns, rows)
    for name, (sign, goal) in GOALS.items():
        met = figures[name] <= goal if sign == "≤" else figures[name] >= goal
        report.progress(
            f"  {name} {figures[name]:.3g}, goal {sign} {goal:g}{'' if met else ': missed'}"
        )
    source = {
        "rounds": args.rounds,
        "processors": os.cpu_count(),
        "stand_ins": "Unix sockets for vsock, a server of bytes for a transport's",
        "goals": {name: f"{sign} {goal:g}" for name, (sign, goal) in GOALS.items()},
    }
    report.finish("rgpu", "measured", figures, source, args.json)


if __name__ == "__main__":
    main()
