# SPDX-License-Identifier: Apache-2.0
"""From a guest's report to the written bandwidth level, and what watching costs (native, measured)

Three latency-critical and three best-effort servers on this machine: a process each with threads, UNIX sockets for
their latency ports, the agent as it runs on a host in a process of its own, resctrl by FUSE. All guests report ten
times a second. Then one reports a violation; the tree notes when the level of a best-effort group falls. The servers
become well again, the controller climbs back, and so on. libvirt is only a list of domains here: the short way does
not touch it.

*slo_to_schemata* is the time from the guest's write to its socket until the level stands in the tree. A tree of the
kernel answers in microseconds where FUSE takes a fraction of a millisecond.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from emulation import libvirt_state, unix_sockets
from emulation.servers import BE_SPECS, LC_SPECS, Server
from host_agent.conf import configuration
from host_agent.control.assembly import agent as assembly
from host_agent.machine.libvirt import ListedDomain
from host_agent.model.workload import Activity

NAMESPACES: Final = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
SLO_US: Final = 1000
SERVERS: Final = 3
REPORT_S: Final = 0.1
PATIENCE_S: Final = 30.0
WELL: Final = "h 450:950 900:50\n"  # grey: nothing is given back on top
ILL: Final = "h 450:500 2000:500\n"
LC: Final = {
    **LC_SPECS,
    "numa_ext:slo_p99_us": str(SLO_US),
    "resources_NODE:CUSTOM_LLC_WAY": "2",
}
_PORT: Final = (
    "<controller type='virtio-serial' index='0'/><channel type='unix'>"
    "<source mode='bind' path='{path}'/><target type='virtio' name='org.numa_ext.slo.0'/></channel>"
)


def servers(folder: Path) -> list[Server]:
    """Return the servers; latency-critical ones on the last CPU, the others on the rest."""
    *others, last = sorted(os.sched_getaffinity(0))
    shared = ",".join(map(str, others))
    lcs = [
        Server(f"lc{n}", LC, cpus=(last,), devices=_PORT.format(path=folder / f"lc{n}.port"))
        for n in range(SERVERS)
    ]
    return lcs + [Server(f"be{n}", BE_SPECS, shared=shared) for n in range(SERVERS)]


# -- the agent's process -----------------------------------------------------------------------------------------------


class Listed:
    """libvirt as far as the agent needs it here: domains that neither come nor go."""

    def __init__(self, domains: Sequence[ListedDomain]) -> None:
        self._domains = tuple(domains)
        self._changed = threading.Event()

    def hostname(self) -> str:
        """Name of the host."""
        return "bench"

    def domains(self) -> tuple[ListedDomain, ...]:
        """All of them."""
        return self._domains

    def migrating(self, uuid: str) -> bool:
        """Nothing migrates."""
        return False

    def perf_totals(self) -> dict[str, dict[str, int]]:
        """It counts nothing."""
        return {}

    def wait(self, seconds: float) -> bool:
        """Wait for :meth:`wake`."""
        happened = self._changed.wait(seconds)
        self._changed.clear()
        return happened

    def has_events(self) -> bool:
        """Every round lists."""
        return True

    def wake(self) -> None:
        """End a wait."""
        self._changed.set()

    def end(self) -> None:
        """No call waits for long."""


def agent(folder: Path) -> None:
    """Run the agent for the domains that ``folder`` holds, until standard input ends."""
    known = json.loads((folder / "domains.json").read_text())
    source = Listed([ListedDomain(uuid, xml, Activity.RUNNING) for uuid, xml in known.items()])
    conf = configuration.load([f"--config-file={folder / 'agent.conf'}"])
    parts = assembly.build(conf, out=sys.stdout.write, source=source)
    if parts.slo is None:
        raise RuntimeError("the configuration has turned the controller off")
    stop = threading.Event()

    def end() -> None:
        sys.stdin.read()
        stop.set()
        source.wake()

    threading.Thread(target=end, daemon=True).start()
    parts.slo.start()
    parts.agent.run(stop)
    parts.slo.close()


# -- the tree's process ------------------------------------------------------------------------------------------------


def tree(folder: Path) -> None:
    """Serve the resctrl model and note each bandwidth level that is written: time, group, level."""
    from emulation.kernel import fuse

    class Noting(fuse.ResctrlTree):
        """The tree with a note per level."""

        def write(self, path: str, data: bytes, offset: int, fi: Any) -> int:
            """Take one command, and note it when it stands."""
            written = super().write(path, data, offset, fi)
            if b"MB:" in data:
                line = {"at": time.monotonic(), "path": path, "text": data.decode()}
                with (folder / "levels.jsonl").open("a") as notes:
                    notes.write(json.dumps(line) + "\n")
            return written

    fuse.ResctrlTree = Noting  # type: ignore[misc]
    domains = ",".join(
        sorted(
            {
                p.read_text().strip()
                for p in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index3/id")
            }
        )
    )
    fuse.main([str(folder / "resctrl"), f"--domains={domains}", "--closids=16"])


# -- the guests and the measurement ------------------------------------------------------------------------------------


class Guests:
    """All guests: a thread writes their reports."""

    def __init__(self, ports: Sequence[Path]) -> None:
        self._listeners = []
        for port in ports:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(port))
            listener.listen(1)
            listener.settimeout(PATIENCE_S)
            self._listeners.append(listener)
        self._connections: list[socket.socket] = []
        self._line = WELL
        self._lock = threading.Lock()

    def connect(self) -> None:
        """Wait for the agent, then report without end."""
        self._connections = [listener.accept()[0] for listener in self._listeners]
        threading.Thread(target=self._report, daemon=True).start()

    def _report(self) -> None:
        with suppress(BrokenPipeError):  # the agent has ended
            self._report_until_it_ends()

    def _report_until_it_ends(self) -> None:
        while True:
            with self._lock:
                for number, connection in enumerate(self._connections):
                    connection.send((WELL if number else self._line).encode())
            time.sleep(REPORT_S)

    def fall_ill(self) -> float:
        """Let the first guest report a violation now and from now on; return when."""
        with self._lock:
            self._line = ILL
            now = time.monotonic()
            self._connections[0].send(ILL.encode())
        return now

    def recover(self) -> None:
        """Let it be well again."""
        with self._lock:
            self._line = WELL


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Bench:
    """The host with its agent, and what is asked of it."""

    def __init__(self, folder: Path, guests: Guests, pid: int) -> None:
        self.folder, self.guests, self.pid = folder, guests, pid

    def notes(self, since: float) -> list[dict[str, Any]]:
        """Return levels of best-effort groups written after a time."""
        file = self.folder / "levels.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        found = [json.loads(line) for line in lines]
        return [note for note in found if note["at"] > since and "/numa_ext-be-" in note["path"]]

    def phase(self) -> str:
        """Return the controller's phase as the agent keeps it for the console."""
        try:
            kept = json.loads((self.folder / "state/slo.json").read_text())
        except (OSError, ValueError):
            return ""
        return str(kept["report"]["phase"])

    def levels(self) -> set[int]:
        """Return the levels that the controller has for best-effort servers now."""
        kept = json.loads((self.folder / "state/slo.json").read_text())
        return {target["level"] for target in kept["targets"].values()}

    def quiet(self) -> None:
        """Wait until the controller watches and has known latencies for a whole window."""
        self._until(lambda: self.phase() == "watch", "the controller watches")

    def _until(self, condition: Any, what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                log = (self.folder / "agent.log").read_text()[-3000:]
                raise RuntimeError(f"{what} did not come in {PATIENCE_S:.0f} s\n{log}")
            time.sleep(0.05)

    def idle(self, seconds: float) -> float:
        """Return CPU time of the agent while all is well, per cent of a core."""
        began, used = time.monotonic(), cpu_seconds(self.pid)
        time.sleep(seconds)
        return 100.0 * (cpu_seconds(self.pid) - used) / (time.monotonic() - began)

    def cycle(self) -> tuple[float, float, float]:
        """Return one reaction in ms, the seconds until all was given back, and the CPU seconds that took."""
        used, began = cpu_seconds(self.pid), time.monotonic()
        ill = self.guests.fall_ill()
        self._until(lambda: self.notes(ill), "a lower level")
        written = self.notes(ill)[0]["at"]
        self.guests.recover()
        self._until(lambda: self.phase() == "watch", "the end of the search")
        return 1000.0 * (written - ill), time.monotonic() - began, cpu_seconds(self.pid) - used


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _stand_ins(made: Sequence[Server], folder: Path, ends: ExitStack) -> None:
    """Start a process per server, and write libvirt's pid files."""
    memory = os.memfd_create("guest")
    os.ftruncate(memory, made[0].memory_mb << 20)
    script = str(Path(__file__).with_name("stand_in.py"))
    for server in made:
        argv = [sys.executable, "-SI", script, "-uuid", server.uuid, "-m", str(server.memory_mb)]
        process = subprocess.Popen(
            [*argv, str(memory), str(server.vcpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[memory],
        )
        ends.callback(process.kill)
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("a stand-in ended before it was ready")
        name = f"instance-{server.uuid[:8]}"
        libvirt_state.write(folder / "pids", name, server.uuid, process.pid)


@contextmanager
def host(folder: Path) -> Iterator[Bench]:
    """Build the host and run its agent."""
    with ExitStack() as ends:
        (folder / "resctrl").mkdir()
        module = [sys.executable, "-m", "benchmarks.bench_reaction"]
        ends.enter_context(_running([*module, "--tree", str(folder)], folder / "tree.log"))
        ends.callback(subprocess.run, ["umount", "-l", str(folder / "resctrl")], check=False)
        end = time.monotonic() + PATIENCE_S
        while not (folder / "resctrl/info").is_dir():
            if time.monotonic() > end:
                raise RuntimeError((folder / "tree.log").read_text())
            time.sleep(0.05)
        made = servers(folder)
        _stand_ins(made, folder, ends)
        domains = {server.uuid: server.xml for server in made}
        (folder / "domains.json").write_text(json.dumps(domains))
        (folder / "agent.conf").write_text(
            f"[agent]\nstate_dir = {folder}/state\nmetrics_port = 0\ntakeover_interval_s = 0\n"
            f"[libvirt_host]\npid_dir = {folder}/pids\n[host]\nresctrl = {folder}/resctrl\n"
            f"[helper]\nsocket = {folder}/helper.sock\nstate_dir = {folder}/helper\n"
            "[placement]\nenabled = false\n"
        )
        helper = [
            sys.executable,
            "-m",
            "host_agent.cmd.helper",
            f"--config-file={folder}/agent.conf",
        ]
        ends.enter_context(_running(helper, folder / "helper.log"))
        while not unix_sockets.listens(folder / "helper.sock"):
            if time.monotonic() > end:
                raise RuntimeError((folder / "helper.log").read_text())
            time.sleep(0.05)
        guests = Guests([folder / f"lc{n}.port" for n in range(SERVERS)])
        process = ends.enter_context(
            _running([*module, "--agent", str(folder)], folder / "agent.log")
        )
        try:
            guests.connect()
        except TimeoutError as error:
            raise RuntimeError((folder / "agent.log").read_text()[-3000:]) from error
        bench = Bench(folder, guests, process.pid)
        bench.quiet()
        yield bench


def measure(cycles: int, idle_s: float) -> dict[str, float]:
    """Return the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="numa-ext-reaction-") as name,
        host(Path(name)) as bench,
    ):
        time.sleep(5.0)  # a whole window, and the first full round
        report.progress(f"{SERVERS} latency-critical and {SERVERS} best-effort servers, all well …")
        idle = bench.idle(idle_s)
        bench.cycle()  # the fixed level goes up to full for the first time
        report.progress(f"{cycles} violations …")
        runs = [bench.cycle() for _ in range(cycles)]
    reactions = sorted(run[0] for run in runs)
    return {
        "slo_to_schemata_ms_p50": statistics.median(reactions),
        "slo_to_schemata_ms_p99": reactions[min(len(reactions) - 1, int(0.99 * len(reactions)))],
        "slo_to_schemata_ms_max": reactions[-1],
        "cpu_percent_idle": idle,
        "cpu_percent_search": 100.0 * sum(r[2] for r in runs) / sum(r[1] for r in runs),
        "search_s_median": statistics.median(run[1] for run in runs),
    }


def main() -> None:
    """Measure and report; below ``unshare``, so that mounts and processes end with it."""
    options = report.parser(__doc__)
    options.add_argument("--cycles", type=int, default=40, help="violations")
    options.add_argument("--idle-s", type=float, default=30.0, help="seconds of watching")
    for part in ("tree", "agent", "inside"):
        options.add_argument(f"--{part}", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.tree or args.agent:
        (tree if args.tree else agent)(args.tree or args.agent)
        return
    if not args.inside:
        argv = [*NAMESPACES, sys.executable, "-m", "benchmarks.bench_reaction", *sys.argv[1:]]
        sys.exit(subprocess.run([*argv, "--inside", "/"], check=False).returncode)
    figures = measure(args.cycles, args.idle_s)
    report.table(("figure", "value"), figures.items())
    source = {
        "cycles": args.cycles,
        "poll_ms": 20,
        "load_average": os.getloadavg()[0],
        "goals": {"slo_to_schemata_ms_p99": 45, "cpu_percent_idle": 2, "cpu_percent_search": 10},
    }
    report.finish("reaction", "measured", figures, source, args.json)


if __name__ == "__main__":
    main()
