# SPDX-License-Identifier: Apache-2.0
"""Writes the pages that are tables of what the code declares, and the release notes: readable without a build."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent, wrap
from typing import Final

import yaml

from host_agent.conf.configuration import SECTIONS
from host_agent.report.metrics import METRICS as AGENT_METRICS
from nova_numa_ext.conf import SchedulerOptions
from nova_numa_ext.metrics import METRICS as SCHEDULER_METRICS
from nova_numa_ext.orchestrator.conf import JobsOptions
from nova_numa_ext.orchestrator.metrics import METRICS as JOBS_METRICS
from placement_traits import oslo_options
from placement_traits.metrics import MetricSpec
from placement_traits.options import Declared, Section, declared
from tools import jobs_api
from tools.scheduler_figures import scheduler_rows, simple_table

SOURCE: Final = Path(__file__).parents[1] / "doc/source"
_WIDTH: Final = 118


_NOTES: Final = SOURCE.parents[1] / "releasenotes/notes"
_KINDS: Final = {
    "features": "New",
    "upgrade": "To do when you upgrade",
    "deprecations": "Deprecated",
    "security": "Security",
    "fixes": "Mended",
    "other": "Other",
}
_CHANGELOG: Final = SOURCE.parents[1] / "debian/changelog"
_NOTES_OF: Final = "Those of ``releasenotes/notes``; a change that users meet brings its own."

_FIGURES: Final = re.compile(
    r"(\.\. The table is written by ``make config`` out of bench-scheduler\.json\.\n\n)=.*?=\n(?=\n)",
    re.S,
)

_METRICS: Final = """\
Names are those of the declaration; on the wire counters end in ``_total`` and histograms in ``_bucket``, ``_sum`` and
``_count``. Dashboards and alert rules: :doc:`/operator/monitoring`.

Of the host agent
=================

On ``[agent]metrics_address``, port ``[agent]metrics_port``.

{agent}
Of nova-scheduler
=================

Served where ``[numa_ext]metrics_port`` is set, see :doc:`/operator/decisions`.

{scheduler}
Of the job service
==================

On ``[numa_ext_jobs]metrics_address``, port ``[numa_ext_jobs]metrics_port``, by each engine.

{jobs}"""

_OPTIONS: Final = """\
Each option with what it is, when to change it, and when not. Names and types alone are in :doc:`/reference/options`.
Options of Keystone sessions, endpoints and credentials in ``[placement]`` are those of every OpenStack service; they
are in the sample and not repeated.

In nova.conf of the scheduler
=============================

Options that may change while it runs say so: nova-scheduler reads its files again at SIGHUP (``systemctl reload``, or
``kill -HUP`` of its main process) and the next decision takes them. What is open, is shared with another process or was
made of a file needs a restart: ``view_…``, ``journal_path``, ``journal_max_mb``, ``journal_backups``, ``metrics_…`` and
``gpu_…`` (but not ``gpu_multiplier``). With a mistake in any option of ``[numa_ext]`` all of them stay as they were,
and one sentence in the log says which.

{scheduler}\
In numa-ext-jobs.conf of the job service
========================================

The file is ``/etc/numa-ext-jobs/numa-ext-jobs.conf``, or those that the environment variable ``NUMA_EXT_JOBS_CONFIG``
names (with ``:`` between them), for the API, the engine and ``numa-ext-manage``. Options of libraries (``[database]``,
``[keystone_authtoken]``, ``[oslo_policy]``, ``[healthcheck]``) are in the sample and not repeated.

{jobs}\
In numa-host-agent.conf of a compute host
=========================================

The file is ``/etc/numa-host-agent/numa-host-agent.conf``, or what the environment variable ``NUMA_HOST_AGENT_CONFIG``
names, for the agent and for ``numa-host-agent-ctl``; ``--config-file`` wins over both.
No folder (``….conf.d``) is read.

