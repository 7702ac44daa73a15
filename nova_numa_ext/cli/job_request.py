# SPDX-License-Identifier: Apache-2.0
"""From the words of ``openstack numa job create`` to the body of its request; the service checks what they mean."""

import argparse
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from nova_numa_ext.policy.jobs.job import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    BuildFailure,
    Scope,
)
from placement_traits.command_line import number_from, whole_from
from placement_traits.errors import InvalidValueError

_MOST_SECONDS: Final = 10 * 366 * 86_400.0
_EXTRA_SPEC: Final = "numa_ext:"
_ONCE: Final = ("name", "flavor", "image")
_KEYS: Final = (
    "name=, flavor=, image=, count=, network= (again for each), apart=true, "
    f"on-failure={'|'.join(BuildFailure)}, wait-for={'|'.join(Scope)}[:SECONDS] (again for each, narrowest first), "
    "numa_ext:KEY="
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a job is made of."""
    parser.add_argument("name", metavar="<name>", help="Name of the job; need not be unique")
    parts = parser.add_mutually_exclusive_group(required=True)
    parts.add_argument(
        "--part",
        action="append",
        type=part,
        metavar="<key=value,…>",
        help=f"Servers that are alike; again for each part. Keys: {_KEYS}. A comma in a value is written twice",
    )
    parts.add_argument(
        "--parts-file",
        type=Path,
        metavar="<file>",
        help="JSON file with the list of parts, as the API takes it",
    )
    seconds = number_from(1.0, _MOST_SECONDS)
    parser.add_argument(
        "--walltime",
        type=seconds,
        metavar="<seconds>",
        help="End the job so long after its start; lets it start early where it delays no other job",
    )
    parser.add_argument(
        "--deadline",
        type=moment,
        metavar="<time>",
        help="When it must have ended, such as 2027-01-31T18:00 (UTC, or with +01:00)",
    )
    parser.add_argument(
        "--max-wait",
        type=seconds,
        metavar="<seconds>",
        help="Give it up after so long in the queue",
    )
    parser.add_argument(
        "--priority",
        type=whole_from(LOWEST_PRIORITY, HIGHEST_PRIORITY),
        metavar="<number>",
        help=f"From {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, more is earlier; above 0 for administrators (default: 0)",
    )
    parser.add_argument("--hold", action="store_true", help="Do not start it until it is released")
    parser.add_argument(
        "--preemptible",
        action="store_true",
        help="Best-effort jobs only: it may be stopped and queued again in favour of latency-critical ones",
    )


def body(parsed_args: argparse.Namespace) -> dict[str, Any]:
    """Return the job of the request.

    :raises InvalidValueError: the file of parts cannot be read
    """
    given = {
        "name": parsed_args.name,
        "parts": parsed_args.part or _of_file(parsed_args.parts_file),
        "walltime_s": parsed_args.walltime,
        "deadline_at": parsed_args.deadline,
        "max_wait_s": parsed_args.max_wait,
        "priority": parsed_args.priority,
        "held": parsed_args.hold or None,
        "preemptible": parsed_args.preemptible or None,
    }
    return {key: value for key, value in given.items() if value is not None}


def moment(text: str) -> float:
    """Return a time in seconds since 1970, for ``type=`` of argparse."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is not allowed; allowed: a time such as 2027-01-31T18:00 or 2027-01-31T18:00+01:00"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def part(text: str) -> Mapping[str, Any]:
    """Return a part as the API takes it, for ``type=`` of argparse."""
    found: dict[str, Any] = {}
    for pair in text.replace(",,", "\0").split(","):
        key, separator, value = pair.replace("\0", ",").partition("=")
        if not separator or not value:
            raise _wrong(pair)
        _add(found, key, value)
    return found


def _add(part: dict[str, Any], key: str, value: str) -> None:
    if key in part or (key == "on-failure" and "on_failure" in part):
        raise _wrong(f"{key}={value}: it is given twice;")
    match key:
        case "network":
            part.setdefault("networks", []).append(value)
        case "wait-for":
            part.setdefault("wait_for", []).append(_scope(value))
        case "count":
            part["count"] = whole_from(1, 1024)(value)
        case "apart" if value in ("true", "false"):
            part["apart"] = value == "true"
        case "on-failure" if value in list(BuildFailure):
            part["on_failure"] = value
        case _ if key in _ONCE:
            part[key] = value
        case _ if key.startswith(_EXTRA_SPEC):
            part.setdefault("extra_specs", {})[key] = value
        case _:
            raise _wrong(f"{key}={value}")


def _scope(value: str) -> dict[str, Any]:
    scope, separator, seconds = value.partition(":")
    if scope not in list(Scope):
        raise _wrong(f"wait-for={value}")
    wait = {"wait_s": number_from(1.0, _MOST_SECONDS)(seconds)} if separator else {}
    return {"scope": scope, **wait}


def _wrong(what: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{what} is not allowed; allowed: {_KEYS}")


def _of_file(file: Path) -> Any:
    allowed = "a JSON file with a list of parts"
    try:
        found = json.loads(file.read_text())
    except OSError as error:
        raise InvalidValueError(
            "--parts-file", str(file), f"{allowed} ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidValueError("--parts-file", str(file), f"{allowed} ({error})") from error
    if not isinstance(found, list):
        raise InvalidValueError("--parts-file", str(file), allowed)
    return found
