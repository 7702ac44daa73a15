# SPDX-License-Identifier: Apache-2.0
"""Journal entries joined into explanations, and explanations as text. Pure: no clock, no network."""

import datetime
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from nova_numa_ext.cli.destinations import Destination
from nova_numa_ext.policy.numa.score import Score
from nova_numa_ext.policy.numa.whatif import Answer
from nova_numa_ext.policy.terms import sentence
from placement_traits.errors import NumaExtError, cut
from placement_traits.words import counted

_MOST_CANDIDATES: Final = 3  # of one host, those that are alike counted once


class UnknownFormError(NumaExtError):
    """An entry of a journal is not what this release writes."""


@dataclass(slots=True)
class Explanation:
    """One decision: what the filter noted, what the weigher noted after it, what went wrong.

    :param filter: entry of kind ``filter``, None when only the weigher ran
    :param weigh: entry of kind ``weigh``, None when nova did not weigh (one host left, or none)
    :param faults: entries of kind ``fault``
    :param nova: where nova sent the server; None where nova was not asked
    """

    filter: dict[str, Any] | None = None
    weigh: dict[str, Any] | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    nova: Destination | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)

    @property
    def head(self) -> dict[str, Any]:
        """The entry with the server and its request."""
        return self.filter or self.weigh or self.faults[0]

    @property
    def alternates(self) -> bool:
        """Nova had placed the server and asked for alternates only."""
        return self.filter is not None and bool(self.filter.get("alternates"))


def find(entries: Iterable[dict[str, Any]], key: str) -> list[Explanation]:
    """Return the decisions about a server uuid or a request id, oldest first.

    :param entries: of one journal or of several, each controller's in their order; what was collected twice counts
        once, and what is no entry of a decision is passed over
    """
    chosen = (entry for entry in entries if _is_about(entry, key))
    once = {json.dumps(entry, sort_keys=True): entry for entry in chosen}
    found: list[Explanation] = []
    open_by_server: dict[tuple[Any, Any, Any], Explanation] = {}
    for entry in once.values():
        who = (entry.get("controller"), entry.get("request"), entry.get("server"))
        current = open_by_server.get(who)
        if current is None or entry["kind"] == "filter" or current.weigh is not None:
            current = open_by_server[who] = Explanation()
            found.append(current)
        if entry["kind"] == "filter":
            current.filter = entry
        elif entry["kind"] == "weigh":
            current.weigh = entry
        else:
            current.faults.append(entry)
    return sorted(found, key=lambda each: each.head.get("time", 0.0))


def _is_about(entry: Mapping[str, Any], key: str) -> bool:
    who = entry.get("server"), entry.get("request"), entry.get("controller", "")
    kind, time = entry.get("kind"), entry.get("time", 0.0)
    return (
        key in who[:2]
        and {"server", "request"} <= entry.keys()
        and all(word is None or isinstance(word, str) for word in who)
        and isinstance(kind, str)
        and isinstance(time, int | float)
    )


def text(explanation: Explanation) -> str:
    """Return an explanation for people.

    :raises UnknownFormError: an entry lacks something: other software has written it, or another release
    """
    try:
        return "\n".join(_lines(explanation))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        what = f"the decision about server {explanation.head['server']}"
        raise UnknownFormError(
            f"{cut(what)} has a form that this release does not know: {cut(repr(error))}"
        ) from error


def _lines(explanation: Explanation) -> Iterator[str]:
    head = explanation.head
    if explanation.filter is not None and explanation.alternates:
        yield from _alternates_lines(explanation.filter)
        return
    yield f"server   {head['server']}    request {head['request'] or '-'}"
    specs = ", ".join(f"{key}={value}" for key, value in sorted(head["asked"].items()))
    yield f"flavor   {head['flavor']}: {specs or 'no key of numa_ext'}"
    yield f"decided  {_when(head)} on controller {head.get('controller', '-')}"
    if explanation.nova is not None:
        yield from _destination_lines(explanation.nova, _places(explanation))
    for fault in explanation.faults:
        yield f"FAULT    {fault['where']}: {fault['error']}"
    if explanation.filter is not None:
        yield from _filter_lines(explanation.filter)
    if explanation.weigh is not None:
        yield from _weigh_lines(explanation.weigh)
    elif explanation.filter is not None and explanation.filter.get("passed") == 1:
        names = [host["node"] for host in explanation.filter["details"] if not host["reasons"]]
        yield f"best     {''.join(names)}: one host was left, the weigher was not asked"


def _when(entry: dict[str, Any]) -> str:
    at = datetime.datetime.fromtimestamp(entry["time"], datetime.UTC)
    return at.isoformat(" ", "seconds").replace("+00:00", " UTC")


def _places(explanation: Explanation) -> dict[str, int]:
    """Return the place of each host that is known by the totals of all weighers, from 1; equal hosts have one place."""
    if explanation.weigh is not None:
        totals = {
            score["host"]: score["total"]
            for score in explanation.weigh["scores"]
            if "total" in score
        }
        return {host: 1 + sum(each > of for each in totals.values()) for host, of in totals.items()}
    if explanation.filter is None or explanation.filter["passed"] != 1:
        return {}
    return {host["host"]: 1 for host in explanation.filter["details"] if not host["reasons"]}


