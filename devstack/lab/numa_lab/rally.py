# SPDX-License-Identifier: Apache-2.0
"""Runs the tasks of ``rally-jobs`` on the lab: what ``lab rally`` does.

Rally lives in an environment of its own, for its SQLAlchemy does not fit nova's. All that it makes lies in the lab's
folder ``rally``::

    venv/  home/  rally.conf  rally.db     Rally with our plug-ins, and what it remembers of this run
    arguments.json                         what the tasks get to know of this lab
    out/report.html  junit.xml             for people (one file, nothing is loaded from elsewhere) and for CI
    out/results.json  figures.json         all that was measured, and the run in a few numbers
"""

import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import models
from .errors import AskedWrongError, LabError
from .lab import Lab
from .localcompute import NAME as LOCAL_NAME
from .process import run_logged
from .settings import Settings
from .terminal import Progress

DEFAULT = ("default",)
# Neither noise nor leases: guests that report latencies, and GPUs that are lent, are of the integration tests.
LONG = ("churn", "migration", "sweep", "characterise", "elastic", "filter")
_PHASES = {"with": True, "without": False}
_ENVIRONMENT = "lab"
_INTERPRETER = Path("/usr/bin/python3")

_CONFIGURATION = """\
[DEFAULT]
log_file = rally.log
log_dir = {folder}
[database]
connection = sqlite:///{folder}/rally.db
[openstack]
# An emulated host boots a server in minutes when others boot there, too.
nova_server_boot_timeout = 900
nova_server_delete_timeout = 600
"""


