# SPDX-License-Identifier: Apache-2.0
"""``numa-host-agent-ctl``: look at the host and control its agent. Every command works without the agent.

``status`` shows what kernel and libvirt say, not what the agent believes; ``explain`` and ``journal`` read the journal;
``pause`` and ``resume`` set and remove a mark that the agent looks at each round; ``reset`` takes RDT groups and pins
back, ``release-bandwidth`` only throttles; ``doctor`` says what is missing; ``withdraw`` takes this host's tiers out
of Placement; ``device-spec`` prints lines for nova.conf; ``calibrate`` measures memory bandwidths; ``support-bundle``
gathers all that helps others to help. Commands that write the agent's files do so as the agent's user.

Each command loads what it needs when it runs: on a busy host that is most of the time that a command takes.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from host_agent.cmd.identity import act_as_owner, other_owner, owner_for_now
from host_agent.console.text import table
from placement_traits.command_line import add_version, number_from, whole_from
from placement_traits.errors import InvalidValueError, NumaExtError

if TYPE_CHECKING:
    from host_agent.cmd.activation import Activation
    from host_agent.conf.configuration import Configuration


_Add = Callable[..., argparse.ArgumentParser]
"""Adds a command: its name, its function, its help, and what of the host it touches."""

_LINES_MAX: Final = 1_000_000
_MEGABYTES_MAX: Final = 1 << 20
_CPUS_MAX: Final = 1 << 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(arguments)
    from host_agent.conf.configuration import load  # after --help and mistakes

    files = [f"--config-file={Path(file).absolute()}" for file in options.config_file]
    command: Callable[[Configuration, argparse.Namespace], int] = options.command
    try:
        conf = load(files, mistake=options.mistake)
        helper = _helper_for(conf, files) if options.undoes else None
        if helper is not None and (child := os.fork()):
            try:
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            finally:
                helper.stop(graceful=True)
        if options.writes or options.undoes:
            act_as_owner(conf.paths.state)
        return command(conf, options)
    except NumaExtError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BrokenPipeError:  # the reader has seen enough (| head)
        sys.stderr.close()
        return 0


def _helper_for(conf: "Configuration", files: Sequence[str]) -> "Activation | None":
    """Start a helper where none listens and this process gives up the rights to do without one."""
    if other_owner(conf.paths.state) is None:
        return None
    from host_agent.cmd.activation import of_helper
    from host_agent.machine.privileged import client, edition

    try:
        if client.serves(conf.helper.socket, edition.of(conf)):
            return None
        helper = of_helper(files, conf)
    except (NumaExtError, OSError) as error:
        sys.stderr.write(f"no helper is started: {error}\n")
        return None
    helper.start()
    return helper


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="numa-host-agent-ctl",
        description="Look at this compute host and control its NUMA agent.",
    )
    parser.add_argument(
        "--config-file", action="append", default=[], help="the agent's configuration file"
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str,
        function: Callable[..., int],
        text: str,
        *,
        writes: bool = False,
        undoes: bool = False,
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=function, mistake=None, writes=writes, undoes=undoes)
        command.add_argument("-f", "--format", choices=("table", "json"), default="table")
        return command

    _add_records(add)
    _add_control(add)
    _add_host(add)
    _add_calibrate(add)
    return parser


def _add_records(add: _Add) -> None:
    """Where servers are, and what was done for them."""
    status = add("status", _status, "Show where each server is, read from kernel and libvirt.")
    status.add_argument(
        "--long", action="store_true", help="all columns, as in JSON; explain shows one server"
    )
    explain = add(
        "explain", _explain, "Show why a server is where it is, and what was done for it."
    )
    explain.add_argument("server", help="UUID or name")
    journal = add("journal", _journal, "Show the newest entries of the journal.")
    journal.add_argument(
        "-n", "--lines", type=whole_from(1, _LINES_MAX), default=20, help="how many"
    )
    journal.add_argument("--server", help="of this server only: UUID or name")


def _add_control(add: _Add) -> None:
    """What changes what the agent does, or takes back what it has done."""
    add("pause", _pause, "Let the agent observe only, until resume.", writes=True)
    add("resume", _resume, "Let a paused agent go on.", writes=True)
    reset = add(
        "reset",
        _reset,
        "Remove RDT groups, give root its ways back and floating servers all their CPUs; "
        "not beside an agent that runs unpaused.",
        undoes=True,
    )
    reset.add_argument("--dry-run", action="store_true", help="only say what would be done")
    reset.add_argument(
        "--all",
        action="store_true",
        help="then remove the agent's state and journals, too; not beside any agent, be it paused",
    )
    release = add(
        "release-bandwidth",
        _release,
        "Give best-effort servers all memory bandwidth and CPU time back; masks stay. "
        "Not beside an agent that runs unpaused.",
        undoes=True,
    )
    release.add_argument("--dry-run", action="store_true", help="only say what would be done")
    withdrawn = add(
        "withdraw",
        _withdraw,
        "Withdraw this host's tiers from Placement, so that no server is promised what no agent keeps; "
        "attempted until Placement answers. An agent that reports puts them back.",
    )
    # A mistake that keeps the agent from starting must not keep its absence from being published.
    withdrawn.set_defaults(mistake=lambda error: sys.stderr.write(f"{error}\n"))


def _add_host(add: _Add) -> None:
    """What the host is, and what it lacks."""
    topology = add("topology", _topology, "Draw this host as the agent sees it.")
    topology.add_argument("--svg", type=Path, help="write a drawing to this file instead")
    specs = add(
        "device-spec",
        _device_spec,
        "Print [pci]device_spec lines for nova.conf with the GPUs' links as traits.",
    )
    specs.add_argument(
        "--resource-class", default="CUSTOM_GPU", help="what nova counts these devices as"
    )
    add("doctor", _doctor, "Check what the agent needs and what disturbs it.")
    bundle = add(
        "support-bundle",
        _support_bundle,
        "Gather configuration, findings, state, journal, topology, control groups and log of this host in one file, "
        "which only its owner can read. Passwords and tokens are masked; names of servers and hosts are not. Needs "
        "root for the files of the host and of systemd.",
    )
    bundle.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the file to make (default: numa-host-agent-HOST-TIME.tar.gz in the current folder)",
    )


def _add_calibrate(add: _Add) -> None:
    calibrate = add(
        "calibrate",
        _calibrate,
        "Measure the memory bandwidth between NUMA nodes, for numa_ext:memory_policy=bwap. "
        "Run it while the host is idle: it loads all CPUs and memory, some seconds per worker set. "
        "`calibrate levels` measures what bandwidth levels of an AMD CPU are shares of. Not beside an agent.",
    )
    calibrate.add_argument(
        "what",
        nargs="?",
        choices=("nodes", "levels"),
        default="nodes",
        help="nodes: bandwidth between NUMA nodes (default); levels: [rdt]full_bandwidth_mbps",
    )
    calibrate.add_argument(
        "--megabytes",
        type=whole_from(0, _MEGABYTES_MAX),
        default=0,
        help="memory per node, MiB; default (0): 4 times the L3",
    )
    calibrate.add_argument(
        "--seconds", type=number_from(0.1, 600.0), default=2.0, help="per measurement (default: 2)"
    )
    calibrate.add_argument(
        "--cpus-per-node",
        type=whole_from(0, _CPUS_MAX),
        default=0,
        help="CPUs that take part (default, 0: all)",
    )
    calibrate.add_argument(
        "--force", action="store_true", help="measure although servers run here: they are disturbed"
    )
    calibrate.add_argument("--dry-run", action="store_true", help="measure, but keep nothing")


def _show(
    options: argparse.Namespace, rows: Sequence[dict[str, Any]], none: str = "nothing"
) -> None:
    if options.format == "json":
        sys.stdout.write(json.dumps(list(rows), indent=2, default=str) + "\n")
    else:
        sys.stdout.write(table(rows) if rows else f"{none}\n")


def _status(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.status import brief, status

    rows = status(conf)
    short = options.format == "table" and not options.long
    _show(options, brief(rows) if short else rows, none="no server is here")
    return 0


def _explain(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.explanation import as_text, explain

    found = explain(conf, options.server)
    if not found["decision"] and not found["actions"] and not found["now"]:
        sys.stderr.write(f"Neither the journal nor libvirt knows a server {options.server}.\n")
        return 1
    if options.format == "json":
        sys.stdout.write(json.dumps(found, indent=2, default=str) + "\n")
    else:
        sys.stdout.write(as_text(found))
    return 0


def _journal(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.history import entries, line

    found = entries(conf, options.server)[-options.lines :]
    if options.format == "json":
        _show(options, found)
    else:
        sys.stdout.write("".join(line(entry) + "\n" for entry in found))
    return 0


def _pause(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.pause import pause

    _show(options, [pause(conf)])
    return 0


def _resume(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.pause import resume

    _show(options, [resume(conf)])
    return 0


def _reset(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.undo import reset, reset_all

    return _undone(options, (reset_all if options.all else reset)(conf, dry_run=options.dry_run))


def _release(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.undo import release

    return _undone(options, release(conf, dry_run=options.dry_run))


def _undone(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> int:
    _show(options, rows)
    return int(any(row["result"] == "failed" for row in rows))


def _withdraw(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console.withdraw import withdraw
    from host_agent.report.clients import make_reporter

    if not conf.placement.enabled:
        return 0
    _show(options, withdraw(conf, make_reporter=lambda: make_reporter(conf)))
    return 0


def _topology(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.control.assembly.observer import topology_reader
    from placement_traits.draw import draw_text
    from placement_traits.draw_svg import draw_svg

    found, name = topology_reader(conf)(), conf.host.name or ""
    if options.svg:
        try:
            options.svg.write_text(draw_svg(found, name))
        except OSError as error:
            allowed = f"a file to write ({error.strerror})"
            raise InvalidValueError("--svg", str(options.svg), allowed) from error
    elif options.format == "json":
        sys.stdout.write(found.to_json(2) + "\n")
    else:
        sys.stdout.write(draw_text(found, name))
    return 0


def _device_spec(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.control.assembly.observer import topology_reader
    from placement_traits.device_spec import device_spec_lines

    lines = list(device_spec_lines(topology_reader(conf)(), options.resource_class))
    if options.format == "json":
        _show(options, [{"device_spec": line} for line in lines])
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines) or "# This host has no GPUs.\n")
    return 0


def _calibrate(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console import calibrate as calibration_run
    from host_agent.observe.calibration.timing import TimingSettings

    as_owner = partial(owner_for_now, conf.paths.state)
    settings = TimingSettings(options.megabytes, options.seconds, options.cpus_per_node)

    def progress(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    if options.what == "levels":
        rows = calibration_run.run_levels(
            conf, as_owner=as_owner, settings=settings, progress=progress, force=options.force
        )
    else:
        rows = calibration_run.run(
            conf,
            as_owner=as_owner,
            settings=settings,
            keep=not options.dry_run,
            progress=progress,
            force=options.force,
        )
    _show(options, rows)
    return 0


def _doctor(conf: "Configuration", options: argparse.Namespace) -> int:
    from host_agent.console import doctor
    from placement_traits.findings import Level

    findings = doctor.check(conf)
    _show(options, [finding.row for finding in findings])
    return 1 if any(finding.level is Level.BROKEN for finding in findings) else 0


def _support_bundle(conf: "Configuration", options: argparse.Namespace) -> int:
    import platform
    import time

    from host_agent.console import support_bundle

    name = f"numa-host-agent-{platform.node()}-{time.strftime('%Y%m%dT%H%M%S')}.tar.gz"
    file = options.output or Path(name)
    _show(options, support_bundle.write(conf, file))
    sys.stderr.write(f"{file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
