# SPDX-License-Identifier: Apache-2.0
"""What requests may hold that have a body, as JSON schema; errors name the member that is wrong."""

from collections.abc import Mapping
from typing import Any, Final

import jsonschema

from nova_numa_ext.orchestrator.cloud.servers import LONGEST_NAME, LONGEST_PART_NAME
from nova_numa_ext.orchestrator.store.stored_lease import LeaseSpec
from nova_numa_ext.policy.jobs.job import HIGHEST_PRIORITY, LOWEST_PRIORITY, BuildFailure, Scope
from nova_numa_ext.policy.remote_gpu.choosing import Unmet
from placement_traits.errors import LONGEST_TEXT, InvalidValueError
from placement_traits.names import RemoteGpuApi, ServiceLevel

MOST_PARTS: Final = 16
MOST_SERVERS: Final = 1024
MOST_NETWORKS: Final = 16
_MOST_EXTRA_SPECS: Final = 64
# As Placement's amounts.
_MOST_LEASES: Final = 4096
_MOST_AMOUNT: Final = 2**31 - 1
_MOST_SECONDS: Final = 10 * 366 * 86_400

# As nova's names.
NAME: Final = {
    "type": "string",
    "maxLength": LONGEST_NAME,
    "pattern": r"^(?!\s)[^\x00-\x1f\x7f]+(?<!\s)\Z",
    "$comment": "characters that can be printed, no blank at either end",
}


def _seconds(description: str) -> dict[str, Any]:
    return {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": _MOST_SECONDS,
        "description": description,
    }


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "default": False, "description": description}


_WAIT_FOR: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": len(Scope),
    "description": "how near each other its servers are to be, narrow scopes first; anywhere if not given",
    "items": {
        "type": "object",
        "required": ["scope"],
        "additionalProperties": False,
        "properties": {
            "scope": {
                "enum": list(Scope),
                "description": "``host``: all on one host; ``leaf``: all on hosts of one leaf of the fabric; "
                "``pod``: all below one node right above leafs; "
                "``fleet``: anywhere",
            },
            "wait_s": _seconds(
                "seconds in the queue until the next scope is good enough; for ever if not given"
            ),
        },
    },
}

_PART: Final = {
    "type": "object",
    "required": ["name", "flavor", "image"],
    "additionalProperties": False,
    "properties": {
        "name": {
            "type": "string",
            "pattern": rf"^[A-Za-z0-9_.-]{{1,{LONGEST_PART_NAME}}}\Z",
            "$comment": f"1 to {LONGEST_PART_NAME} of the characters A-Z a-z 0-9 _ . -",
            "description": "unlike that of every other part; its servers carry the tag ``numa-ext:<name>``",
        },
        "count": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_SERVERS,
            "default": 1,
            "description": "servers",
        },
        "flavor": {**NAME, "description": "id or name of a flavor"},
        "image": {
            **NAME,
            "description": "id of an active image, or a name that only one has; the flavor has to be large enough",
        },
        "networks": {
            "type": "array",
            "maxItems": MOST_NETWORKS,
            "description": "ids or names; needed where the project has more than one network; none alone: no network",
            "items": NAME,
        },
        "extra_specs": {
            "type": "object",
            "maxProperties": _MOST_EXTRA_SPECS,
            "description": "what is requested beyond the flavor's extra specs, in the same words",
            "propertyNames": {
                "pattern": r"^numa_ext:[a-z0-9_]{1,64}\Z",
                "$comment": "keys that begin with numa_ext:",
            },
            "additionalProperties": {"type": "string", "maxLength": 255},
        },
        "wait_for": _WAIT_FOR,
        "apart": _flag("no two of its servers on one host"),
        "on_failure": {
            "enum": list(BuildFailure),
            "default": BuildFailure.FAIL,
            "description": "when a server fails to build: ``keep`` the others, ``replace`` it, or ``fail`` as a whole",
        },
    },
}

