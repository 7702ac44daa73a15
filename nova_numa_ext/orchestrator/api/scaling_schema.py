# SPDX-License-Identifier: Apache-2.0
"""What the body of a request about an elastic group may hold, as JSON schema."""

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

import jsonschema

from nova_numa_ext.orchestrator.api.schemas import MOST_NETWORKS, NAME, check_body
from nova_numa_ext.orchestrator.store.scaling import ScalingSource
from nova_numa_ext.policy.elastic.agent_queries import agent_queries
from nova_numa_ext.policy.elastic.cells import Grid
from nova_numa_ext.policy.elastic.monitored import MonitoredQueries, check_period
from nova_numa_ext.policy.elastic.settings import ScalingSettings
from placement_traits.errors import InvalidValueError

_SETTING_WORDS: Final = {
    "objective_ms": "latency of reads that is still good, milliseconds",
    "confidence": "share of a cell's readings that must meet it",
    "kept_readings": "readings that a cell keeps",
    "tolerated": "members beyond their capacity that cause nothing (α)",
    "spare": "members' worth of capacity that is kept when the group shrinks (β)",
    "head_room": "factor on predicted loads",
    "lead_periods": "periods to look ahead: two boot times",
    "season_periods": "periods after which loads repeat",
    "least": "fewest members",
    "most": "most members",
    "largest_out": "members that are added at once",
    "largest_in": "members that leave at once",
    "cool_down_out_s": "seconds after an action before one more member is asked for",
    "cool_down_in_s": "seconds after an action before a member leaves",
    "actions_per_hour": "actions of either kind",
    "period_s": "length of a control period, seconds",
}


def _settings() -> dict[str, Any]:
    """Return settings of elastic groups, with the bounds of which errors come: those of the dataclass."""
    members: dict[str, Any] = {}
    for each in fields(ScalingSettings):
        if each.name in _SETTING_WORDS:
            low, high = ScalingSettings.bounds(each.name)
            whole = isinstance(each.default, int)
            given = {} if each.default is MISSING else {"default": each.default}
            members[each.name] = {
                "type": "integer" if whole else "number",
                "minimum": int(low) if whole else low,
                **({} if math.isinf(high) else {"maximum": int(high) if whole else high}),
                **given,
                "description": _SETTING_WORDS[each.name],
            }
    members["granularity"] = {
        "type": "array",
        "minItems": 3,
        "maxItems": 3,
        "default": list(Grid().sides),
        "description": "loads that are this close count as one: reads per second, writes per second, KiB",
        "items": {"type": "number", "exclusiveMinimum": 0},
    }
    return members


_QUERY_WORDS: Final = {
    "reads": "operations per second that the objective is about, of each member",
    "latency_ms": "their latency, milliseconds",
    "writes": "other operations per second",
    "size_kb": "mean size of what both read and write, KiB",
    "placement": "how good a member's place is, in [0, 1]; the worst leaves first",
    "disturbed": "above 0 where something else than its load made a member slow: such readings do not train",
    "cannot_fix": "above 0 where the host of a member cannot keep its objective: it leaves first",
    "label": "whose value names the member: uuid of its server, where the group is enforced",
}


_OF_AGENTS: Final = ("reads", "latency_ms", "label", "placement", "disturbed", "cannot_fix")
_REPLACED: Final = ("placement", "disturbed", "cannot_fix")


def _queries(ours: Collection[str] = ()) -> dict[str, Any]:
    """Return what may be given; of ``ours`` there is a query already, and only some of these may be another one."""
    members: dict[str, Any] = {}
    for each in fields(MonitoredQueries):
        if each.name in ours and each.name not in _REPLACED:
            continue
        known = each.default is not MISSING and each.name not in ours
        given = {"default": each.default} if known else {}
        words = {"description": _QUERY_WORDS[each.name]}
        members[each.name] = {"type": "string", "minLength": 1, "maxLength": 1000, **given, **words}
        if each.default == "":
            del members[each.name]["minLength"]
    return members


