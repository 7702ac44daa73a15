# SPDX-License-Identifier: Apache-2.0
"""The command line of the lab."""

import argparse
import difflib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from . import (
    configuration,
    criu_build,
    gpu_client,
    kernel,
    link_build,
    models,
    pocl_build,
    pocl_packages,
    remote_gpu_line,
    show,
)
from .errors import AskedWrongError, LabError
from .lab import Lab
from .localcompute import NAME as LOCAL_NAME
from .rally import DEFAULT, LONG, Rally
from .settings import Settings
from .terminal import Progress, last_lines, report_failure

_DEFAULT_HOSTS = 2
_INTERRUPTED = 130
_WRONG_USAGE = 2


def main(checkout: Path, arguments: Sequence[str]) -> int:
    """Run one command; returns the process' exit status."""
    parser, known = _parser()
    _require_known(parser, known, arguments)
    options = parser.parse_args(arguments)
    settings = Settings.from_environment(checkout, os.environ)
    progress = Progress(timings=settings.timings_file)
    try:
        return int(options.run(options, settings, progress) or 0)
    except LabError as error:
        progress.close()
        asked_wrong = isinstance(error, AskedWrongError)
        retry = None if asked_wrong else " ".join([settings.command, *arguments])
        report_failure(error, retry, sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.close()
        print(f"\ninterrupted; what was started goes on. To go on: {settings.command} up")
        # Threads that still wait for services must not keep the terminal.
        os._exit(_INTERRUPTED)
    finally:
        progress.close()


def _require_known(
    parser: argparse.ArgumentParser, known: Collection[str], arguments: Sequence[str]
) -> None:
    """End with a sentence when the first word is no command; argparse would list them all instead."""
    word = next(iter(arguments), "-")
    if word.startswith("-") or word in known:
        return
    near = difflib.get_close_matches(word, known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"{parser.prog} --help lists them"
    parser.exit(_WRONG_USAGE, f"{parser.prog}: there is no command {word}: {meant}\n")


def _parser() -> tuple[argparse.ArgumentParser, Collection[str]]:
    """Make the parser; returns it with the names of the commands."""
    parser = argparse.ArgumentParser(prog="lab", description="A one-command OpenStack lab.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, words: str, **how: Any) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, description=words, **how)
        sub.set_defaults(run=run)
        return sub

    up = command("up", _up, "bring the cloud up, or go on where an earlier run stopped")
    up.add_argument("--hosts", type=int, default=_DEFAULT_HOSTS, help="number of emulated hosts")
    up.add_argument("--no-emulated", action="store_true", help="only the local compute")
    up.add_argument(
        "--plain", action="store_true", help="an OpenStack without this project, until reset"
    )
    command(
        "prepare",
        _prepare,
        "only packages and the virtual environment: for all tests but those on the lab",
    )
    command("link", _link, "build the link of remote GPUs (Go), once, and print where it is")
    command("criu", _criu, "build CRIU, by which leases of remote GPUs move, and print where it is")
    pocl = command(
        "pocl",
        _pocl,
        "build PoCL, which carries OpenCL to another host, once, and print where it is",
    )
    pocl.add_argument(
        "--packages", type=Path, metavar="FOLDER", help="write Debian packages of it, too"
    )
    client = command(
        "gpu-client",
        _gpu_client,
        "make the image gpu-client, whose servers use remote GPUs, and print how Glance gets it",
    )
    client.add_argument("folder", type=Path, metavar="FOLDER", help="for its files")
    command(
        "models", _models, "install what fits models of elastic groups, once, and print where it is"
    )
    command("show", _show, "boot five servers and show what was decided and enforced")
    # All that follows is numa-ext-explain's, options and --help included: here no word is one ("\0" begins none).
    asked = "why a server is where it is: numa-ext-explain with its arguments"
    explain = command("explain", _explain, asked, prefix_chars="\0", add_help=False)
    explain.add_argument("words", nargs="*")
    rally = command("rally", _rally, "run Rally tasks on the cloud, which must be up, and report")
    rally.add_argument("tasks", nargs="*", help=f"files of rally-jobs; default: {DEFAULT[0]}")
    rally.add_argument("--long", action="store_true", help=f"without TASKS: also {', '.join(LONG)}")
    rally.add_argument("--prepare", action="store_true", help="only install Rally; no cloud needed")
    rally.add_argument(
        "--arguments", type=json.loads, metavar="JSON", help="of the tasks, over the lab's"
    )
    restart = command("restart", _restart, "start services again, with their files as they are now")
    restart.add_argument("names", nargs="+", metavar="NAME", help="for example nova-scheduler")
    command("down", _down, "stop everything, keep its state")
    status = command("status", _status, "what runs")
    status.add_argument("--json", action="store_true", help="as JSON")
    shell = command("shell", _shell, "a shell, or a command, on a compute host")
    shell.add_argument("host", help=f"{LOCAL_NAME}, h1, h2 …")
    shell.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="optional; without it a login shell",
    )
    logs = command("logs", _logs, "list the logs, or show the end of one")
    logs.add_argument("name", nargs="?", help="for example nova-scheduler")
    logs.add_argument("-n", "--lines", type=int, default=50)
    command("env", _env, 'credentials as shell lines: eval "$(lab env)"')
    command("reset", _reset, "stop everything and throw its state away, keep what is slow to make")
    clean = command("clean", _clean, "stop everything and remove all that the lab has made")
    clean.add_argument("--cache", action="store_true", help="also the kernel, QEMU and wheel cache")
    return parser, commands.choices


def _up(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    lab = Lab(settings.become_plain() if options.plain else settings, progress)
    lab.up(0 if options.no_emulated else options.hosts)
    progress.close()
    _print_summary(lab.status())
    print(f"\ncredentials: . {settings.lab}/openrc      stop: {settings.command} down")


def _prepare(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    Lab(settings, progress).prepare()


def _link(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    settings.make_folders()
    folder = link_build.build(settings, progress)
    progress.close()
    print(folder / link_build.PROGRAM)


def _criu(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    settings.make_folders()
    program = criu_build.build(settings, progress)
    progress.close()
    print(program)


def _pocl(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    settings.make_folders()
    made = pocl_build.build(settings, progress)
    log = settings.log / "pocl-build.log"
    written = pocl_packages.write(made, options.packages, log) if options.packages else []
    progress.close()
    print(made.server, made.vendors, made.layer, made.bench, *written, sep="\n")


def _gpu_client(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    settings.make_folders()
    link = link_build.build(settings, progress) / link_build.PROGRAM
    pocl = pocl_build.cached(settings)
    found = kernel.provide(settings, progress)
    progress.close()
    made = gpu_client.write(options.folder, found, link, pocl)
    opencl = "" if pocl else f"  # without numa-rgpu-bench: {settings.command} pocl was not run"
    print(f"{made}{opencl}\n\n{gpu_client.commands(made, found)}")


def _models(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    settings.make_folders()
    folder = models.ensure(settings, progress)
    progress.close()
    print(folder)


def _restart(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    Lab(settings, progress).restart(options.names)


def _show(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    if settings.plain:
        raise AskedWrongError(f"the cloud at {settings.lab} is plain: it has none of our flavors")
    table = show.text_table(show.Show(settings, progress).run())
    with progress.step("a lease of a remote GPU is used"):
        remote = remote_gpu_line.line(settings)
    progress.close()
    print(f"\n{table}\n\n{remote}\n\n{show.REAL_AND_EMULATED}\n\n{show.next_steps(settings)}")


def _explain(options: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    program = settings.venv / "bin" / "numa-ext-explain"
    conf = settings.etc / "nova" / "nova.conf"
    if not conf.exists():
        raise LabError(
            f"the cloud at {settings.lab} is not up yet: {settings.command} up brings it up, wait for its end"
        )
    argv = [program, f"--config-file={conf}", *options.words]
    return subprocess.run(argv, check=False).returncode


def _rally(options: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    rally = Rally(settings, progress, options.arguments)
    if options.prepare:
        settings.make_folders()
        rally.install()
        return 0
    figures = rally.run(options.tasks or (DEFAULT + LONG if options.long else DEFAULT))
    failures = rally.sla_failures()
    progress.close()
    print("\n".join(["", *failures, *(f"{name:20} {value}" for name, value in figures.items())]))
    print(f"\nreport: {rally.out}/report.html      JUnit: {rally.out}/junit.xml")
    return 1 if figures["sla_failed"] or not figures["scenarios"] else 0


def _down(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    Lab(settings, progress).down()


def _status(options: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    status = Lab(settings, progress).status()
    if options.json:
        print(json.dumps(status, indent=1))
    else:
        _print_services(status)
        _print_summary(status)
    running = [row for row in status["services"] if row["serves"]]
    return 0 if running and len(running) == len(status["services"]) else 1


def _shell(options: argparse.Namespace, settings: Settings, progress: Progress) -> int:
    lab = Lab(settings, progress)
    if options.host == LOCAL_NAME:
        local = lab.local()
        if not local.alive():
            raise LabError(f"host {LOCAL_NAME} does not run")
        return local.shell(options.words)
    hosts = {host.name: host for host in lab.emulated_hosts()}
    if options.host not in hosts:
        known = ", ".join([LOCAL_NAME, *hosts])
        raise AskedWrongError(f"there is no host {options.host}: the lab has {known}")
    return int(hosts[options.host].shell(options.words))


def _logs(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    logs = {p.relative_to(settings.log): p for p in sorted(settings.log.rglob("*.log"))}
    for pattern in ("*/console*.log", "*/log/*.log"):
        for path in sorted(settings.hosts.glob(pattern)):
            logs[Path(path.relative_to(settings.hosts).parts[0]) / path.name] = path
    hosts = {str(name.parent) for name in logs}
    if options.name is None or options.name in hosts:
        for name, path in logs.items():
            if options.name in (None, str(name.parent)):
                print(f"{path.stat().st_size:10}  {name}")
        return
    name = Path(options.name).with_suffix(".log")
    if name not in logs:
        raise AskedWrongError(f"there is no log {name} in {settings.log}: `lab logs` lists them")
    print("\n".join(last_lines(logs[name], options.lines)))


def _env(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    if not settings.lab.exists():
        raise LabError(f"there is no lab at {settings.lab}: {settings.command} up makes it")
    print(configuration.openrc(settings), end="")


def _reset(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    Lab(settings, progress).reset()


def _clean(options: argparse.Namespace, settings: Settings, progress: Progress) -> None:
    Lab(settings, progress).clean(options.cache)


def _print_services(status: dict[str, Any]) -> None:
    for row in status["services"]:
        state = "serves" if row["serves"] else "does not serve" if row["pid"] else "stopped"
        print(f"  {row['name']:18} {row['pid'] or '-':>8}  {state}")


def _host_words(host: dict[str, Any]) -> str:
    if host["state"] != "up":
        return str(host["state"])
    rdt = "with RDT" if host["rdt"] else "WITHOUT RDT: its QEMU was not to be had, see the log"
    failed = f", {host['failed_boots']} boots failed" if host["failed_boots"] else ""
    return (
        f"{host['cpus']} CPUs, kernel {host['kernel']}, {rdt}; "
        f"booted in {host['boot_s']:.0f} s{failed}, {host['memory_mb']} MB"
    )


def _print_summary(status: dict[str, Any]) -> None:
    print(f"\nlab in {status['lab']}, {status['memory_mb']} MB of memory")
    for hypervisor in status["hypervisors"] or []:
        name = hypervisor["hypervisor_hostname"]
        print(f"  compute {name:8} {hypervisor['state']:6} {hypervisor['status']}")
    for host in status["hosts"]:
        print(f"  machine {host['name']:8} {_host_words(host)}")
