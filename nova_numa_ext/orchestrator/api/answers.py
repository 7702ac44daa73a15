# SPDX-License-Identifier: Apache-2.0
"""What answers hold, as JSON schema: the reference is made of it, and tests hold each answer against it."""

from collections.abc import Mapping
from typing import Any, Final

from nova_numa_ext.orchestrator.api import scaling_schema, schemas
from nova_numa_ext.policy.elastic.member_steps import MemberStep
from nova_numa_ext.policy.jobs.job import JobKind
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu.leases import LeaseState

Schema = Mapping[str, Any]


def _object(**members: Schema) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(members),
        "additionalProperties": False,
        "properties": members,
    }


def _array(items: Schema, description: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": description}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "number", "description": description}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "description": description}


def _time(description: str) -> dict[str, Any]:
    return {"type": ["number", "null"], "description": f"{description}, seconds since 1970"}


def _given(where: Schema, name: str, **more: Any) -> dict[str, Any]:
    """Return a member that is answered as it was submitted, or null."""
    return {"description": where["properties"][name]["description"], **more}


_VALUE: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}
_STATE: Final[Schema] = {"enum": list(JobState), "description": "how far it is"}
_ASKED: Final[Schema] = schemas.CREATE["properties"]["job"]
_ASKED_LEASE: Final[Schema] = schemas.LEASE["properties"]["lease"]
_ASKED_PART: Final[Schema] = _ASKED["properties"]["parts"]["items"]

_REASONS: Final = _array(
    _object(
        term=_text("which reason it is, for programs"),
        value={**_VALUE, "description": "what was found"},
        against={**_VALUE, "description": "what it was compared with"},
        where=_text("which part or host it is about; of jobs of kind ``attach`` also ``leases``"),
        sentence=_text("the same for people"),
    ),
    "why it is in its state",
)

_PART: Final = _object(
    name=_text("its name in the job"),
    count=_given(_ASKED_PART, "count", type="integer"),
    flavor=_text("nova's id of the flavor"),
    image=_text("uuid of the image"),
    networks=_array({"type": "string"}, "uuids of the networks, in order; none alone: no network"),
    extra_specs={
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "of the flavor, with those that the part adds",
    },
    wait_for=_array(
        _object(
            scope=_ASKED_PART["properties"]["wait_for"]["items"]["properties"]["scope"],
            wait_s={"type": ["number", "null"], "description": "seconds; null: for ever"},
        ),
        "how near each other its servers are to be, narrow scopes first",
    ),
    apart=_flag("no two of its servers on one host"),
    on_failure=_given(
        _ASKED_PART, "on_failure", enum=_ASKED_PART["properties"]["on_failure"]["enum"]
    ),
    servers=_array(
        _object(
            member={"type": "integer", "description": "which of the part's servers, from 0"},
            id=_text("nova's uuid of it"),
        ),
        "servers that count as its members",
    ),
)

_NEW: Final[Mapping[str, Schema]] = {
    "name": _text("its name"),
    "project_id": _text("project that it belongs to"),
    "user_id": _text("user as whom its servers are made"),
    "held": _flag("it is not started before it is released"),
    "priority": _given(_ASKED, "priority", type="integer"),
    "walltime_s": _given(_ASKED, "walltime_s", type=["number", "null"]),
    "deadline_at": _given(_ASKED, "deadline_at", type=["number", "null"]),
    "max_wait_s": _given(_ASKED, "max_wait_s", type=["number", "null"]),
    "preemptible": _given(_ASKED, "preemptible", type="boolean"),
    "parts": _array(_PART, "servers that are alike"),
}

NEW_JOB: Final = _object(job=_object(**_NEW))

_JOB: Final = _object(
    id=_text("its uuid"),
    kind={
        "enum": list(JobKind),
        "description": "``servers``: the service makes these; ``attach``: it asks for remote GPUs, and has no parts",
    },
    leases=_array(
        {"type": "string"}, "uuids of the leases that a job of kind ``attach`` has asked for"
    ),
    **_NEW,
    state=_STATE,
    reasons=_REASONS,
    place={
        **_object(
            place={"type": "integer", "description": "1 for the job that is asked first"},
            of={"type": "integer", "description": "jobs of all projects that wait"},
        ),
        "type": ["object", "null"],
        "description": "its place in the queue at this moment; null: it does not wait, or is held",
    },
    cancelled=_flag("its user has cancelled it"),
    postponed=_number("how often it was postponed for a better place"),
    submitted_at=_time("when it was submitted"),
    started_at=_time("when all of its servers last ran, or all of its leases were held"),
    ended_at=_time("when it ended"),
)

JOB: Final = _object(job=_JOB)
JOBS: Final = _object(jobs=_array(_JOB, "in the order of their submission"))