SCALING: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["scaling"],
    "additionalProperties": False,
    "properties": {
        "scaling": {
            "type": "object",
            "required": ["settings", "source"],
            "additionalProperties": False,
            "properties": {
                "settings": {
                    "type": "object",
                    "required": ["objective_ms"],
                    "additionalProperties": False,
                    "description": "by which the group is sized",
                    "properties": _settings(),
                },
                "source": {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "additionalProperties": False,
                    "description": "where load and latencies of its members come from: one of these",
                    "properties": {
                        "prometheus": {
                            "type": "object",
                            "required": ["reads", "latency_ms"],
                            "additionalProperties": False,
                            "description": "what ``[numa_ext_jobs]scaling_prometheus`` of the engines is asked, in "
                            "PromQL; ``$window`` stands for the length of a period, ``$fifth`` and ``$tenth`` for "
                            "parts of it",
                            "properties": _queries(),
                        },
                        "agents": {
                            "type": "object",
                            "required": ["names"],
                            "additionalProperties": False,
                            "description": "members report their requests to the host agents, which that Prometheus "
                            "scrapes; shown as the queries that it is asked",
                            "properties": {
                                "names": {
                                    "type": "string",
                                    "minLength": 1,
                                    "maxLength": 255,
                                    "description": "regular expression of Prometheus for the names of all servers of "
                                    "the group, and of no other one of its project",
                                },
                                **_queries(_OF_AGENTS),
                            },
                        },
                        "csv": {
                            "type": "string",
                            "pattern": r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}\Z",
                            "$comment": "a file name of the characters A-Z a-z 0-9 _ . -, the first one no dot",
                            "description": "file in ``[numa_ext_jobs]scaling_traces`` of the engines",
                        },
                    },
                },
                "enforce": {
                    "type": "object",
                    "minProperties": 1,
                    "additionalProperties": False,
                    "description": "decisions are carried out: added servers are made of ``flavor`` and ``image``, or "
                    "``heat`` alone; without it they are only stored",
                    "properties": {
                        "heat": {
                            "type": "object",
                            "required": ["stack", "parameter"],
                            "additionalProperties": False,
                            "description": "a stack has the members: its size is changed, and Heat adds and deletes "
                            "them",
                            "properties": {
                                "stack": {
                                    **NAME,
                                    "description": "name or id, of the user who sets this",
                                },
                                "parameter": {
                                    **NAME,
                                    "description": "from which its template takes the ``desired_capacity``",
                                },
                            },
                        },
                        "name": {
                            "type": "string",
                            "pattern": r"^[A-Za-z0-9][A-Za-z0-9.-]{0,63}\Z",
                            "$comment": "a host name: A-Z a-z 0-9 . -, the first one a letter or digit",
                            "default": "member",
                            "description": "of servers, before a number of their own",
                        },
                        "flavor": {**NAME, "description": "name or id"},
                        "image": {**NAME, "description": "name or id"},
                        "networks": {
                            "type": "array",
                            "items": NAME,
                            "maxItems": MOST_NETWORKS,
                            "default": [],
                            "description": "names or ids; ``none`` alone: no network; empty: the only one of the "
                            "project",
                        },
                        "hook": {
                            "type": "string",
                            "pattern": r"^([A-Za-z0-9_-][A-Za-z0-9_.-]{0,127})?\Z",
                            "$comment": "a file name of the characters A-Z a-z 0-9 _ . -, the first one no dot",
                            "default": "",
                            "description": "program in ``[numa_ext_jobs]scaling_hooks`` of the engines, called when "
                            "members come and leave; empty: none",
                        },
                    },
                },
            },
        }
    },
}

_CHECK: Final = jsonschema.Draft202012Validator(SCALING)


def check_scaling(
    body: Any,
) -> tuple[ScalingSettings, Mapping[str, Any], Mapping[str, Any] | None]:
    """Return what a group is to be sized by, its source, and of what members are made, None where it is observed.

    Errors as of :func:`.schemas.check_create`.
    """
    check_body(_CHECK, body)
    asked = dict(body["scaling"]["settings"])
    sides = asked.pop("granularity", None)
    grid = Grid() if sides is None else Grid(*sides)
    source = body["scaling"]["source"]
    settings = ScalingSettings(**asked, grid=grid)
    if "csv" not in source:
        check_period(settings)
    enforce = body["scaling"].get("enforce")
    if enforce is not None:
        _check_enforce(enforce)
    return settings, source, enforce


def source_of(given: Mapping[str, Any], project: str) -> ScalingSource:
    """Return the source that a request names.

    :param given: as :func:`check_scaling` has returned it
    :param project: uuid of the group's project
    """
    if "agents" in given:
        return ScalingSource(prometheus=agent_queries(project, **given["agents"]))
    if "prometheus" in given:
        return ScalingSource(prometheus=MonitoredQueries(**given["prometheus"]))
    return ScalingSource(given["csv"])


def _check_enforce(enforce: Mapping[str, Any]) -> None:
    """Refuse what names no servers, or servers and a stack.

    :raises InvalidValueError: it is so
    """
    others = sorted(enforce.keys() - {"heat"})
    if "heat" in enforce and others:
        raise InvalidValueError(
            "$.scaling.enforce", others, "heat alone: Heat makes the servers of a stack"
        )
    missing = [name for name in ("flavor", "image") if name not in enforce]
    if "heat" not in enforce and missing:
        raise InvalidValueError(
            "$.scaling.enforce", others, f"{missing[0]}, of which members are made, or heat"
        )