CREATE: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["job"],
    "additionalProperties": False,
    "properties": {
        "job": {
            "type": "object",
            "required": ["name", "parts"],
            "additionalProperties": False,
            "properties": {
                "name": {
                    **NAME,
                    "description": "servers are named ``<name>-<part>-<number>``, which nova has to take, too",
                },
                "parts": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_PARTS,
                    "description": "servers that are alike; all parts start or none",
                    "items": _PART,
                },
                "priority": {
                    "type": "integer",
                    "minimum": LOWEST_PRIORITY,
                    "maximum": HIGHEST_PRIORITY,
                    "default": 0,
                    "description": "more is earlier; above 0 is for administrators",
                },
                "walltime_s": _seconds(
                    "seconds after which it is ended; it runs until it is cancelled if not given"
                ),
                "deadline_at": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": 4e9,
                    "description": "when it must have ended, seconds since 1970; not before now and its walltime",
                },
                "max_wait_s": _seconds("seconds in the queue after which it is given up"),
                "held": _flag("it is not started before it is released"),
                "preemptible": _flag(
                    "it may be stopped and queued again in favour of latency-critical jobs"
                ),
            },
        }
    },
}

_UUID: Final = {
    "type": "string",
    "pattern": r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z",
    "$comment": "a uuid in lower case, with hyphens",
}

_PRIORITY: Final = {"type": "integer", "minimum": 0, "maximum": 9}

LEASE: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["lease"],
    "additionalProperties": False,
    "properties": {
        "lease": {
            "type": "object",
            "required": ["memory_mb", "api"],
            "additionalProperties": False,
            "properties": {
                "memory_mb": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": _MOST_AMOUNT,
                    "description": "of the GPU, MiB",
                },
                "api": {"enum": list(RemoteGpuApi), "description": "by which the GPU is used"},
                "service_level": {
                    "enum": list(ServiceLevel),
                    "default": ServiceLevel.SILVER,
                    "description": "part of the GPU's time",
                },
                "network_mbps": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": _MOST_AMOUNT,
                    "default": 0,
                    "description": "promised on the NIC of the GPU's host, MB/s; 0: what others leave",
                },
                "pool": {
                    "type": "string",
                    "maxLength": 255,
                    "default": "",
                    "description": "host whose GPU it must be; any if empty",
                },
                "unmet": {
                    "enum": list(Unmet),
                    "default": Unmet.WAIT,
                    "description": "where no GPU has room: ``wait`` until one has, in the order of requests, or "
                    "``stop``, which ends the lease",
                },
                "priority": {
                    **_PRIORITY,
                    "description": "among leases that wait: more is earlier; 0 if not given",
                },
                "max_wait_s": _seconds("seconds of waiting after which it is given up"),
                "server_id": {
                    **_UUID,
                    "description": "server that it is for; it is attached where that runs. Without one to none",
                },
            },
        }
    },
}

ATTACH: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["attach"],
    "additionalProperties": False,
    "properties": {
        "attach": {
            "type": "object",
            "required": ["server_id"],
            "additionalProperties": False,
            "properties": {"server_id": {**_UUID, "description": "server of the lease's project"}},
        }
    },
}

MOVE: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["move"],
    "additionalProperties": False,
    "properties": {
        "move": {
            "type": "object",
            "required": ["pool"],
            "additionalProperties": False,
            "properties": {"pool": LEASE["properties"]["lease"]["properties"]["pool"]},
        }
    },
}

_EPOCH: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": 2**62,
    "description": "none older is served any more",
}


_HOST_NAME: Final = {"type": "string", "maxLength": 255}


def _of_leases(
    description: str, optional: Mapping[str, Any] | None = None, **more: Mapping[str, Any]
) -> dict[str, Any]:
    members = {"id": {**_UUID, "description": "of the lease"}, "epoch": _EPOCH, **more}
    return {
        "type": "array",
        "maxItems": _MOST_LEASES,
        "description": description,
        "items": {
            "type": "object",
            "required": list(members),
            "additionalProperties": False,
            "properties": {**members, **(optional or {})},
        },
    }


