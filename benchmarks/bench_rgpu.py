# SPDX-License-Identifier: Apache-2.0
"""The link of remote GPUs: what it adds to plain TCP, and to a relay that only copies

Three ways lead from a client to a server, in the same run, one after the other in each round: loopback TCP; a bare
relay over the same three hops (TCP, Unix socket, TCP, TCP), without TLS and without resume; and the link, guest,
doorman and gateway in processes of their own, TLS 1.3 between the last two. Unix sockets stand for vsock, and a server
that takes and sends bytes for that of a GPU's transport. All processes share the machine: with more of them than cores,
what is measured is processor time.

With ``--pocl`` the same three ways then lead programs of OpenCL to a ``pocld`` each, with a device on the processor and
the layer of slices in it: round trips of an empty kernel, copies, and tenants that copy at the same time. Each number
that comes back is compared. With ``--criu``, too, such a lease moves between two hosts while a program computes by it
(:mod:`.lease_moves`).
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

from benchmarks import lease_moves, report
from benchmarks.link_certificates import write_certificates
from host_agent.remote_gpu.lease_process import Ports
from host_agent.transports.pocl import PoclTransport
from host_agent.transports.transport import GpuServer
from placement_traits.errors import CapabilityMissingError

TENANTS: Final = (1, 2, 4, 6)
WAYS: Final = ("plain", "relay", "link")
SIZES: Final = ("write_1mib", "read_1mib", "write_16mib", "read_16mib")
COMPUTE, GPU = "compute1", "gpu1"
FIRST_CID: Final = 3
STARTS_S: Final = 60.0
ENDS_S: Final = 120.0
COPIES_S: Final = 3
WORKS_S: Final = 4
SLICE_MIB: Final = 512
VENDORS: Final = Path("/etc/OpenCL/vendors")
WRONG: Final = 3
"""How ``numa-rgpu-bench`` ends where a number is not what it should be."""

COUNTS: Final = ("wrong_results", "failed")
_START_FIELD: Final = 19  # of /proc/PID/stat, after the name
GOALS: Final[Mapping[str, tuple[str, float]]] = {
    "latency_over_plain_us": ("≤", 60),
    "bandwidth_share_1mib": ("≥", 0.5),
    "bandwidth_share_16mib": ("≥", 0.7),
    "relay_floor_share": ("≥", 0.85),
    "tenants_share_least": ("≥", 0.85),
}
POCL_GOALS: Final[Mapping[str, tuple[str, float]]] = {
    **{f"pocl_{name}": goal for name, goal in GOALS.items()},
    "neighbour_worst_ratio": ("≤", 2),
    "wrong_results": ("≤", 0),
    "failed": ("≤", 0),
}
MOVES_GOALS: Final[Mapping[str, tuple[str, float]]] = {
    f"pause_s_{mib}_mib": ("≤", lease_moves.goal_s(mib)) for mib in lease_moves.MIBS
}


@dataclass(frozen=True)
class Pocl:
    """What ``lab pocl`` has built.

    :param server: ``pocld``
    :param vendors: folder that names the client's library
    :param layer: that keeps slices
    :param bench: ``numa-rgpu-bench``
    """

    server: Path
    vendors: Path
    layer: Path
    bench: Path


@dataclass
class LinkWorld:
    """Servers, relays and links for some tenants.

    :param folder: for sockets, certificates and the doorman's file
    :param programs: folder of the link's programs
    :ivar ports: first port of each tenant, by way
    :ivar width: consecutive ports of a tenant
    """

    folder: Path
    programs: Path
    ports: dict[str, list[int]] = field(default_factory=dict)
    width: int = 1


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
        lead(open_, made, [process.pid for process, _ in servers])
        yield made


@contextmanager
def a_pocl_world(programs: Path, pocl: Pocl, tenants: int) -> Iterator[LinkWorld]:
    """Yield all that so many tenants of OpenCL need, each of the three ways apart."""
    with ExitStack() as open_, tempfile.TemporaryDirectory(prefix="bench-rgpu-") as name:
        made = LinkWorld(Path(name), programs, width=2)
        servers = [
            open_.enter_context(pocl_server(pocl, made.folder / f"pocld-{number}"))
            for number in range(tenants)
        ]
        made.ports["plain"] = [to for _, to in servers]
        lead(open_, made, [process.pid for process, _ in servers])
        yield made


@contextmanager
def pocl_server(
    pocl: Pocl, folder: Path, vendors: Path = VENDORS, gpu: str = "cpu"
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a ``pocld`` on the device that a folder names; yield it with its first port.

    :param gpu: as the driver selects it
    """
    transport = PoclTransport(pocl.server, pocl.layer, vendors)
    folder.mkdir()
    with ExitStack() as open_:
        ports = open_.enter_context(Ports(2))
        asked = GpuServer(folder.name, gpu, SLICE_MIB, ports[0], folder)
        command = transport.server_command(asked)
        process = subprocess.Popen(
            command.argv,
            env=dict(command.environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        open_.callback(lambda: (process.kill(), process.wait()))
        until_s = time.monotonic() + STARTS_S
        while subprocess.run(
            command.probe, cwd=folder, capture_output=True, check=False
        ).returncode:
            if time.monotonic() > until_s:
                raise SystemExit("pocld does not serve: is an OpenCL device here?")
            time.sleep(0.05)
        yield process, ports[0]


def lead(open_: ExitStack, world: LinkWorld, servers: Sequence[int]) -> None:
    """Lead two ways beside the plain one to servers.

    :param servers: their processes
    """
    ends = [Ports(world.width) for _ in servers]
    world.ports["relay"] = [open_.enter_context(each)[0] for each in ends]
    pairs = zip(world.ports["relay"], world.ports["plain"], strict=True)
    for first, to in pairs:
        for each in range(world.width):
            socket = world.folder / f"relay-{to + each}"
            bare_relay(open_, world.programs / "load", socket, first + each, to + each)
    world.ports["link"] = linked(open_, world, servers)


def port(address: str) -> int:
    """Return the port of ADDRESS:PORT."""
    return int(address.rpartition(":")[2])


def bare_relay(open_: ExitStack, load: Path, socket: Path, first: int, to: int) -> None:
    """Start three relays in a row, from one port to another."""
    _, last = open_.enter_context(started(load, "relay", "tcp:127.0.0.1:0", f"tcp:127.0.0.1:{to}"))
    open_.enter_context(started(load, "relay", f"unix:{socket}", f"tcp:127.0.0.1:{port(last)}"))
    open_.enter_context(started(load, "relay", f"tcp:127.0.0.1:{first}", f"unix:{socket}"))


def linked(open_: ExitStack, world: LinkWorld, servers: Sequence[int]) -> list[int]:
    """Start a gateway and a guest for each server, and one doorman; return the ports in the guests."""
    program = world.programs / "numa-ext-rgpu"
    doors, gates = write_certificates(world.folder, COMPUTE, GPU)
    attachments, ports = [], []
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    for number, (to, server) in enumerate(zip(world.ports["plain"], servers, strict=True)):
        lease = f"00000000-0000-4000-8000-{number:012}"
        inner = ",".join(str(to + each) for each in range(world.width))
        words = ("-lease", lease, "-listen", "127.0.0.1:0", "-ports", inner, "-server", server)
        gateway = open_.enter_context(running(program, "gateway", *words, *gates))
        gateway.stdin.write(json.dumps({"epoch": 1, "client": COMPUTE}) + "\n")
        gateway.stdin.flush()
        address = json.loads(gateway.stdout.readline())["address"]
        ports.append(open_.enter_context(Ports(world.width))[0])
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
                "ports": world.width,
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


def computing(pocl: Pocl, to: int, *words: object) -> subprocess.Popen[str]:
    """Start a program of OpenCL whose device is reached at a port of 127.0.0.1."""
    environment = {"OCL_ICD_VENDORS": str(pocl.vendors), "POCL_DEVICES": "remote"}
    environment["POCL_REMOTE0_PARAMETERS"] = f"127.0.0.1:{to}/0"
    return subprocess.Popen(
        [pocl.bench, *map(str, words)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def computed(pocl: Pocl, world: LinkWorld, way: str) -> dict[str, float]:
    """Return what one way reaches now for programs of OpenCL: round trips in µs, MB/s, and wrong results."""
    figures: dict[str, float] = {"wrong_results": 0, "failed": 0}
    if len(world.ports[way]) == 1:
        program = computing(pocl, world.ports[way][0])
        said, _ = program.communicate(timeout=ENDS_S)
        note_end(figures, program.returncode)
        if said:
            found = json.loads(said)
            figures |= {name: value for name, value in found.items() if name != "device"}
    programs = [computing(pocl, to, "-c", COPIES_S) for to in world.ports[way]]
    for each in programs:
        each.stdout.readline()
    for each in programs:  # all of them are ready
        each.stdin.write("\n")
        each.stdin.flush()
    ends = [each.communicate(timeout=ENDS_S)[0] for each in programs]
    for each in programs:
        note_end(figures, each.returncode)
    figures["together_mb_s"] = sum(json.loads(said)["mb_s"] for said in ends if said)
    return figures


def neighbour(pocl: Pocl, world: LinkWorld) -> dict[str, float]:
    """Return by how much the worst round of one lease gets longer while another one is attacked by its own guest.

    The attacker asks for twice its slice, and for ten thousand buffers of a byte, again and again.
    """
    quiet, beside = world.ports["link"]
    figures: dict[str, float] = {"wrong_results": 0, "failed": 0}
    worst = []
    for attacked in (False, True):
        program = computing(pocl, quiet, "-t", WORKS_S)
        program.stdout.readline()
        while attacked and program.poll() is None:
            for words in (("-a", 2 * SLICE_MIB << 20, "-n", 1), ("-a", 1, "-n", 10_000)):
                attacker = computing(pocl, beside, *words)
                attacker.communicate(timeout=ENDS_S)
                note_end(figures, attacker.returncode)
        said, _ = program.communicate(timeout=ENDS_S)
        note_end(figures, program.returncode)
        worst.append(json.loads(said)["worst_s"] if said else float("inf"))
    return figures | {"neighbour_worst_ratio": worst[1] / worst[0]}


def note_end(figures: dict[str, float], status: int) -> None:
    """Count a program that has not ended as it should."""
    figures["wrong_results"] += status == WRONG
    figures["failed"] += status not in (0, WRONG)


def best(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the best of each figure, the least time and the most bandwidth; of counts, the sum."""
    names = dict.fromkeys(name for each in rounds for name in each)
    return {
        name: (sum if name in COUNTS else min if name.endswith("_us") else max)(
            each[name] for each in rounds if name in each
        )
        for name in names
    }


def share(found: Mapping[str, Mapping[str, float]], way: str, size: str, of: str) -> float:
    """Return the bandwidth of a way as a part of another one's, mean of writing and reading."""
    names = (f"write_{size}", f"read_{size}")
    return statistics.mean(found[way][name] / found[of][name] for name in names)


def bytes_figures(programs: Path, rounds: int) -> dict[str, float]:
    """Measure all ways of bytes, for one tenant and for several."""
    figures: dict[str, float] = {}
    shares, rows = [], []
    for tenants in TENANTS:
        report.progress(f"{tenants} tenants")
        with a_world(programs, tenants) as world:
            ran = [{way: measured(world, way) for way in WAYS} for _ in range(rounds)]
        found = {way: best([each[way] for each in ran]) for way in WAYS}
        for way in WAYS:
            rows.append((tenants, way, found[way]["latency_us"], *(found[way][n] for n in SIZES)))
        shares.append(share(found, "link", "16mib", "plain"))
        figures[f"share_16mib_{tenants}_tenants"] = shares[-1]
        if tenants == 1:
            figures |= of_one(found)
    figures["tenants_share_least"] = min(shares)
    report.table(("tenants", "way", "trip µs", *(name.replace("_", " ") for name in SIZES)), rows)
    return figures


def of_one(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the figures of one tenant."""
    plain_us = found["plain"]["latency_us"]
    return {
        "latency_over_plain_us": found["link"]["latency_us"] - plain_us,
        "relay_over_plain_us": found["relay"]["latency_us"] - plain_us,
        "bandwidth_share_1mib": share(found, "link", "1mib", "plain"),
        "bandwidth_share_16mib": share(found, "link", "16mib", "plain"),
        "relay_floor_share": share(found, "link", "16mib", "relay"),
        "relay_share_16mib": share(found, "relay", "16mib", "plain"),
    }


def pocl_figures(programs: Path, pocl: Pocl, rounds: int) -> dict[str, float]:
    """Measure all ways of programs of OpenCL, for one tenant and for several."""
    figures: dict[str, float] = dict.fromkeys(COUNTS, 0)
    shares, rows = [], []
    for tenants in TENANTS:
        report.progress(f"{tenants} tenants of OpenCL")
        with a_pocl_world(programs, pocl, tenants) as world:
            ran = [{way: computed(pocl, world, way) for way in WAYS} for _ in range(rounds)]
        found = {way: best([each[way] for each in ran]) for way in WAYS}
        for way in WAYS:
            one = [found[way].get(name, "") for name in ("latency_us", *SIZES)]
            rows.append((tenants, way, *one, found[way]["together_mb_s"]))
            for name in COUNTS:
                figures[name] += found[way][name]
        shares.append(found["link"]["together_mb_s"] / found["plain"]["together_mb_s"])
        figures[f"pocl_share_{tenants}_tenants"] = shares[-1]
        if tenants == 1:
            figures |= {f"pocl_{name}": value for name, value in of_one(found).items()}
    figures["pocl_tenants_share_least"] = min(shares)
    report.progress("a neighbour under attack")
    with a_pocl_world(programs, pocl, 2) as world:
        attacks = [neighbour(pocl, world) for _ in range(rounds)]
    figures["neighbour_worst_ratio"] = statistics.median(
        each["neighbour_worst_ratio"] for each in attacks
    )
    for name in COUNTS:
        figures[name] += sum(each[name] for each in attacks)
    names = (name.replace("_", " ") for name in SIZES)
    report.table(("tenants", "way", "trip µs", *names, "together"), rows)
    return figures


def moves_figures(programs: Path, pocl: Pocl, criu: Path, rounds: int) -> dict[str, float]:
    """Measure how long programs wait while their lease moves; nothing where no lease can be kept apart here."""
    figures: dict[str, float] = dict.fromkeys(COUNTS, 0)
    files = {"program": pocl.server, "layer": pocl.layer}

    def start(to: int, *words: object) -> subprocess.Popen[str]:
        return computing(pocl, to, *words)

    try:
        with lease_moves.a_moving_lease(programs / "numa-ext-rgpu", criu, files, running) as lease:
            reached(lease.port)
            for mib in lease_moves.MIBS:
                report.progress(f"moves of {mib} MiB")
                found = []
                for _ in range(rounds):
                    took_s, status = lease_moves.waited_s(lease, start, mib)
                    found.append(took_s)
                    note_end(figures, status)
                figures[f"pause_s_{mib}_mib"] = min(found)
                figures[f"pause_s_{mib}_mib_worst"] = max(found)
    except CapabilityMissingError as error:
        report.progress(f"no lease moves: {error}")
    return figures


def main() -> None:
    """Measure all ways, for one tenant and for several."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "--programs", type=Path, required=True, help="folder of the link's programs"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument(
        "--pocl",
        type=Path,
        nargs=4,
        metavar=("SERVER", "VENDORS", "LAYER", "BENCH"),
        help="what lab pocl prints; without it, no program of OpenCL runs",
    )
    parser.add_argument(
        "--criu", type=Path, help="what lab criu prints; without it or --pocl, no lease moves"
    )
    parser.add_argument("--only-moves", action="store_true", help="measure nothing but moves")
    args = parser.parse_args()
    if args.only_moves and not (args.pocl and args.criu):
        parser.error("--only-moves needs --pocl and --criu")
    figures: dict[str, float] = {}
    goals: dict[str, tuple[str, float]] = {}
    if not args.only_moves:
        figures |= bytes_figures(args.programs, args.rounds)
        goals |= GOALS
    if args.pocl and not args.only_moves:
        figures |= pocl_figures(args.programs, Pocl(*args.pocl), args.rounds)
        goals |= POCL_GOALS
    if args.pocl and args.criu:
        moved = moves_figures(args.programs, Pocl(*args.pocl), args.criu, args.rounds)
        figures |= {name: figures.get(name, 0) + value for name, value in moved.items()}
        counts = {name: POCL_GOALS[name] for name in COUNTS}
        goals |= counts | {name: goal for name, goal in MOVES_GOALS.items() if name in figures}
    for name, (sign, goal) in goals.items():
        met = figures[name] <= goal if sign == "≤" else figures[name] >= goal
        report.progress(
            f"  {name} {figures[name]:.3g}, goal {sign} {goal:g}{'' if met else ': missed'}"
        )
    source = {
        "rounds": args.rounds,
        "processors": os.cpu_count(),
        "stand_ins": "Unix sockets for vsock, a server of bytes for a transport's; OpenCL on the processor for a GPU's",
        "goals": {name: f"{sign} {goal:g}" for name, (sign, goal) in goals.items()},
    }
    report.finish("rgpu", "measured", figures, source, args.json)


if __name__ == "__main__":
    main()
