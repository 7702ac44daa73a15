# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-heal``: make what servers and their groups hold in Placement agree with where they are."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TextIO

from keystoneauth1 import exceptions as keystone_errors
from oslo_config import cfg

from nova_numa_ext import endpoints
from nova_numa_ext.cli.fleet import one_reading
from nova_numa_ext.fabrics import PlacementFabrics
from nova_numa_ext.heal.forgotten_groups import ForgottenGroups
from nova_numa_ext.heal.group_claims import SweepResult, sweep
from nova_numa_ext.heal.healer import Healer
from nova_numa_ext.heal.nova_servers import NovaServers
from nova_numa_ext.heal.plan import HealKind, HealResult, Row
from nova_numa_ext.policy.numa.claims import Resources
from placement_traits.claims import Claim
from placement_traits.client import ALLOCATIONS_MICROVERSION, PlacementClient, RetrySettings
from placement_traits.command_line import add_version, number_from
from placement_traits.errors import CapabilityMissingError, NumaExtError

_DESCRIPTION = (
    "Compare what servers hold in Placement of cache ways, classes of service, memory bandwidth and cache "
    "neighbourhoods with where nova has put them, and make it right: what is counted in another L3 domain than the "
    "server's moves there, what is missing is added. A server with something under way is left alone, and nothing of "
    "servers is deleted. Server groups without a server give back what they hold of fabrics. Nova (role admin) and "
    "Placement (role service) are asked with the credentials of [placement] in nova's configuration."
)


_SWEPT: Final = {
    SweepResult.RELEASED: HealResult.DONE,
    SweepResult.FOLLOWED: HealResult.DONE,
    SweepResult.WOULD: HealResult.WOULD,
    SweepResult.WOULD_FOLLOW: HealResult.WOULD,
}
_UNKNOWN: Final = (
    "nova does not know the server group, and its servers may still run; it is released when no server of its "
    "project has been on its leafs for the grace time (--every), or at once by openstack numa fabric sweep"
)
_GRACE_S: Final = 300.0  # nova's servers have hosts long before


def main(
    argv: Sequence[str] | None = None,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Heal once, or for ever; returns 0, or 1 when something failed."""
    arguments = _parser().parse_args(argv)
    forgotten = ForgottenGroups(arguments.grace, clock)
    while True:
        failed = _once(arguments, forgotten)
        if arguments.every is None:
            return int(failed)
        sleep(arguments.every)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numa-ext-heal", description=_DESCRIPTION)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument(
        "--every",
        type=number_from(1.0, 86_400.0),
        metavar="SECONDS",
        help="go on: again so long after each run",
    )
    parser.add_argument(
        "--grace",
        type=number_from(0.0, 86_400.0),
        default=_GRACE_S,
        metavar="SECONDS",
        help="how long no server of its project must have been on the leafs of a server group that nova does not "
        f"know, until these are given back (default: {_GRACE_S:g})",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="only this compute node (hypervisor hostname); can be given several times",
    )
    parser.add_argument(
        "-f", "--format", choices=("table", "json"), default="table", help="(default: table)"
    )
    parser.add_argument(
        "--config-file",
        action="append",
        metavar="PATH",
        help="nova's configuration (default: /etc/nova/nova.conf)",
    )
    add_version(parser)
    return parser


def _once(arguments: argparse.Namespace, forgotten: ForgottenGroups) -> bool:
    """Heal once and print it; return whether something failed."""
    rows: list[Row] = []
    problem = ""
    try:
        conf, write = _configuration(arguments.config_file), not arguments.dry_run
        for row in healer(conf).run(write=write, hosts=arguments.host):
            rows.append(row)
        if not arguments.host:
            rows += _of_groups(conf, forgotten, write=write)
    except (NumaExtError, OSError, cfg.Error, keystone_errors.ClientException) as error:
        problem = " ".join(str(error).split())
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"an answer of Nova or Placement makes no sense: {error!r}"
    if rows or arguments.every is None:
        _print(_text(rows, arguments.format, complete=not problem), sys.stdout)
    if problem:
        _print(f"numa-ext-heal: {problem}", sys.stderr)
    return bool(problem) or any(row.result is HealResult.FAILED for row in rows)


def _print(text: str, stream: TextIO) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def _configuration(files: Sequence[str] | None) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    endpoints.register_opts(conf)
    conf([], project="nova", default_config_files=files)
    return conf


def healer(conf: cfg.ConfigOpts) -> Healer:
    """Return what heals, with the credentials of nova's configuration.

    :raises CapabilityMissingError: it holds none
    """
    placement = endpoints.placement(conf)
    if placement.session.auth is None:
        where = ", ".join(conf.config_file) or "/etc/nova/nova.conf"
        raise CapabilityMissingError(
            f"{where} holds no credentials in [placement]: give nova's configuration with --config-file"
        )
    once = RetrySettings(attempts=1)
    return Healer(
        NovaServers(endpoints.compute(conf)),
        PlacementClient(placement),
        PlacementClient(placement, once, microversion=ALLOCATIONS_MICROVERSION),
        lambda: one_reading(placement),
    )


def _of_groups(conf: cfg.ConfigOpts, forgotten: ForgottenGroups, *, write: bool) -> Iterator[Row]:
    """Let server groups give back what they hold of fabrics and have no server on; yield those that do.

    Those that nova does not know are left until no server can be theirs, and yielded, too.
    """
    fabrics = PlacementFabrics(PlacementClient(endpoints.placement(conf)))
    servers = NovaServers(endpoints.compute(conf))
    may_be_used = forgotten.round(fabrics, servers)
    for claim, result, after in sweep(fabrics, servers, dry_run=not write, may_be_used=may_be_used):
        held = fabrics.named(claim.amounts)
        if result is SweepResult.UNKNOWN:
            yield _group_row(HealResult.LEFT, claim, held, held, _UNKNOWN)
        elif result in _SWEPT:
            yield _group_row(_SWEPT[result], claim, held, fabrics.named(after))


def _group_row(
    result: HealResult, claim: Claim, holds: Resources, should_hold: Resources, problem: str = ""
) -> Row:
    return Row(result, "-", "", claim.consumer, holds, should_hold, problem, HealKind.GROUP)


def _text(rows: Sequence[Row], form: str, *, complete: bool) -> str:
    if form == "json":
        return json.dumps([row.to_dict() for row in rows], indent=2)
    if not rows:
        return "All servers hold what they should." if complete else "Nothing was done."
    shown = [_columns(row) for row in rows]
    widths = [max(len(each[column]) for each in shown) for column in range(3)]
    return "\n".join(
        f"{result:{widths[0]}}  {host:{widths[1]}}  {server:{widths[2]}}  {rest}"
        for result, host, server, rest in shown
    )


def _columns(row: Row) -> tuple[Any, ...]:
    rest = "; ".join(filter(None, (row.change, row.problem)))
    who = f"group {row.uuid}" if row.kind is HealKind.GROUP else row.server or row.uuid
    return str(row.result), row.host, who, rest


if __name__ == "__main__":
    sys.exit(main())