_AMOUNT: Final = {"type": "integer", "minimum": 0, "maximum": _MOST_AMOUNT}
_ASKED: Final = {
    "type": "object",
    "required": ["serves", "ends", "attaches"],
    "additionalProperties": False,
    "description": "what this host was last asked to do, as it was answered: sent while the service does not say",
    "properties": {
        "serves": _of_leases(
            "leases that it serves",
            {"client_host": {**_HOST_NAME, "description": "host that may connect"}},
            gpu={**_UUID, "description": "provider of the GPU"},
            memory_mb={**_AMOUNT, "minimum": 1, "description": "of the GPU, MiB"},
            service_level={"enum": list(ServiceLevel), "description": "part of the GPU's time"},
            api={"enum": list(RemoteGpuApi), "description": "by which the GPU is used"},
            network_mbps={**_AMOUNT, "description": "promised, MB/s"},
        ),
        "ends": _of_leases("leases that it is to end"),
        "attaches": _of_leases(
            "leases of its servers",
            {
                "gpu_host": {**_HOST_NAME, "description": "host of the GPU"},
                "network_mbps": {**_AMOUNT, "description": "promised, MB/s"},
            },
            server_id={**_UUID, "description": "that uses it"},
            api={"enum": list(RemoteGpuApi), "description": "by which the GPU is used"},
            address={"type": "string", "maxLength": 255, "description": "of the lease's process"},
        ),
    },
}

_REQUEST: Final = {
    "server_id": {**_UUID, "description": "that runs here"},
    "count": {"type": "integer", "minimum": 1, "maximum": 16, "description": "GPUs"},
    "memory_mb": {**_AMOUNT, "minimum": 1, "description": "of each, MiB"},
    "service_level": {"enum": list(ServiceLevel), "description": "part of the time of each"},
    "api": {"enum": list(RemoteGpuApi), "description": "by which they are used"},
    "network_mbps": {**_AMOUNT, "description": "promised for each, MB/s"},
    "priority": {**_PRIORITY, "description": "9 first"},
    "migratable": {"type": "boolean", "description": "they must be able to move"},
}
_REQUESTS: Final = {
    "type": "array",
    "maxItems": _MOST_LEASES,
    "description": "what flavors of servers that run here ask for; leases are made for those that nova has put here",
    "items": {
        "type": "object",
        "required": list(_REQUEST),
        "additionalProperties": False,
        "properties": _REQUEST,
    },
}

HOST_REPORT: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["report"],
    "additionalProperties": False,
    "properties": {
        "report": {
            "type": "object",
            "required": ["serves", "ended", "servers"],
            "additionalProperties": False,
            "properties": {
                "serves": _of_leases(
                    "leases whose server processes run here",
                    {
                        "busy": {
                            "type": "number",
                            "minimum": 0,
                            "maximum": 1,
                            "description": "part of the last minutes in which it kept its GPU busy, if that is known",
                        },
                        "link_mbps": {
                            "type": "number",
                            "minimum": 0,
                            "maximum": _MOST_AMOUNT,
                            "description": "what has gone over its link in the last minutes, either way, MB/s, if that "
                            "is known",
                        },
                        "used_mb": {
                            "type": "number",
                            "minimum": 0,
                            "maximum": _MOST_AMOUNT,
                            "description": "memory of its GPU that it has in use, MiB, if that is known",
                        },
                    },
                    address={
                        "type": "string",
                        "pattern": r"^[A-Za-z0-9.:\[\]_-]{1,255}\Z",
                        "$comment": "an address and a port",
                        "description": "where the process listens",
                    },
                ),
                "ended": _of_leases(
                    "leases of which no process runs here any more; of one that is to be served, its process is gone, "
                    "which served this epoch: the epoch rises"
                ),
                "servers": {
                    "type": ["array", "null"],
                    "maxItems": _MOST_LEASES,
                    "description": "servers that run here, of those for which leases may be; null: the host does not "
                    "know it now, and what it reported before counts",
                    "items": _UUID,
                },
                "requests": _REQUESTS,
                "asked": _ASKED,
                "can_move": {
                    "type": "boolean",
                    "description": "leases come to this host, and leave it, with all that their processes have; false "
                    "if not given",
                },
                "moves": _of_leases(
                    "leases that come or go with all that they have",
                    address={
                        "type": "string",
                        "pattern": r"^[A-Za-z0-9.:\[\]_-]{0,255}\Z",
                        "$comment": "an address and a port, or nothing",
                        "description": "where this host takes the images of one that comes; empty: it does not",
                    },
                    sent_mb={**_AMOUNT, "description": "of the images of one that goes, MiB"},
                    of_mb={**_AMOUNT, "description": "of all its images, MiB"},
                    why={
                        "type": "string",
                        "maxLength": LONGEST_TEXT,
                        "description": "it does not move, and one that was to go goes on here; empty: it may still",
                    },
                ),
            },
        }
    },
}

