# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-manage``: the job service's database, by hand, and what an old one does not know."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from oslo_config import cfg

from nova_numa_ext import endpoints
from nova_numa_ext.orchestrator import startup
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.job_survey import TableLine
from nova_numa_ext.orchestrator.recover import Recoverer
from nova_numa_ext.orchestrator.recover_leases import LeaseRecoverer, LeaseSurvey
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.lease_hosts import LeaseHosts
from nova_numa_ext.orchestrator.store.leases import Leases
from nova_numa_ext.orchestrator.store.recovery import Recovery
from nova_numa_ext.orchestrator.store.scaling import ScalingGroups
from nova_numa_ext.orchestrator.store.trusts import EndedTrusts
from placement_traits import pool_reader
from placement_traits.client import PlacementClient
from placement_traits.command_line import add_version, number_from
from placement_traits.errors import ConflictError, NumaExtError
from placement_traits.words import counted

_DAY_S: Final = 86_400.0
_OLDEST_DAYS: Final = 36_525.0
_AT_ONCE: Final = 1000

# Two looks are so far apart that what was under way at the first one is done, or refused, at the second.
_APART_S: Final = 30.0

Work = Callable[[cfg.ConfigOpts, argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0, 1 when it failed, 78 for a configuration that cannot be used."""
    arguments = _parser().parse_args(argv)
    try:
        work: Work = arguments.work
        return work(startup.configured(arguments.config_file), arguments)
    except NumaExtError as error:
        return startup.failed("numa-ext-manage", error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="numa-ext-manage", description="Look after the job service's database."
    )
    startup.add_config_file(parser)
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    of_tables = commands.add_parser("db", help="the tables").add_subparsers(
        required=True, metavar="COMMAND"
    )
    sync = of_tables.add_parser(
        "sync", help="make the tables, or bring them to this release's version; again does nothing"
    )
    sync.set_defaults(work=_sync)
    shown = of_tables.add_parser(
        "version", help="show which version the tables have, and which one this release wants"
    )
    shown.set_defaults(work=_version)
    purge = commands.add_parser(
        "purge", help="delete jobs that have ended, with their events, and leases"
    )
    purge.add_argument(
        "--older-than",
        type=number_from(0.0, _OLDEST_DAYS),
        required=True,
        metavar="DAYS",
        help="only those that ended before",
    )
    purge.set_defaults(work=_purge)
    recover = commands.add_parser(
        "recover",
        help="show what an old database, which was restored, does not know, and what would become of it",
    )
    does = recover.add_mutually_exclusive_group()
    does.add_argument(
        "--begin",
        action="store_true",
        help="say that an old database was restored: engines do nothing until it is committed",
    )
    does.add_argument(
        "--commit",
        action="store_true",
        help="look once more, do what is shown, and let engines go on",
    )
    recover.set_defaults(work=_recover)
    return parser


def _sync(conf: cfg.ConfigOpts, _arguments: argparse.Namespace) -> int:
    database = Database.configured(conf)
    database.sync()
    _say(f"The tables have version {database.version()[0]}.")
    return 0


def _version(conf: cfg.ConfigOpts, _arguments: argparse.Namespace) -> int:
    """Show both versions; 1 where they differ."""
    found, expected = Database.configured(conf).version()
    if found == expected:
        _say(f"The tables have version {found}, which this release wants.")
        return 0
    there = f"The tables have version {found}" if found else "There are no tables"
    _say(f"{there}; this release wants version {expected}: run numa-ext-manage db sync.")
    return 1


def _purge(conf: cfg.ConfigOpts, arguments: argparse.Namespace) -> int:
    database = Database.configured(conf)
    if Recovery(database).recovering():
        raise ConflictError(
            "The database is an old one that was restored: look at numa-ext-manage recover, and commit it, before "
            "jobs are purged."
        )
    jobs, before = Jobs(database), database.now() - arguments.older_than * _DAY_S
    deleted = 0
    while found := jobs.purge(before, _AT_ONCE):
        deleted += found
    _say(f"Deleted {counted(deleted, 'job')} that ended more than {arguments.older_than:g} d ago.")
    leases, gone = Leases(database), 0
    while found := leases.purge(before, _AT_ONCE):
        gone += found
    _say(
        f"Deleted {counted(gone, 'lease')} that ended more than {arguments.older_than:g} d ago, with the jobs of "
        "which none is left."
    )
    return 0


def _recover(conf: cfg.ConfigOpts, arguments: argparse.Namespace) -> int:
    """Look, begin or commit; 1 where nothing can be committed."""
    database = Database.configured(conf)
    recovery = Recovery(database)
    if arguments.begin:
        recovery.begin("its operator says that an old database was restored")
        _say("Engines do nothing for jobs now; see what would be done: numa-ext-manage recover.")
        return 0
    placement = endpoints.placement(conf)
    claims, client = startup.claims(placement), PlacementClient(placement)
    recoverer = Recoverer(
        Jobs(database),
        EndedTrusts(database),
        startup.trusts(conf),
        claims,
        ServerHosts(client),
        also=ScalingGroups(database).trusts,
    )
    of_leases = LeaseRecoverer(
        Leases(database), LeaseHosts(database), claims, partial(pool_reader.read, client)
    )
    return recovered(recoverer, of_leases, recovery, commit=arguments.commit)


def recovered(
    recoverer: Recoverer,
    of_leases: LeaseRecoverer,
    recovery: Recovery,
    *,
    commit: bool,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Show what would become of what a database does not know, and do it; return the exit status.

    :param wait: between two looks; injected by tests
    """
    recovering = recovery.recovering()
    survey = recoverer.survey()
    leases = of_leases.survey(recovering.since) if recovering else LeaseSurvey()
    _say(_table((*survey.lines(), *leases.lines())))
    if recovering is None:
        _say("The database is not known to be an old one: engines do their work.")
        return 1 if commit else 0
    _say(f"Engines do nothing for jobs: {recovering.why}.")
    if survey.unseen:
        servers = ", ".join(survey.unseen)
        _say(f"Nothing can be committed while cells of these servers do not answer: {servers}.")
        return 1
    if not commit:
        _say("Nothing was changed; this is done by numa-ext-manage recover --commit.")
        return 0
    wait(_APART_S)
    now, leases_now = recoverer.survey(), of_leases.survey(recovering.since)
    if now.unseen:
        raise ConflictError("A cell of nova's has ceased to answer: nothing was changed.")
    recoverer.commit(survey, now)
    of_leases.commit(leases, leases_now)
    recovery.end()
    _say("Done: engines go on.")
    return 0


def _table(found: Iterable[TableLine]) -> str:
    rows = [(each.action.upper(), each.what, each.uuid, each.why) for each in found]
    if not rows:
        return "The database knows all that is there."
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")


if __name__ == "__main__":
    sys.exit(main())
