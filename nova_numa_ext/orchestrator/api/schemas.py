# SPDX-License-Identifier: Apache-2.0
"""What a request to submit a job may hold, as JSON schema; errors name the member that is wrong."""

from collections.abc import Mapping
from typing import Any, Final

import jsonschema

from nova_numa_ext.orchestrator.cloud.servers import LONGEST_PART_NAME
from nova_numa_ext.policy.jobs.job import HIGHEST_PRIORITY, LOWEST_PRIORITY, BuildFailure, Scope
from placement_traits.errors import InvalidValueError

MOST_PARTS: Final = 16
MOST_SERVERS: Final = 1024
_MOST_SECONDS: Final = 10 * 366 * 86_400

_SECONDS: Final = {"type": "number", "exclusiveMinimum": 0, "maximum": _MOST_SECONDS}
_NAME: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[^\x00-\x1f\x7f]+\Z",
}
_REFERENCE: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[A-Za-z0-9_.-]+\Z",
}

_PART: Final = {
    "type": "object",
    "required": ["name", "flavor"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": rf"^[A-Za-z0-9_.-]{{1,{LONGEST_PART_NAME}}}\Z"},
        "count": {"type": "integer", "minimum": 1, "maximum": MOST_SERVERS},
        "flavor": _REFERENCE,
        "image": _REFERENCE,
        "networks": {"type": "array", "maxItems": 16, "items": _REFERENCE},
        "extra_specs": {
            "type": "object",
            "maxProperties": 64,
            "propertyNames": {"pattern": r"^numa_ext:[a-z0-9_]{1,64}\Z"},
            "additionalProperties": {"type": "string", "maxLength": 255},
        },
        "wait_for": {
            "type": "array",
            "minItems": 1,
            "maxItems": len(Scope),
            "items": {
                "type": "object",
                "required": ["scope"],
                "additionalProperties": False,
                "properties": {"scope": {"enum": list(Scope)}, "wait_s": _SECONDS},
            },
        },
        "apart": {"type": "boolean"},
        "on_failure": {"enum": list(BuildFailure)},
    },
}

CREATE: Final = {
    "type": "object",
    "required": ["job"],
    "additionalProperties": False,
    "properties": {
        "job": {
            "type": "object",
            "required": ["name", "parts"],
            "additionalProperties": False,
            "properties": {
                "name": _NAME,
                "parts": {"type": "array", "minItems": 1, "maxItems": MOST_PARTS, "items": _PART},
                "priority": {
                    "type": "integer",
                    "minimum": LOWEST_PRIORITY,
                    "maximum": HIGHEST_PRIORITY,
                },
                "walltime_s": _SECONDS,
                "deadline_at": {"type": "number", "minimum": 0, "maximum": 4e9},
                "max_wait_s": _SECONDS,
                "held": {"type": "boolean"},
                "preemptible": {"type": "boolean"},
            },
        }
    },
}

_CHECK: Final = jsonschema.Draft202012Validator(CREATE)


def check_create(body: Any) -> Mapping[str, Any]:
    """Return the job of a request's body.

    :raises InvalidValueError: names the first member that is wrong, and what is allowed
    """
    error = jsonschema.exceptions.best_match(_CHECK.iter_errors(body))
    if error is not None:
        raise InvalidValueError(error.json_path, error.instance, _allowed(error))
    found: Mapping[str, Any] = body["job"]
    return found


def _allowed(error: jsonschema.ValidationError) -> str:
    if error.validator == "required":
        return f"an object with {', '.join(error.validator_value)}"
    if error.validator == "additionalProperties":
        return f"only {', '.join(sorted(error.schema['properties']))}"
    return f"{error.validator} {error.validator_value}"
