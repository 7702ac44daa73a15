# SPDX-License-Identifier: Apache-2.0
"""``openstack numa group scaling replay``."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli import formatting
from nova_numa_ext.learning import models
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.following import Replayed, follow
from nova_numa_ext.policy.elastic.settings import ScalingSettings, literal
from nova_numa_ext.policy.elastic.terms import sentence
from nova_numa_ext.policy.elastic.trace import TRACE_COLUMNS, read_trace
from nova_numa_ext.simulator.elastic import plots
from placement_traits.errors import CapabilityMissingError, InvalidValueError

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
        parser.add_argument(
            "--objective-ms",
            type=float,
            required=True,
            metavar="<ms>",
            help="Latency of reads that is still good, milliseconds",
        )
        parser.add_argument(
            "--literal",
            action="store_true",
            help="Parameters of OnlineElastMan's publication and no limits but --least and --most",
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
            ("lead-periods", int, "Periods to look ahead: two boot times and one more"),
            ("head-room", float, "Factor on predicted loads"),
            ("confidence", float, "Share of readings that must meet the objective"),
            ("season-periods", int, "Periods after which loads repeat"),
            ("period-s", float, "Length of a period, seconds"),
        ):
            default = getattr(_DEFAULTS, option.replace("-", "_"))
            parser.add_argument(
                f"--{option}", type=kind, metavar="<number>", help=f"{text} (default: {default:g})"
            )
        parser.add_argument(
            "--log", type=Path, metavar="<file>", help="Write a JSON line for each period"
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
        learner = models.Models(models.published(settings.season_periods))
        done = follow(periods, learner, settings)
        _write_files(done, parsed_args, settings)
        return _COLUMNS, [_row(one, parsed_args) for one in done]


def _settings(parsed_args: argparse.Namespace) -> ScalingSettings:
    """Return the settings that the options describe."""
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
    given = {name: value for name, value in given.items() if value is not None}
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
    done: tuple[Replayed, ...], parsed_args: argparse.Namespace, settings: ScalingSettings
) -> None:
    try:
        if parsed_args.log is not None:
            with parsed_args.log.open("w") as file:
                file.writelines(json.dumps(one.as_json()) + "\n" for one in done)
        if parsed_args.plot is not None:
            title = f"{parsed_args.trace.name}, replayed"
            plots.draw(done, settings.objective_ms, parsed_args.plot, title)
    except OSError as error:
        allowed = f"a place that can be written to ({error.strerror})"
        raise InvalidValueError("--log, --plot", error.filename, allowed) from error
    except ImportError as error:
        raise CapabilityMissingError(
            "matplotlib is not installed: install nova-numa-ext[sim]"
        ) from error


def _row(one: Replayed, parsed_args: argparse.Namespace) -> tuple[Any, ...]:
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
