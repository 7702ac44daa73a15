# SPDX-License-Identifier: Apache-2.0
"""``openstack numa group scaling set``, ``list``, ``show``, ``delete``, ``pause``, ``resume`` and ``replay``."""

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from osc_lib.cli.format_columns import DictColumn
from osc_lib.command import command
from osc_lib.exceptions import CommandError

from nova_numa_ext.cli import formatting
from nova_numa_ext.cli.jobs_client import JobsClient, Scaling
from nova_numa_ext.learning import models
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.following import DecidedPeriod, follow
from nova_numa_ext.policy.elastic.settings import ScalingSettings, literal
from nova_numa_ext.policy.elastic.terms import sentence
from nova_numa_ext.policy.elastic.trace import TRACE_COLUMNS, read_trace
from nova_numa_ext.simulator.elastic import plots
from placement_traits.errors import CapabilityMissingError, InvalidValueError, NumaExtError

_DEFAULTS: Final = ScalingSettings(1.0)
_COLUMNS: Final = (
    "Time",
    "Members",
    "Reads/s",
    "Expected",
    "Lead",
    "By",
    "Load/capacity",
    "Change",
    "Why",
)


class SetScaling(command.ShowOne):  # type: ignore[misc]
    """Have a server group sized by its load: what it needs is decided each period.

    Without --flavor and --image it is observed: nothing is carried out. With them servers are added and deleted as the
    user of this command, in the project of the token, which has to be the group's; only servers that were added so are
    deleted. What was decided by other settings is deleted; settings that are not given are the defaults. A group that
    is paused stays so.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add group, source and parameters."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_group(parser)
        parser.add_argument(
            "--csv",
            metavar="<file name>",
            help="File in the engines' folder [numa_ext_jobs]scaling_traces: load and latencies of its members, "
            "with the columns of replay",
        )
        parser.add_argument(
            "--prometheus",
            action="append",
            default=[],
            metavar="<what>=<query>",
            help="What the engines' Prometheus [numa_ext_jobs]scaling_prometheus is asked: reads (per second) and "
            "latency_ms, and also writes, size_kb, placement, disturbed, cannot_fix and label, whose value names the "
            "member (default: server); $window stands for the length of a period, $fifth and $tenth for parts of it. "
            "Either these or --csv",
        )
        parser.add_argument(
            "--agents",
            metavar="<names>",
            help="Members report their requests to the host agents, which the engines' Prometheus scrapes: regular "
            "expression for the names of all servers of the group, and of no other one of its project; instead of the "
            "queries for reads, latency_ms and label",
        )
        for option, text in (
            ("flavor", "Flavor of members that are added, by name or id; needs --image"),
            ("image", "Their image, by name or id; needs --flavor"),
            (
                "hook",
                "Program in the engines' folder [numa_ext_jobs]scaling_hooks, called when members come and leave",
            ),
            ("name", "Name of their servers, before a number of their own (default: member)"),
        ):
            parser.add_argument(f"--{option}", metavar=f"<{option}>", help=text)
        parser.add_argument(
            "--network",
            action="append",
            default=[],
            metavar="<network>",
            help="Network of members that are added, by name or id, or none; can be given several times "
            "(default: the project's only one)",
        )
        parser.add_argument(
            "--heat-stack",
            metavar="<stack>",
            help="Stack of Heat, by name or id, that has the members: its size is changed, and Heat adds and deletes "
            "them; instead of --flavor and --image",
        )
        parser.add_argument(
            "--heat-parameter",
            metavar="<parameter>",
            help="Parameter from which its template takes the desired_capacity of the group; needs --heat-stack",
        )
        _add_settings(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values; raises InvalidValueError where a part of what members are made of is missing."""
        settings = {"objective_ms": parsed_args.objective_ms, **_given(parsed_args)}
        if parsed_args.granularity is not None:
            settings["granularity"] = list(_grid(parsed_args.granularity).sides)
        body = {"settings": settings, "source": _source(parsed_args)}
        enforce = _enforced(parsed_args)
        if enforce:
            body["enforce"] = enforce
        return _shown(_client(self).set_scaling(parsed_args.group, body))