class Rally:
    """Rally beside one lab.

    :param more: arguments of tasks over those of :func:`arguments`
    """

    def __init__(
        self, settings: Settings, progress: Progress, more: Mapping[str, Any] | None = None
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._more = dict(more or {})
        self._folder = settings.lab / "rally"
        self._log = settings.log / "rally.log"

    @property
    def out(self) -> Path:
        """Folder of the reports."""
        return self._folder / "out"

    def install(self) -> None:
        """Make or update the environment.

        :raises LabError: pip failed
        """
        expected = fingerprint(self._settings)
        stamp = self._folder / "venv" / ".contents"
        if stamp.exists() and stamp.read_text() == expected:
            return
        venv = self._folder / "venv"
        with self._progress.step("installing Rally with pip", self._log):
            run_logged("venv", [_INTERPRETER, "-m", "venv", "--clear", venv], self._log)
            environment = os.environ | {"PIP_CACHE_DIR": f"{self._settings.cache}/pip"}
            for packages in (
                ["--upgrade", "pip"],
                ["pytest", "hypothesis", "--editable", f"{self._settings.checkout}[rally]"],
            ):
                words = [f"{venv}/bin/python", "-m", "pip", "install", *packages]
                run_logged("pip", words, self._log, environment=environment)
            stamp.write_text(expected)

    def run(self, names: Sequence[str]) -> dict[str, Any]:
        """Run tasks by the names of their files; returns the figures.

        :raises LabError: the lab does not run, or a step failed; SLAs that are not kept are no such failure
        """
        files = {name: self._settings.checkout / "rally-jobs" / f"{name}.yaml" for name in names}
        for name, file in files.items():
            if not file.exists():
                known = ", ".join(sorted(path.stem for path in file.parent.glob("*.yaml")))
                raise AskedWrongError(f"there is no task {name}: rally-jobs has {known}")
        if not (self._settings.lab / "openrc").exists():
            raise LabError(f"the cloud is not up yet: {self._settings.command} up brings it up")
        hosts = len(Lab(self._settings, self._progress).emulated_hosts())
        self.install()
        if models.EXTRA in names:
            models.ensure(self._settings, self._progress)
        self._begin()
        for name, file in files.items():
            if name == "filter":
                self._filter_on_and_off(file, hosts)
            else:
                self._task(name, file, {})
        return self._report()

    # -- parts

    def _begin(self) -> None:
        """An empty database, this lab as Rally's environment, and no reports of an earlier run."""
        (self._folder / "rally.db").unlink(missing_ok=True)
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        (self._folder / "home").mkdir(exist_ok=True)
        (self._folder / "rally.conf").write_text(_CONFIGURATION.format(folder=self._folder))
        given = arguments(self._settings, self.out) | self._more
        (self._folder / "arguments.json").write_text(json.dumps(given, indent=1))
        with self._progress.step("Rally looks at the cloud", self._log):
            self._rally("db", "create")
            self._rally("env", "create", "--name", _ENVIRONMENT, "--from-sysenv")
            self._rally("env", "check")

    def _task(self, name: str, file: Path, more: Mapping[str, Any], *tags: str) -> None:
        """Run a task to its end; the status says whether its SLAs were kept, which the report says, too.

        :param tags: of the task in reports; those in the file Rally does not keep
        """
        words = ["task", "start", str(file), "--task-args-file", f"{self._folder}/arguments.json"]
        words += [f"--tag={tag}" for tag in tags]
        with self._progress.step(f"Rally task {name}", self._log):
            status = self._rally(*words, "--task-args", json.dumps(dict(more)), check=False)
        if status not in (0, 2):  # 2: an SLA was not kept
            raise LabError(f"the Rally task {name} ended with status {status}", self._log)

    def _filter_on_and_off(self, file: Path, hosts: int) -> None:
        """The same task with our filter and weigher and without, agents running all the while."""
        try:
            for phase, plugin in _PHASES.items():
                self._configure(plugin, hosts)
                self._task(f"filter, {phase} it", file, {"phase": phase}, f"filter-{phase}")
        finally:
            self._configure(True, hosts)

    def _configure(self, plugin: bool, hosts: int) -> None:
        Lab(dataclasses.replace(self._settings, plugin=plugin), self._progress).up(hosts)

    def _report(self) -> dict[str, Any]:
        listed = self._output("task", "list", "--uuids-only")
        tasks = listed.split()
        with self._progress.step("Rally writes its reports", self._log):
            for kind, name in (
                ("html-static", "report.html"),
                ("junit-xml", "junit.xml"),
                ("json", "results.json"),
            ):
                self._rally("task", "export", *tasks, "--type", kind, "--to", f"{self.out}/{name}")
        python = f"{self._folder}/venv/bin/python"
        program = [python, "-m", "nova_numa_ext.rally.figures", f"{self.out}/results.json"]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise LabError(f"no figures: {done.stderr.strip()}", self._log)
        (self.out / "figures.json").write_text(done.stdout)
        return dict(json.loads(done.stdout))

    def sla_failures(self) -> list[str]:
        """The criteria that were not kept, each with its sentence, by ``rally task sla-check``."""
        failures = []
        for task in self._output("task", "list", "--uuids-only").split():
            for row in json.loads(self._output("task", "sla-check", task, "--json", check=False)):
                if row["status"] != "PASS":
                    failures.append(f"{row['benchmark']} {row['criterion']}: {row['detail']}")
        return failures

    def _rally(self, *words: str, check: bool = True) -> int:
        """Run Rally with the administrator's credentials, its output in the log; returns its status."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a") as stream:
            done = subprocess.run(self._words(*words), stdout=stream, stderr=stream, check=False)
        if check and done.returncode != 0:
            raise LabError(f"rally {shlex.join(words)}: status {done.returncode}", self._log)
        return done.returncode

    def _output(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(self._words(*words), capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise LabError(f"rally {shlex.join(words)}: {done.stderr.strip()[-400:]}", self._log)
        return done.stdout

    def _words(self, *words: str) -> list[str]:
        script = 'openrc=$1; shift; . "$openrc"; exec "$@"'
        # Rally asks for Keystone's admin endpoint else, which clouds no longer have.
        environment = (f"HOME={self._folder}/home", "OS_INTERFACE=public")
        rally = [f"{self._folder}/venv/bin/rally", "--config-file", f"{self._folder}/rally.conf"]
        openrc = str(self._settings.lab / "openrc")
        return ["sh", "-c", script, "sh", openrc, "env", *environment, *rally, *words]


def fingerprint(settings: Settings) -> str:
    """A hash of all that decides what Rally's environment holds."""
    digest = hashlib.sha256(f"{settings.lab} {settings.checkout}\n".encode())
    for name in ("requirements.txt", "setup.cfg"):
        digest.update((settings.checkout / name).read_bytes())
    return digest.hexdigest()


def arguments(settings: Settings, out: Path) -> dict[str, Any]:
    """What the tasks get to know of a lab: images, hosts, and commands for what no API tells.

    :param out: folder of files that tasks write
    """
    lab = f"{shlex.quote(str(settings.source / 'lab'))} shell {{host}}"
    read_back = shlex.quote(str(settings.source / "readback.py"))
    explain = shlex.quote(str(settings.venv / "bin" / "numa-ext-explain"))
    conf = shlex.quote(str(settings.etc / "nova" / "nova.conf"))
    load = shlex.quote(str(settings.source / "load.py"))
    trace = shlex.quote(f"{settings.state}/traces/rally-{{group}}.csv")
    ctl = f"{settings.python} {settings.venv}/bin/numa-host-agent-ctl"
    agent_conf = f"{settings.hosts}/{{host}}/etc/numa-host-agent.conf"
    return {
        "image": "toucher",
        "server": {"nics": "none"},
        "plain_host": LOCAL_NAME,
        # The local compute has one processor that is not dedicated, shared by four: room for four servers of one.
        "at_once": 4,
        "arrivals_host": "h1",
        "managed_host": "h1",
        "disk": 0,
        "read_back": f"{lab} /usr/bin/python3 -I -S {read_back}",
        "explain": f"{explain} --config-file {conf} -f json {{server}}",
        "latencies": f"{lab} {ctl} --config-file {agent_conf} status -f json",
        "load": f"{_INTERPRETER} {load} {trace} {{members}} {{operations}} {{objective_ms}}",
        "source": {"csv": "rally-{group}.csv"},
        # Where a test has h1 use GPUs that h2 lends, and that are none; gaps are a fifteenth of a cloud's.
        "lease_host": "h1",
        "gaps_s": [6.0, 3.0, 1.5, 0.0],
        # The second host is a DGX-1: two pairs of GPUs fit beside each other on a socket. The image's work is to touch
        # its memory, and nothing here shows speed.
        "workloads": {"toucher": {"image": "toucher"}},
        "gpus": 2,
        "gpu_alias": "gpu",
        "gpu_host": "h2",
        "ended": "TOUCHED",
        "file": str(out / "gpu-profiles.yaml"),
        "void": True,
    }
