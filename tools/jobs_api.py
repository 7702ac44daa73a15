# SPDX-License-Identifier: Apache-2.0
"""The reference of the API of jobs, out of its routes, rules and schemas."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from nova_numa_ext.orchestrator.api import policies
from nova_numa_ext.orchestrator.api.handlers.versions import SERVICE_TYPE, VERSION
from nova_numa_ext.orchestrator.api.routes import ERRORS, ROUTES, Route

_INTRODUCTION: Final = f"""\
Service type ``numa-ext``. Each request but ``GET /`` carries a token of Keystone in ``X-Auth-Token``; what a token may
do is in ``policy.yaml``, by the rules that are named here.

* ``OpenStack-API-Version: {SERVICE_TYPE} {VERSION}`` asks for a version; without it the oldest one answers. So far
  {VERSION} is the oldest and the newest.
* An error is ``{{"errors": [{{"status": …, "detail": …, "request_id": …}}]}}``; ``detail`` is one sentence: what,
  where, and what is allowed.
* Answers to GET have an ``ETag``. With ``If-None-Match`` what has not changed is a 304 without a body, so a job may be
  watched by asking often.
* ``POST /v1/jobs`` may carry an ``Idempotency-Key``, 1 to 255 printed characters that the client has chosen. Sent again
  because the answer got lost, it is answered with the job that the first request has stored.
* Times are seconds since 1970, by the clock of the service's database.

Any request may be answered with one of these, beside what is named for it:
"""


def reference() -> str:
    """Return the page's text."""
    named = ((each, f"{each.method} {each.path}") for each in ROUTES)
    parts = [_INTRODUCTION, *(f"* {status}: {when}" for status, when in ERRORS.items()), ""]
    parts += [f"{name}\n{'=' * len(name)}\n\n{_route(each)}" for each, name in named]
    return "\n".join(parts)


def _route(route: Route) -> str:
    parts = [f"{route.what}\n"]
    parts += [f"Rule ``{each.name}``: ``{each.check_str}``\n" for each in _rules(route)]
    if route.queries:
        rows = ((f"``{each.name}``", each.allowed, each.what) for each in route.queries)
        parts.append(_table("In the query", ("parameter", "allowed", "meaning"), rows))
    if route.body:
        parts.append(_table("In the body", ("member", "allowed", "meaning"), _members(route.body)))
    for status, schema in route.answers.items():
        title = f"Answer {status}"
        if not schema:
            parts.append(f"{title}: no body.\n")
            continue
        same = next((each for each in ROUTES if schema in each.answers.values()), route)
        if same is not route:
            parts.append(f"Answer {status}: as of ``{same.method} {same.path}``.\n")
            continue
        parts.append(_table(title, ("member", "type", "meaning"), _members(schema)))
    parts += [f"Answer {status}: {when}.\n" for status, when in route.errors.items()]
    return "\n".join(parts)


def _rules(route: Route) -> Iterator[Any]:
    for rule in policies.RULES:
        for operation in rule.operations:
            path = operation["path"].partition("?")[0]
            if (operation["method"], path) == (route.method, route.path):
                yield rule


def _members(schema: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, what is allowed and meaning of each member, those of objects and arrays after them."""
    for name, each in schema.get("properties", {}).items():
        path = f"{where}{name}"
        needed = name in schema.get("required", ())
        if "description" in each:
            yield f"``{path}``", _allowed(each, needed), each["description"]
        items = each.get("items", {})
        yield from _members(each, f"{path}.")
        yield from _members(items, f"{path}[].")


def _allowed(schema: Mapping[str, Any], needed: bool) -> str:
    return "; ".join(_limits(schema)) + ("" if needed else "; optional")


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    kinds = schema.get("type", ())
    names = [kinds] if isinstance(kinds, str) else kinds
    if "enum" in schema:
        yield ", ".join(f"``{each}``" for each in schema["enum"])
    if names:
        yield " or ".join(names)
    if "$comment" in schema:
        yield schema["$comment"]
    for word, text in (
        ("exclusiveMinimum", "above"),
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("maxLength", "characters at most:"),
        ("minItems", "items at least:"),
        ("maxItems", "items at most:"),
        ("maxProperties", "members at most:"),
    ):
        if word in schema:
            yield f"{text} {schema[word]:,}"
    if "default" in schema:
        default = str(schema["default"]).lower()
        yield f"``{default}`` if not given" if default else "empty if not given"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    made = [f".. list-table:: {title}\n   :header-rows: 1\n   :widths: 35 35 30\n"]
    for row in (head, *rows):
        first, *others = (" ".join(cell.split()).replace("*", r"\*") for cell in row)
        made.append(f"   * - {first}")
        made += [f"     - {cell}" for cell in others]
    return "\n".join(made) + "\n"