class ListScaling(command.Lister):  # type: ignore[misc]
    """List elastic groups, in the order in which they were set first."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the filter."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--all-projects", action="store_true", help="Groups of all projects (admin or service)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        found = _client(self).scaling_groups(all_projects=parsed_args.all_projects)
        return ("Server group", "Mode", "Paused", "Project", "Changed", "Trouble"), [
            (
                each["id"],
                each["mode"],
                each["paused"],
                each["project_id"],
                _time(each["changed_at"]),
                formatting.folded(each["trouble"], parsed_args),
            )
            for each in found
        ]


class DeleteScaling(command.Command):  # type: ignore[misc]
    """Observe server groups no more, and delete what was decided on them; their servers stay as they are."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the groups."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "group", metavar="<server group>", nargs="+", help="Server group, by id"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Delete each; one that refuses leaves the others to be deleted."""
        refused = []
        for group in parsed_args.group:
            try:
                _client(self).delete_scaling(group)
            except NumaExtError as error:
                refused.append(str(error))
        if refused:
            raise CommandError("; ".join(refused))


class ShowScaling(command.ShowOne):  # type: ignore[misc]
    """Show what an elastic group is sized by, and what was decided last."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add group and file."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_group(parser)
        parser.add_argument(
            "--decision-log",
            type=Path,
            metavar="<file>",
            help="Write the decision log: a JSON line for each period, as replay does",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        client, group = _client(self), parsed_args.group
        found = client.scaling(group)
        if parsed_args.decision_log is not None:
            try:
                with parsed_args.decision_log.open("w") as file:
                    _write_log(client.scaling_decisions(group), file)
            except OSError as error:
                allowed = f"a place that can be written to ({error.strerror})"
                raise InvalidValueError("--decision-log", error.filename, allowed) from error
        return _shown(found)


class _OfGroup(command.ShowOne):  # type: ignore[misc]
    """A command about one group, which takes nothing else."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the group."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_group(parser)
        return parser


class PauseScaling(_OfGroup):
    """Decide nothing on an elastic group until it is resumed."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        return _shown(_client(self).pause_scaling(parsed_args.group, paused=True))


class ResumeScaling(_OfGroup):
    """Decide on an elastic group again, on the periods that were missed, too."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        return _shown(_client(self).pause_scaling(parsed_args.group, paused=False))


class ReplayScaling(command.Lister):  # type: ignore[misc]
    """Show what scaling would have decided on a trace of a group; nothing is asked of the cloud, nothing is changed.

    The trace is a CSV file with a line for each member and time. The members of each period are those of the trace,
    whatever was decided before. Needs nova-numa-ext[elastic].
    """

    auth_required = False

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the trace, the parameters and the files to be written."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "trace", type=Path, metavar="<trace>", help=f"CSV file: {','.join(TRACE_COLUMNS)}"
        )
        _add_settings(parser)
        parser.add_argument(
            "--literal",
            action="store_true",
            help="Parameters of OnlineElastMan's publication and no limits but --least and --most",
        )
        parser.add_argument(
            "--decision-log", type=Path, metavar="<file>", help="Write a JSON line for each period"
        )
        parser.add_argument(
            "--plot",
            type=Path,
            metavar="<file>",
            help="Draw load and forecasts, members and decisions, and the model (PNG, SVG or PDF; needs matplotlib)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows, one row a period; raises NumaExtError for a value that is not allowed."""
        settings = _settings(parsed_args)
        trace: Path = parsed_args.trace
        try:
            lines = trace.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.reason
            raise InvalidValueError("trace", str(trace), f"a CSV file ({reason})") from error
        periods = read_trace(lines, str(trace))
        models.check_installed()
        pool = models.ours if settings.graded else models.published
        learner = models.Models(pool(settings.season_periods))
        done = follow(periods, learner, settings)
        _write_files(done, parsed_args, settings)
        return _COLUMNS, [_row(one, parsed_args) for one in done]


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", metavar="<server group>", help="Server group, by id")


def _client(shell_command: Any) -> JobsClient:
    found: JobsClient = shell_command.app.client_manager.numa.jobs()
    return found


def _shown(scaling: Scaling) -> tuple[Any, Any]:
    """Return columns and values; of the last decision what and why."""
    last = scaling["last_decision"]
    enforce = scaling.get("enforce")  # an API of the release before has neither this nor members
    values = {
        **scaling,
        "settings": DictColumn(scaling["settings"]),
        "source": DictColumn(scaling["source"]),
        "enforce": enforce and DictColumn(enforce),
        "members": "\n".join(
            f"{each['server_id'] or '(no server yet)'} {each['step']}"
            for each in scaling.get("members", ())
        ),
        "last_decision": last and f"{last['at_s']:g} s: {last['change']:+d}, {last['why']}",
    }
    for key in ("created_at", "changed_at"):
        values[key] = _time(values[key])
    return tuple(values), tuple(values.values())


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _write_log(lines: Iterable[Mapping[str, Any]], file: TextIO) -> None:
    file.writelines(json.dumps(line) + "\n" for line in lines)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the parameters of a group."""
    parser.add_argument(
        "--objective-ms",
        type=float,
        required=True,
        metavar="<ms>",
        help="Latency of reads that is still good, milliseconds",
    )
    parser.add_argument(
        "--granularity",
        metavar="<reads>,<writes>,<KiB>",
        help="Loads that are this close count as one: about a twentieth of what a member can do (default: "
        f"{','.join(f'{side:g}' for side in _DEFAULTS.grid.sides)})",
    )
    for option, kind, text in (
        ("least", int, "Fewest members"),
        ("most", int, "Most members"),
        ("lead-periods", int, "Periods to look ahead: two boot times"),
        ("head-room", float, "Factor on predicted loads"),
        ("confidence", float, "Share of readings that must meet the objective"),
        ("season-periods", int, "Periods after which loads repeat"),
        ("period-s", float, "Length of a period, seconds"),
    ):
        default = getattr(_DEFAULTS, option.replace("-", "_"))
        parser.add_argument(
            f"--{option}", type=kind, metavar="<number>", help=f"{text} (default: {default:g})"
        )


def _given(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that were given, but objective and granularity."""
    names = (
        "least",
        "most",
        "lead_periods",
        "head_room",
        "confidence",
        "season_periods",
        "period_s",
    )
    given = {name: getattr(parsed_args, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _source(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return where load and latencies come from."""
    queries = {}
    for each in parsed_args.prometheus:
        name, equals, query = each.partition("=")
        if not (name and equals):
            raise InvalidValueError("--prometheus", each, "<what>=<query>")
        queries[name] = query
    agents = parsed_args.agents
    if bool(queries or agents) == bool(parsed_args.csv):
        allowed = "a file name, or --prometheus or --agents without it"
        raise InvalidValueError("--csv", parsed_args.csv, allowed)
    if agents:
        return {"agents": {"names": agents, **queries}}
    return {"prometheus": queries} if queries else {"csv": parsed_args.csv}


def _enforced(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return of what members are to be made; {} where the group is to be observed."""
    names = ("flavor", "image", "hook", "name")
    given = {name: found for name in names if (found := getattr(parsed_args, name)) is not None}
    if parsed_args.network:
        given["networks"] = parsed_args.network
    stack, parameter = parsed_args.heat_stack, parsed_args.heat_parameter
    if stack is not None or parameter is not None:
        if stack is None or parameter is None:
            absent = "--heat-stack" if stack is None else "--heat-parameter"
            raise InvalidValueError(absent, None, "both --heat-stack and --heat-parameter")
        if given:
            option = f"--{min(given)}".replace("networks", "network")
            raise InvalidValueError(option, given[min(given)], "no such option with --heat-stack")
        return {"heat": {"stack": stack, "parameter": parameter}}
    missing = [name for name in ("flavor", "image") if name not in given]
    if given and missing:
        raise InvalidValueError(f"--{missing[0]}", None, "a name or id: members are made of it")
    return given


def _settings(parsed_args: argparse.Namespace) -> ScalingSettings:
    """Return the settings that the options describe."""
    given = _given(parsed_args)
    if parsed_args.granularity is not None:
        given["grid"] = _grid(parsed_args.granularity)
    base = (literal if parsed_args.literal else ScalingSettings)(parsed_args.objective_ms)
    return replace(base, **given)


def _grid(text: str) -> Grid:
    try:
        reads, writes, size = map(float, text.split(","))
    except ValueError:
        raise InvalidValueError("--granularity", text, "three numbers > 0") from None
    return Grid(reads, writes, size)


def _write_files(
    done: tuple[DecidedPeriod, ...], parsed_args: argparse.Namespace, settings: ScalingSettings
) -> None:
    try:
        if parsed_args.decision_log is not None:
            with parsed_args.decision_log.open("w") as file:
                _write_log((one.as_json() for one in done), file)
        if parsed_args.plot is not None:
            title = f"{parsed_args.trace.name}, replayed"
            plots.draw(done, settings.objective_ms, parsed_args.plot, title)
    except OSError as error:
        allowed = f"a place that can be written to ({error.strerror})"
        raise InvalidValueError("--decision-log, --plot", error.filename, allowed) from error
    except ImportError as error:
        raise CapabilityMissingError(
            "matplotlib is not installed: install nova-numa-ext[sim]"
        ) from error


def _row(one: DecidedPeriod, parsed_args: argparse.Namespace) -> tuple[Any, ...]:
    found = one.evaluation
    forecast, decision = found.forecasts[0], found.decision
    return (
        f"{one.period.at_s:g}",
        len(one.period.members),
        f"{found.total[0]:.4g}",
        f"{forecast.value:.4g}",
        forecast.lead,
        forecast.predictor,
        f"{max(decision.ratios.values()):.2f}" if decision.ratios else "-",
        f"{decision.change:+d}" if decision.change else "-",
        formatting.folded(sentence(decision.reason), parsed_args),
    )