EVENTS: Final = _object(
    events=_array(
        _object(
            id={"type": "integer", "description": "larger than that of every event before"},
            at=_time("when it happened"),
            actor=_text("uuid of the user, or ``engine``; operators see which engine"),
            what=_text("``state`` for a new state, else the member of the job that changed"),
            state=_STATE,
            reasons=_REASONS,
        ),
        "what happened, oldest first",
    )
)

_LEASE: Final = _object(
    id=_text("its uuid, and its consumer's in Placement"),
    project_id=_text("project that it belongs to"),
    user_id=_text("user that asked for it"),
    **{
        **_ASKED_LEASE["properties"],
        "max_wait_s": _given(_ASKED_LEASE, "max_wait_s", type=["number", "null"]),
        "job_id": {
            "type": ["string", "null"],
            "description": "job of kind ``attach`` by which it waits; null: it has none",
        },
        "server_id": {
            "type": ["string", "null"],
            "description": "server that it is for; null: none is named",
        },
        "pool": {
            "type": ["string", "null"],
            "description": "host whose GPU it must be, empty: any; null: hidden",
        },
    },
    state={"enum": list(LeaseState), "description": "where it is in its life"},
    held=_flag("Placement holds its claim"),
    busy={
        "type": ["number", "null"],
        "description": "part of the last minutes in which it kept its GPU busy, as its host reports, 0 to 1; null: "
        "not known",
    },
    used_mb={
        "type": ["number", "null"],
        "description": "memory of its GPU that it has in use, of ``memory_mb``, MiB, as its host reports; null: not "
        "known",
    },
    link_mbps={
        "type": ["number", "null"],
        "description": "what goes over its link, either way, megabytes a second of the last minutes, as its host "
        "reports; null: not known",
    },
    move={
        "type": ["object", "null"],
        "description": "while it goes to another GPU: ``carried``, whether with all that it has, and how many MiB of "
        "its images have been ``sent_mb`` of ``of_mb``, 0 while they are not made; null: it goes nowhere",
    },
    reasons=_REASONS,
    host={
        "type": ["string", "null"],
        "description": "host that lends the GPU; null: hidden, or none is chosen",
    },
    gpu={
        "type": ["string", "null"],
        "description": "provider of the GPU; null: hidden, or none is chosen",
    },
    client_host={
        "type": ["string", "null"],
        "description": "host that may connect, where its server runs; null: hidden, or none may",
    },
    created_at=_time("when it was asked for"),
    ended_at=_time("when it ended"),
)

LEASE: Final = _object(lease=_LEASE)
LEASES: Final = _object(leases=_array(_LEASE, "in the order in which they were asked for"))

_EPOCH: Final[Schema] = {"type": "integer", "description": "that counts now"}

_ON_A_GPU: Final[Mapping[str, Schema]] = {
    "id": _text("of the lease"),
    "epoch": _EPOCH,
    "gpu": _text("provider of the GPU"),
    **{
        name: _ASKED_LEASE["properties"][name]
        for name in ("memory_mb", "service_level", "api", "network_mbps")
    },
}

HOST_LEASES: Final = _object(
    serves=_array(
        _object(
            **_ON_A_GPU,
            client_host=_text("host that may connect, as its certificate names it; empty: none"),
        ),
        "leases whose server process the host is to run",
    ),
    ends=_array(
        _object(id=_text("of the lease"), epoch=_EPOCH),
        "leases of which it is to report that no process runs any more",
    ),
    attaches=_array(
        _object(
            id=_text("of the lease"),
            epoch=_EPOCH,
            server_id=_text("server that may use it"),
            api=_ASKED_LEASE["properties"]["api"],
            address=_text("where its server process listens"),
            gpu_host=_text("host of the GPU, as its certificate names it"),
            network_mbps=_ASKED_LEASE["properties"]["network_mbps"],
        ),
        "leases of the host's servers: their GPU's host has acknowledged the epoch",
    ),
    sends=_array(
        _object(
            id=_text("of the lease"),
            epoch=_EPOCH,
            to=_text("host that it goes to, as its certificate names it"),
            address=_text("where that takes its images; empty: not yet"),
            network_mbps=_ASKED_LEASE["properties"]["network_mbps"],
            cancelled=_flag("it is to go on here"),
        ),
        "leases whose process is to go to another host with all that it has; its end here is reported as of ``ends``",
    ),
    receives=_array(
        _object(
            **_ON_A_GPU,
            client_host=_text("empty"),
            source=_text("host that it comes from, as its certificate names it"),
        ),
        "leases that come to GPUs of the host with all that their processes have",
    ),
)