def _destination_lines(nova: Destination, places: Mapping[str, int]) -> Iterator[str]:
    if nova.hosts is None:
        yield f"host     unknown: {nova.unknown}"
    elif not nova.hosts:
        yield "host     none: nova has sent the server to no host for this request"
    else:
        *before, host = [_placed(host, places) for host in nova.hosts]
        yield f"host     {host}" + (f"; tried before: {', '.join(before)}" if before else "")
        if not before and places and places.get(nova.hosts[0]) != 1:
            yield (
                "         Nova does not report why it did not take the first: its claim failed, or nova drew among the "
                "best ([filter_scheduler]host_subset_size)"
            )
    if nova.status is not None:
        yield f"now      {nova.status}, {f'on {nova.now}' if nova.now else 'on no host'}"


def _placed(host: str, places: Mapping[str, int]) -> str:
    if not places:
        return host
    return f"{host} ({f'number {places[host]}' if host in places else 'not noted'} by total)"


def _alternates_lines(entry: dict[str, Any]) -> Iterator[str]:
    """After the choice nova filters once more, for hosts to retry on; by then it shows which one it claimed."""
    for pick in entry["picks"]:
        if pick["server"] == entry["server"]:
            where = f", L3 {_numbers(pick['l3'])}" if pick["l3"] else ""
            passed = counted(entry["passed"], "host")
            yield f"claimed  {pick['node'] or pick['host']}{where}; {passed} passed as alternates"


def _filter_lines(entry: dict[str, Any]) -> Iterator[str]:
    view = entry["view"]
    age = "never read" if view["age_s"] is None else f"{view['age_s']} s old"
    yield f"view     {view['state']}, {age}, {counted(view['hosts'], 'host')}"
    if "job" in entry:
        yield from _job_lines(entry["job"])
    if "group" in entry:
        yield from _group_lines(entry["group"])
    modes = entry.get("modes", {})
    for problem in entry["problems"]:
        yield f"{'WRONG   ' if modes else 'REFUSED '} {problem}"
    if modes:
        yield from _mode_lines(entry)
    judged = entry.get("judged", entry["hosts"])
    yield f"filter   {entry['passed']} of {counted(judged, 'host')} passed" + (
        f"; {entry['hosts'] - judged} more were not looked at" if judged < entry["hosts"] else ""
    )
    if not entry["problems"]:
        for group in entry["refused"]:
            names = ", ".join(group["hosts"])
            more = "" if group["count"] <= len(group["hosts"]) else ", …"
            yield f"  {group['count']:>5} refused: {group['reason']} ({names}{more})"
    for host in entry["details"]:
        if not host["reasons"]:
            yield from _host_lines(host)
        elif host["reasons"][1:] and not entry["problems"]:
            more = "; ".join(reason["text"] for reason in host["reasons"][1:])
            yield f"  {host['node']}: also {more}"


def _job_lines(job: dict[str, Any]) -> Iterator[str]:
    """What the plan of a job says about its server."""
    if job["absent"]:
        said = f"nova offers no host of the {job['absent']} of its plan, so any host will do"
    elif job["planned"] is None:
        said = "its hosts are nova's choice: the server is moved, or nova refused several plans"
    else:
        said = (
            f"its plan limits the server to {job['planned']} planned and {job['spare']} spare hosts; "
            f"{job['left_out']} others are left out"
        )
    yield f"job      {job['id']}, part {job['part']}: {said}"
    specs = ", ".join(f"{key}={value}" for key, value in sorted(job["extra_specs"].items()))
    if specs:
        yield f"         requested by the part: {specs}"
    if job["any_utility"]:
        yield "         postponed for the last time: numa_ext:min_utility does not count"


def _group_lines(group: dict[str, Any]) -> Iterator[str]:
    """Where the servers of a server group go on the fabric, and why there."""
    leafs = ", ".join(f"{leaf} {hosts}" for leaf, hosts in group["leafs"].items())
    held = (
        "its leafs are held for it from now on"
        if group["claimed"]
        else "nothing more is held for it"
    )
    yield f"group    {group['id']}: servers by leaf: {leafs or 'none'}; {group['spares']} spare hosts; {held}"
    if group["reasons"]:
        yield f"         {'; '.join(group['reasons'])}"


def _mode_lines(entry: dict[str, Any]) -> Iterator[str]:
    """What enforcing would have done on the hosts that are only observed or ranked."""
    counts = ", ".join(f"{count} {mode}" for mode, count in entry["modes"].items())
    yield f"mode     {counts} of {counted(entry['hosts'], 'host')}"
    for group in entry["would_refuse"]:
        names = ", ".join(group["hosts"])
        more = "" if group["count"] <= len(group["hosts"]) else ", …"
        yield f"  {group['count']:>5} would be refused: {group['reason']} ({names}{more})"
    if entry["would_reorder"]:
        yield f"  {entry['would_reorder']:>5} would have another candidate first"