_CHECK: Final = jsonschema.Draft202012Validator(CREATE)
_CHECK_LEASE: Final = jsonschema.Draft202012Validator(LEASE)
_CHECK_ATTACH: Final = jsonschema.Draft202012Validator(ATTACH)
_CHECK_REPORT: Final = jsonschema.Draft202012Validator(HOST_REPORT)
_CHECK_MOVE: Final = jsonschema.Draft202012Validator(MOVE)


def check_create(body: Any) -> Mapping[str, Any]:
    """Return the job of a request's body.

    :raises InvalidValueError: names the first member that is wrong, and what is allowed
    """
    check_body(_CHECK, body)
    found: Mapping[str, Any] = body["job"]
    return found


def check_report(body: Any) -> Mapping[str, Any]:
    """Return what a host reports. Errors as of :func:`check_create`."""
    check_body(_CHECK_REPORT, body)
    found: Mapping[str, Any] = body["report"]
    return found


def check_lease(body: Any) -> tuple[LeaseSpec, str]:
    """Return what a request's body asks for, and for which server, '' for none. Errors as of :func:`check_create`."""
    check_body(_CHECK_LEASE, body)
    asked = body["lease"]
    spec = LeaseSpec(
        asked["memory_mb"],
        ServiceLevel(asked.get("service_level", ServiceLevel.SILVER)),
        RemoteGpuApi(asked["api"]),
        asked.get("network_mbps", 0),
        asked.get("pool", ""),
        Unmet(asked.get("unmet", Unmet.WAIT)),
        asked.get("priority", 0),
        max_wait_s=asked.get("max_wait_s"),
    )
    return spec, asked.get("server_id", "")


def check_attach(body: Any) -> str:
    """Return the server that a lease is to be for. Errors as of :func:`check_create`."""
    check_body(_CHECK_ATTACH, body)
    found: str = body["attach"]["server_id"]
    return found


def check_move(body: Any) -> str:
    """Return the host to whose GPU a lease is to go, '' for any. Errors as of :func:`check_create`."""
    check_body(_CHECK_MOVE, body)
    found: str = body["move"]["pool"]
    return found


def check_body(schema: jsonschema.Draft202012Validator, body: Any) -> None:
    """Check a request's body. Errors as of :func:`check_create`."""
    error = jsonschema.exceptions.best_match(schema.iter_errors(body))
    if error is not None:
        raise InvalidValueError(error.json_path, error.instance, _allowed(error))


def _allowed(error: jsonschema.ValidationError) -> str:
    if error.validator == "required":
        return f"an object with {', '.join(error.validator_value)}"
    if error.validator == "additionalProperties":
        return f"only {', '.join(sorted(error.schema['properties']))}"
    if error.validator == "pattern":
        return str(error.schema["$comment"])
    return f"{error.validator} {error.validator_value}"