LIMITS: Final = _object(
    limits=_array(
        _object(
            name=_text("option of ``[numa_ext_jobs]`` that sets it"),
            limit={
                "type": ["integer", "null"],
                "description": "most that may be used; null: there is no limit",
            },
            used={
                "type": "integer",
                "description": "what the project uses: ``waiting_…`` its jobs in the queue, ``project_leases`` and "
                "``project_gpu_memory_mb`` its leases, others its jobs with places",
            },
        ),
        "limits of the project",
    )
)

_ASKED_SCALING: Final[Schema] = scaling_schema.SCALING["properties"]["scaling"]

_SCALING_MODE: Final[Schema] = {
    "enum": ["observe", "enforce"],
    "description": "``observe``: decisions are stored, and not carried out",
}

SCALING: Final = _object(
    scaling=_object(
        id=_text("uuid of the server group"),
        project_id=_text("whose it is"),
        user_id=_text("user that has set, paused or resumed it last"),
        mode=_SCALING_MODE,
        paused=_flag("nothing is decided, and nothing carried out"),
        settings={**_ASKED_SCALING["properties"]["settings"]},
        source={**_ASKED_SCALING["properties"]["source"]},
        enforce={
            **_ASKED_SCALING["properties"]["enforce"],
            "type": ["object", "null"],
            "description": "of what members are made that are added, or the stack that has them, with ids; null: it "
            "is observed",
        },
        members=_array(
            _object(
                server_id=_text("uuid; empty before nova has answered"),
                step={
                    "enum": [*MemberStep],
                    "description": "how far it is; ``joined``: it carries load",
                },
                since=_time("when it came to its step"),
            ),
            "that the service has added, and not yet taken out again",
        ),
        trouble=_text("why the engine cannot decide; empty: it can"),
        last_decision={
            "type": ["object", "null"],
            "description": "the newest line of the decision log; null: none yet",
        },
        created_at=_time("when it was set first"),
        changed_at=_time("when an operator has changed it last"),
    )
)

SCALING_GROUPS: Final = _object(
    scaling=_array(
        _object(
            id=_text("uuid of the server group"),
            project_id=_text("whose it is"),
            mode=_SCALING_MODE,
            paused=_flag("nothing is decided"),
            trouble=_text("why nothing can be decided; empty: it can"),
            changed_at=_time("when an operator has changed it last"),
        ),
        "in the order in which they were set first",
    )
)

SCALING_DECISIONS: Final = _object(
    decisions=_array(
        _object(
            at_s=_number("time of the period as the source has it, seconds"),
            members={"type": "integer", "description": "members that carry load"},
            reads_per_s=_number("of all of them"),
            writes_per_s=_number("of all of them"),
            forecasts=_array(
                _object(
                    predictor=_text("that was followed"),
                    lead={"type": "integer", "description": "periods ahead"},
                    per_s=_number("what it said"),
                ),
                "of reads, then of writes",
            ),
            ratios={
                "type": "object",
                "additionalProperties": {"type": "number"},
                "description": "expected load of each member over its capacity, where it is known",
            },
            suggested_shares={
                "type": "object",
                "additionalProperties": {"type": "number"},
                "description": "share of the work that each member should get",
            },
            change={"type": "integer", "description": "members more; fewer when negative"},
            leaving=_array({"type": "string"}, "members that should leave, first the first one"),
            term=_text("which reason it is, for programs"),
            why=_text("the same for people"),
        ),
        "a line for each period, oldest first; the same as of the replay of the source",
    )
)

TOPOLOGY: Final = _object(
    topology=_object(
        server_group_id=_text("nova's uuid of the group"),
        fabric=_text("that the servers hang on, as a hash"),
        levels=_array({"type": "string"}, "names of the levels of nodes, bottom up"),
        servers=_array(
            _object(
                id=_text("nova's uuid of it"),
                name=_text("its name"),
                nodes=_array(
                    {"type": "string"},
                    "the node of each level above its host, as hashes: the same for servers below the same one; none: "
                    "it has no host, or one that does not hang on this fabric",
                ),
            ),
            "servers of the group that the token may see",
        ),
        file={
            "type": ["string", "null"],
            "description": "the file of the format that was asked for; null for ``json``",
        },
    )
)

VERSIONS: Final = _object(
    versions=_array(
        _object(
            id=_text("name in paths"),
            status=_text("``CURRENT``"),
            min_version=_text("oldest that may be asked for in ``OpenStack-API-Version``"),
            version=_text("newest"),
            links=_array(_object(rel=_text("``self``"), href=_text("where it is")), "where it is"),
        ),
        "versions of the API",
    )
)

ERRORS: Final = _object(
    errors=_array(
        _object(
            status={"type": "integer", "description": "the HTTP status"},
            detail=_text("one sentence: what, where, and what is allowed"),
            request_id=_text("by which operators find it in the log"),
        ),
        "one",
    )
)