{agent}"""


def metrics() -> str:
    """Return the page of all metrics."""
    tables = {
        "agent": _metrics(AGENT_METRICS.values()),
        "jobs": _metrics(JOBS_METRICS.values()),
        "scheduler": _metrics(SCHEDULER_METRICS.values()),
    }
    return _page("Metrics", _METRICS.format(**tables))


def options() -> str:
    """Return the page that says of each option when to change it."""
    lists = {
        "agent": _advice(SECTIONS.values()),
        "jobs": _advice([JobsOptions]),
        "scheduler": _advice([SchedulerOptions]),
    }
    return _page("Which option to change, and when", _OPTIONS.format(**lists))


def release_notes() -> str:
    """Return the page of all release notes, by kind; without a tag they are those of the first release."""
    notes = [yaml.safe_load(file.read_text()) for file in sorted(_NOTES.glob("*.yaml"))]
    preludes = [note["prelude"].strip() for note in notes if "prelude" in note]
    parts = [_NOTES_OF, f"{version()}\n{'=' * len(version())}", *preludes]
    for kind, title in _KINDS.items():
        items = [item for note in notes for item in note.get(kind, ())]
        if items:
            parts.append(f"{title}\n{'-' * len(title)}")
            parts += [f"* {indent(item.strip(), '  ').strip()}" for item in items]
    return _page("Release notes", "\n\n".join(parts))


def version() -> str:
    """Return the version that the tree is about to be, or is: the one place that says it without git."""
    return _CHANGELOG.read_text().partition("(")[2].partition(")")[0]


def performance() -> str:
    """Return the page about performance, with the figures of its result."""
    page, result = (
        SOURCE / "contributor/performance.rst",
        SOURCE / "contributor/bench-scheduler.json",
    )
    table = simple_table(*scheduler_rows(json.loads(result.read_text())))
    return _FIGURES.sub(lambda found: f"{found[1]}{table}\n", page.read_text(), count=1)


def api_of_jobs() -> str:
    """Return the reference of the API of jobs."""
    return _page("API of jobs", jobs_api.reference())


PAGES: Final = {
    "reference/jobs-api.rst": api_of_jobs,
    "reference/metrics.rst": metrics,
    "operator/options.rst": options,
    "contributor/performance.rst": performance,
    "reference/release-notes.rst": release_notes,
}


def _page(title: str, text: str) -> str:
    line = "=" * len(title)
    made = ".. Written by ``make config`` out of the code."
    return f"{made}\n\n{line}\n{title}\n{line}\n\n{text.rstrip()}\n"


def _metrics(found: Iterable[MetricSpec]) -> str:
    rows = [("metric", "kind", "labels", "meaning")]
    rows += [
        (f"``{m.name}``", m.kind, ", ".join(f"``{label}``" for label in m.labels) or "–", m.help)
        for m in found
    ]
    return ".. list-table::\n   :header-rows: 1\n   :widths: 35 10 20 35\n\n" + "".join(
        map(_row, rows)
    )


def _row(cells: Sequence[str]) -> str:
    first, *others = (_cell(cell) for cell in cells)
    return f"   * - {first}\n" + "".join(f"     - {cell}\n" for cell in others)


def _cell(text: str) -> str:
    return "\n       ".join(
        wrap(_plain(text), _WIDTH - 7, break_long_words=False, break_on_hyphens=False)
    )


def _advice(sections: Iterable[type[Section]]) -> str:
    return "".join(
        f".. _options-{section.section}:\n\n.. rubric:: [{section.section}]\n\n"
        + "".join(_option(section.section, one) for one in declared(section))
        for section in sections
    )


def _option(section: str, one: Declared) -> str:
    lines = "\n\n".join(_paragraph(text) for text in _sentences(one))
    return f"``[{section}]{one.name}``\n{indent(lines, '    ')}\n\n"


def _sentences(one: Declared) -> Iterator[str]:
    yield _plain(" ".join(one.option.text.split()))
    if choices := one.option.choices:
        said = (
            f"``{str(value)!r}``: {_plain(' '.join(text.split()))}"
            for value, text in choices.items()
        )
        yield f"{'; '.join(said)}."
    yield f"*Default:* ``{oslo_options.plain(one.default)!r}``"
    yield f"*Change it when* {_plain(one.option.change)}."
    yield f"*Leave it when* {_plain(one.option.leave)}."
    if one.option.mutable:
        yield "*May change while it runs*: send SIGHUP."


def _paragraph(text: str) -> str:
    return "\n".join(wrap(text, _WIDTH - 4, break_long_words=False, break_on_hyphens=False))


def _plain(text: str) -> str:
    """Return text in which only what is literal already has a meaning to Sphinx."""
    parts = text.split("``")
    quoted = (
        part if at % 2 else part.replace("*", r"\*").replace("|", r"\|")
        for at, part in enumerate(parts)
    )
    return "``".join(quoted)


def write(pages: Mapping[str, str]) -> None:
    """Write pages by their paths."""
    for path, text in pages.items():
        (SOURCE / path).write_text(text)


if __name__ == "__main__":
    write({path: page() for path, page in PAGES.items()})