def _host_lines(host: dict[str, Any]) -> Iterator[str]:
    nodes = "floating" if host["nodes"] is None else f"NUMA node {_numbers(host['nodes'])} expected"
    judged, left = host["candidates_judged"], host["candidates_left"]
    seen = "" if left == judged else f", {left} left for nova"
    yield f"  {host['node']}: {nodes}, {judged} candidates{seen}"
    alike: Counter[tuple[str, str | None]] = Counter()
    for candidate in host["candidates"]:
        alike[_where(candidate), candidate["loses"]] += candidate.get("count", 1)
    shown = list(itertools.islice(alike.items(), _MOST_CANDIDATES))
    for number, ((where, loses), count) in enumerate(shown, start=1):
        lost = f"loses on {loses}" if loses else "first" if number == 1 else "equal"
        yield f"    {number}. {where}: {lost}" + (f" ({count} alike)" if count > 1 else "")
    more = judged - sum(count for _, count in shown)
    if more:
        yield f"    +{more} more"


def _where(candidate: dict[str, Any]) -> str:
    l3 = f"L3 {_numbers(candidate['l3'])}" if candidate["l3"] else "no L3 domain"
    return l3 + _gpus(candidate.get("gpus"))


def _gpus(chosen: dict[str, Any] | None) -> str:
    """Return the GPUs of a candidate with their utility and its three costs; nothing without."""
    if not chosen:
        return ""
    return (
        f", GPUs {' '.join(chosen['addresses'])} (NUMA node {_numbers(chosen['nodes']) or '?'}, "
        f"utility {chosen['utility']:.3f}: distance {chosen['communication']:.2f}, "
        f"interference {chosen['interference']:.2f}, fragmentation {chosen['fragmentation']:.2f})"
    )


def _weigh_lines(entry: dict[str, Any]) -> Iterator[str]:
    hosts = entry["hosts"]
    for described in entry.get("details", ()):
        yield from _host_lines(described)
    if entry["scores"] and "total" in entry["scores"][0]:
        yield f"best     {entry['scores'][0]['node']}: the highest total of all weighers"
    yield (
        f"weigher  {counted(hosts, 'host')}, best total first (score: weighted mean of the terms; -: unknown, taken as "
        "the mean; total: others + multiplier * score)"
    )
    if "would_choose" in entry:
        yield f"would be {entry['would_choose']}: the highest total if no host were only observed"
    terms = list(entry["scores"][0]["terms"]) if entry["scores"] else []
    rows = [["host", *terms, "score", "others", "total"]]
    for score in entry["scores"]:
        values = [score["terms"][term] for term in terms]
        rows.append(
            [
                score["node"],
                *("-" if value is None else f"{value:.2f}" for value in values),
                f"{score['score']:.3f}",
                f"{score['before']:.3f}",
                f"{score['total']:.3f}" if "total" in score else "-",
            ]
        )
    yield from table(rows)


def answers_text(answers: Sequence[Answer]) -> str:
    """Return a what-if over the fleet for people."""
    return "\n".join(_answer_lines(answers))


def answers_list(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return a what-if as plain JSON types."""
    return [
        {
            "host": answer.host.name,
            "uuid": answer.host.root_uuid,
            "possible": not answer.reasons,
            "gpus": None
            if answer.gpus is None
            else {
                "addresses": list(answer.gpus.addresses),
                "utility": round(answer.gpus.utility, 4),
            },
            "l3": list(answer.l3),
            "score": None if answer.score is None else round(answer.score.value, 4),
            "terms": {}
            if answer.score is None
            else {
                term.value: None if value is None else round(value, 4)
                for term, value in answer.score.terms.items()
            },
            "lacks": [
                {
                    "term": str(reason.term),
                    "value": reason.value,
                    "against": reason.against,
                    **({"where": reason.where} if reason.where else {}),
                    "text": sentence(reason),
                }
                for reason in answer.reasons
            ],
        }
        for answer in answers
    ]


def _answer_lines(answers: Sequence[Answer]) -> Iterator[str]:
    possible = sum(not answer.reasons for answer in answers)
    hosts = counted(len(answers), "host")
    yield f"{possible} of {hosts} could take it now, best first; Placement was read for this answer"
    width = max((len(answer.host.name) for answer in answers), default=0)
    for answer in answers:
        text = "; ".join(sentence(reason) for reason in answer.reasons) or "possible"
        if answer.score is not None:
            text += f", score {answer.score.value:.3f} ({terms_text(answer.score)})"
        if answer.l3:
            text += f", L3 {_numbers(answer.l3)}"
        if answer.gpus is not None:
            text += f" (GPUs {' '.join(answer.gpus.addresses)}, utility {answer.gpus.utility:.3f})"
        yield f"  {answer.host.name:<{width}}  {text}"


def terms_text(score: Score) -> str:
    """Return the terms of a score that are known."""
    known = {term: value for term, value in score.terms.items() if value is not None}
    return (
        ", ".join(f"{term.value} {value:.2f}" for term, value in known.items()) or "no term known"
    )


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as aligned columns, the first left and the others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _numbers(numbers: Iterable[int]) -> str:
    return "+".join(str(number) for number in numbers)
