# SPDX-License-Identifier: Apache-2.0
"""``openstack numa job …``: submit jobs to the job service and look after them."""

import argparse
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from osc_lib.command import command

from nova_numa_ext.cli import formatting, job_plot, job_request
from nova_numa_ext.cli.jobs_client import Job, JobsClient
from nova_numa_ext.policy.jobs.job import JobKind, Scope
from nova_numa_ext.policy.jobs.states import JobState
from placement_traits.command_line import number_from, whole_from
from placement_traits.errors import NumaExtError

_WAITING: Final = "queued"
_FINAL: Final = tuple(state.value for state in JobState if state.final)
_HOURS: Final = 86_400.0
_SCOPES: Final = {
    Scope.HOST: "on one host",
    Scope.LEAF: "on one leaf",
    Scope.POD: "in one pod",
    Scope.FLEET: "on any hosts",
}
# What an event is about, where its state and reasons do not say so.
_ABOUT: Final = {
    "state": "",
    "reasons": "",
    "trust_lost_at": "rights of its user",
    "reserved": "what is kept for it",
    "excluded": "hosts tried again",
    "target": "how it ends",
}


class CreateJob(command.ShowOne):  # type: ignore[misc]
    """Submit a job: servers that start together as soon as there are places for all of them.

    The service acts with your rights as long as the job lives, by a Keystone trust: the token must be one of a
    password, not of an application credential.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add what the job is made of."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        job_request.add_arguments(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="Only check it: nothing is stored, nothing waits"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        job = _jobs(self).create(job_request.body(parsed_args), dry_run=parsed_args.dry_run)
        if parsed_args.dry_run:
            print("It could be submitted so; nothing was stored.", file=self.app.stderr)
        return _shown(job, parsed_args)


class ListJob(command.Lister):  # type: ignore[misc]
    """List jobs, oldest first; of those that wait, their place in the queue, of all projects' jobs."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add filters."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--state",
            action="append",
            default=[],
            choices=[state.value for state in JobState],
            help="Only jobs of this state; can be given several times",
        )
        parser.add_argument(
            "--kind",
            choices=[kind.value for kind in JobKind],
            help="Only jobs whose servers the service makes, or that ask for remote GPUs (attach)",
        )
        _add_all_projects(parser)
        parser.add_argument("--marker", metavar="<id>", help="Only jobs submitted after this one")
        parser.add_argument(
            "--limit", type=whole_from(1, 1_000_000), metavar="<number>", help="So many at most"
        )
        parser.add_argument(
            "--plot",
            type=Path,
            metavar="<file>",
            help="Draw queue length, waiting and use over time, of the jobs listed (PNG, SVG or PDF; needs matplotlib)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        found = list(
            _jobs(self).jobs(
                parsed_args.state,
                kind=parsed_args.kind,
                all_projects=parsed_args.all_projects,
                marker=parsed_args.marker,
                most=parsed_args.limit,
            )
        )
        if parsed_args.plot:
            job_plot.draw(found, time.time(), parsed_args.plot)
        columns = ("ID", "Name", "State", "Place", "Servers", "Submitted", "Started", "Why")
        rows = [
            (
                job["id"],
                job["name"],
                _state(job),
                _place(job),
                _servers(job),
                _moment(job["submitted_at"]),
                _moment(job["started_at"]),
                formatting.folded(_why(job), parsed_args),
            )
            for job in found
        ]
        if not parsed_args.all_projects:
            return columns, rows
        owners = (job["project_id"] for job in found)
        return (*columns, "Project"), [
            (*row, owner) for row, owner in zip(rows, owners, strict=True)
        ]


class ShowJob(command.ShowOne):  # type: ignore[misc]
    """Show a job: what it asks for, how far it is, and its servers."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the job."""
        return _with_job(super().get_parser(prog_name))

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        return _shown(_found(self, parsed_args), parsed_args)


