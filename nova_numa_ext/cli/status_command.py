# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-status upgrade check``: may this release take over what the one before left in Placement and nova?

Run with the new code and nova's configuration, before nova-api and nova-scheduler are started with it. The exit status
is that of nova-status: 0 all is ready, 1 something needs a look, 2 something stops the upgrade, 255 the command failed.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from keystoneauth1 import exceptions as keystone_errors
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from nova_numa_ext import conf as scheduler_conf
from nova_numa_ext import endpoints
from nova_numa_ext.cli import doctor
from nova_numa_ext.cli.fleet import one_reading
from nova_numa_ext.cli.heal_command import healer
from nova_numa_ext.heal.nova_servers import NovaServers
from nova_numa_ext.job_hint import differences, hint_keys
from placement_traits import oslo_options, unknown_options
from placement_traits.client import PlacementClient
from placement_traits.command_line import version
from placement_traits.errors import NumaExtError
from placement_traits.findings import Finding, Level

_CODES: Final = {
    Level.GOOD: Code.SUCCESS,
    Level.DEGRADED: Code.WARNING,
    Level.BROKEN: Code.FAILURE,
}


class UpgradeChecks(upgradecheck.UpgradeCommands):  # type: ignore[misc]
    """What stands between two releases.

    :param conf: nova's configuration, read when a check runs
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf

    def _options(self) -> Iterable[Finding]:
        check = "options"
        scheduler_conf.read(self._conf)
        old = _of_earlier_releases(self._conf, dict(scheduler_conf.list_opts()))
        if old:
            return [Finding(check, Level.DEGRADED, old)]
        return [Finding(check, Level.GOOD, "all are read")]

    def _placement(self) -> Iterable[Finding]:
        answers, *classes = doctor.placement_answers(
            PlacementClient(endpoints.placement(self._conf))
        )
        # New agents make new classes, and controllers come first; flavors that ask for them are checked below.
        return [answers, *map(_not_yet, classes)]

    def _formats(self) -> Iterable[Finding]:
        return [doctor.published_formats(one_reading(endpoints.placement(self._conf)))]

    def _flavors(self) -> Iterable[Finding]:
        fleet = one_reading(endpoints.placement(self._conf))
        flavors = NovaServers(endpoints.compute(self._conf)).flavors()
        return doctor.flavors(flavors, fleet)[0]

    def _servers(self) -> Iterable[Finding]:
        check = "servers"
        differ = [row.server or row.uuid for row in healer(self._conf).run(write=False)]
        if differ:
            text = (
                f"{len(differ)} hold other amounts in Placement than they should, {differ[0]} among them: see "
                "numa-ext-heal --dry-run, and run numa-ext-heal after the upgrade"
            )
            return [Finding(check, Level.DEGRADED, text)]
        return [Finding(check, Level.GOOD, "all hold what they should")]

    def _jobs(self) -> Iterable[Finding]:
        """Look at the job service, where this controller has one."""
        check = "jobs"
        try:
            from nova_numa_ext.orchestrator import conf as jobs_conf
            from nova_numa_ext.orchestrator import startup
            from nova_numa_ext.orchestrator.store.database import Database
        except ImportError as error:
            return [Finding(check, Level.GOOD, f"the job service is not installed: {error}")]
        if not any(Path(file).exists() for file in startup.default_files()):
            return [Finding(check, Level.GOOD, "the job service is not configured here")]
        conf = startup.configured()
        found, expected = Database.configured(conf).version()
        if found != expected:
            there = f"have version {found}" if found else "are not there"
            text = f"tables of jobs {there}, this release wants {expected}: run numa-ext-manage db sync"
            return [Finding(check, Level.DEGRADED, text)]
        wrong = _of_earlier_releases(conf, dict(jobs_conf.list_opts())) or differences(
            hint_keys(jobs_conf.read(conf).engine.job_hint_keys, jobs_conf.GROUP),
            hint_keys(scheduler_conf.read(self._conf).job_hint_keys, scheduler_conf.GROUP),
        )
        if wrong:
            return [Finding(check, Level.DEGRADED, wrong)]
        return [Finding(check, Level.GOOD, "tables, options and keys are those of this release")]

    _upgrade_checks = (
        ("[numa_ext] of nova.conf", lambda self: _result(self._options)),
        ("Placement", lambda self: _result(self._placement)),
        ("Formats of hosts", lambda self: _result(self._formats)),
        ("Flavors", lambda self: _result(self._flavors)),
        ("Allocations of servers", lambda self: _result(self._servers)),
        ("Job service", lambda self: _result(self._jobs)),
    )


def _of_earlier_releases(conf: cfg.ConfigOpts, known: Mapping[str, Sequence[cfg.Opt]]) -> str:
    """Return a sentence about keys that are not read, or by another name; "" where there is none."""
    files = oslo_options.files(conf)
    unread = ", ".join(unknown_options.keys(files, known, only_known=True))
    renamed = ", ".join(unknown_options.renamed(files, known))
    found = (
        f"this release does not read {unread}: see the release notes" if unread else "",
        f"read by the name of an earlier release: {renamed}" if renamed else "",
    )
    return "; ".join(filter(None, found))


def _not_yet(finding: Finding) -> Finding:
    return replace(finding, level=Level.DEGRADED) if finding.level is Level.BROKEN else finding


def _result(look: Callable[[], Iterable[Finding]]) -> Result:
    """Return findings as one result; what cannot be looked at stops an upgrade."""
    try:
        found = list(look())
    except (NumaExtError, cfg.Error, keystone_errors.ClientException) as error:
        return Result(Code.FAILURE, " ".join(str(error).split()))
    details = [finding.detail for finding in found if finding.level is not Level.GOOD]
    return Result(max(_CODES[finding.level] for finding in found), "; ".join(details) or None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks; return 0, 1 or 2, and 255 where they could not be run."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--version" in arguments:  # oslo.upgradecheck knows none
        sys.stdout.write(f"{version()}\n")
        return 0
    conf = cfg.ConfigOpts()
    scheduler_conf.register_opts(conf)
    endpoints.register_opts(conf)
    if (
        "upgrade" not in arguments
    ):  # oslo.upgradecheck takes a missing command for an error of its own
        arguments = ["--help"]
    try:
        return int(upgradecheck.main(conf, "nova", UpgradeChecks(conf), arguments))
    except cfg.Error as error:
        sys.stderr.write(f"numa-ext-status: {' '.join(str(error).split())}\n")
        return 255


if __name__ == "__main__":
    sys.exit(main())