class _ChangeJob(command.Lister):  # type: ignore[misc]
    """One request for each of several jobs."""

    action: str

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the jobs."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("job", metavar="<job>", nargs="+", help="Job, by id or name")
        _add_all_projects(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 where a job could not be changed."""
        self._failed = False
        return int(super().run(parsed_args)) or int(self._failed)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows; a job that refuses leaves the others as they are."""
        jobs = _jobs(self)
        rows = []
        for name in parsed_args.job:
            try:
                job = jobs.find(name, all_projects=parsed_args.all_projects)
                rows.append((name, _state(jobs.change(job, self.action)), "done"))
            except NumaExtError as error:
                self._failed = True
                rows.append((name, "", formatting.folded(str(error), parsed_args)))
        return ("Job", "State", "Result"), rows


class CancelJob(_ChangeJob):
    """End jobs, whatever they do: servers made for them are deleted, what they hold, leases too, is free again."""

    action = "cancel"


class HoldJob(_ChangeJob):
    """Keep waiting jobs from starting until they are released."""

    action = "hold"


class ReleaseJob(_ChangeJob):
    """Let jobs start that were held."""

    action = "release"


class ExplainJob(command.Lister):  # type: ignore[misc]
    """Say what happened to a job and why, and why it is where it is now: the last rows."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the job."""
        parser = _with_job(super().get_parser(prog_name))
        parser.add_argument(
            "--now",
            action="store_true",
            help="Only why it is where it is, not what happened before",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        job = _found(self, parsed_args)
        events = [] if parsed_args.now else list(_jobs(self).events(job))
        rows = [
            (_moment(event["at"]), event["state"], event["actor"], _about(event, parsed_args), each)
            for event in events
            for each in _sentences(event["reasons"]) or [""]
        ]
        rows += [("now", _state(job), "", "", each) for each in _sentences(job["reasons"])]
        place = _place(job)
        if place:
            rows.append(("now", _state(job), "", "", f"place in the queue: {place}"))
        return ("At", "State", "By", "What", "Why"), [
            (*row[:-1], formatting.folded(row[-1], parsed_args)) for row in rows
        ]


class ListJobLimits(command.Lister):  # type: ignore[misc]
    """Show how many jobs and servers of your project may wait, and run, at a time, and how many do."""

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and rows."""
        rows = [(each["name"], each["used"], each["limit"]) for each in _jobs(self).limits()]
        if parsed_args.formatter not in ("json", "yaml"):
            rows = [(*row, "none" if limit is None else limit) for *row, limit in rows]
        return ("Name", "Used", "Limit"), rows


class WatchJob(command.ShowOne):  # type: ignore[misc]
    """Follow a job until it runs or has ended, and show it then.

    Each step is a line as it happens, with its reason; on a terminal a line below it shows the place in the queue, or
    how many servers are there. Ends with 1 when the job has failed or was cancelled, or the time is over.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add the job, and how long it is followed."""
        parser = _with_job(super().get_parser(prog_name))
        parser.add_argument(
            "--until",
            choices=("running", "ended"),
            default="ended",
            help="What is waited for (default: ended)",
        )
        parser.add_argument(
            "--interval",
            type=number_from(0.1, 3600.0),
            default=5.0,
            metavar="<seconds>",
            help="Between two looks (default: 5)",
        )
        parser.add_argument(
            "--timeout",
            type=number_from(0.0, 366 * _HOURS),
            metavar="<seconds>",
            help="Give up then (default: never); the job goes on",
        )
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        """Return 1 where the job is not what was waited for."""
        self._failed = False
        return int(super().run(parsed_args)) or int(self._failed)

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
        """Return columns and values."""
        jobs, job = _jobs(self), _found(self, parsed_args)
        ends = ("running", *_FINAL) if parsed_args.until == "running" else _FINAL
        began, last, progress = time.monotonic(), 0, _Progress(self.app.stderr)
        while True:
            for event in jobs.events(job, last):
                last = event["id"]
                progress.event(event)
            job = jobs.find(job["id"])
            waited = time.monotonic() - began
            late = parsed_args.timeout is not None and waited >= parsed_args.timeout
            if job["state"] in ends or late:
                break
            progress.state(f"{_state(job)}: {_place(job) or _servers(job)}")
            time.sleep(parsed_args.interval)
        progress.end()
        if job["state"] not in ends:
            progress.late(job, waited)
        self._failed = job["state"] not in ends or job["state"] in ("failed", "cancelled")
        return _shown(job, parsed_args)


class _Progress:
    """Lines on standard error, and on a terminal one more that changes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._drawn = ""

    def event(self, event: Mapping[str, Any]) -> None:
        """Write what happened."""
        self.end()
        why = "; ".join(_sentences(event["reasons"]))
        print(f"{_moment(event['at'])} {event['state']}: {why}", file=self._file)

    def state(self, text: str) -> None:
        """Draw how it is now."""
        if self._file.isatty():
            print(f"\r{text:{len(self._drawn)}}", end="", file=self._file, flush=True)
            self._drawn = text

    def late(self, job: Job, waited: float) -> None:
        """Write that the job is followed no longer."""
        sentence = (
            f"It is {_state(job)} after {waited:.0f} s and is followed no longer; it goes on."
        )
        print(sentence, file=self._file)

    def end(self) -> None:
        """Wipe what was drawn."""
        if self._drawn:
            print(f"\r{'':{len(self._drawn)}}\r", end="", file=self._file)
            self._drawn = ""


def _jobs(shell_command: Any) -> JobsClient:
    found: JobsClient = shell_command.app.client_manager.numa.jobs()
    return found


def _found(shell_command: Any, parsed_args: argparse.Namespace) -> Job:
    return _jobs(shell_command).find(parsed_args.job, all_projects=parsed_args.all_projects)


def _with_job(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("job", metavar="<job>", help="Job, by id or name")
    _add_all_projects(parser)
    return parser


def _add_all_projects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all-projects", action="store_true", help="Jobs of all projects (admin or service)"
    )


def _shown(job: Job, parsed_args: argparse.Namespace) -> tuple[Any, Any]:
    values = {
        **{key: value for key, value in job.items() if key != "reasons"},
        "reasons": "; ".join(_sentences(job.get("reasons", ()))),
    }
    for key in ("submitted_at", "started_at", "ended_at", "deadline_at"):
        if key in values:
            values[key] = _moment(values[key])
    if parsed_args.formatter not in ("json", "yaml"):
        values = {key: "" if value is None else value for key, value in values.items()}
        values["parts"] = "\n".join(map(_part, job["parts"]))
        if "leases" in values:
            values["leases"] = "\n".join(job["leases"])
        values["place"] = _place(job)
        values["reasons"] = formatting.folded(values["reasons"], parsed_args)
    return tuple(values), tuple(values.values())


def _part(part: Mapping[str, Any]) -> str:
    """Return a part as lines: what it asks for, where it waits for a place, and the servers that it has."""
    words = [f"{key}={value}" for key, value in part["extra_specs"].items()]
    words += ["no two on one host"] if part["apart"] else []
    words += [f"on failure: {part['on_failure']}"] if part["on_failure"] != "fail" else []
    scopes = [
        _SCOPES[each["scope"]] + (f" for {each['wait_s']:g} s" if each["wait_s"] else "")
        for each in part["wait_for"]
    ]
    lines = (
        f"{part['name']}: {part['count']} × flavor {part['flavor']}",
        f"image {part['image']}",
        *(f"network {each}" for each in part["networks"]),
        f"waits for places {', then '.join(scopes)}",
        ", ".join(words),
        *(f"server {each['id']}" for each in part["servers"]),
    )
    return "\n  ".join(filter(None, lines))


def _about(event: Mapping[str, Any], parsed_args: argparse.Namespace) -> str:
    """Return what an event is about: in words where people read it."""
    about = str(event["what"])
    return _ABOUT.get(about, about) if parsed_args.formatter == "table" else about


def _state(job: Job) -> str:
    if job["state"] == _WAITING and job["held"]:
        return f"{_WAITING} (held)"
    ending = job["cancelled"] and job["state"] not in _FINAL
    return f"{job['state']} (cancelled)" if ending else str(job["state"])


def _servers(job: Job) -> str:
    if leases := job.get("leases"):
        return f"leases: {len(leases)}"
    there = sum(len(part["servers"]) for part in job["parts"])
    return f"{there}/{sum(part['count'] for part in job['parts'])}"


def _why(job: Job) -> str:
    return "; ".join(_sentences(job["reasons"]))


def _sentences(reasons: Iterable[Mapping[str, Any]]) -> list[str]:
    return [each["sentence"] for each in reasons]


def _place(job: Job) -> str:
    place = job.get("place")
    return f"{place['place']}/{place['of']}" if place else ""


def _moment(seconds: float | None) -> str:
    """Return a time as text, '' for none."""
    if seconds is None:
        return ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
