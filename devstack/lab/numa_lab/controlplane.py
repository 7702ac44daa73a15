# SPDX-License-Identifier: Apache-2.0
"""The controller, all on 127.0.0.1: MariaDB, RabbitMQ, Keystone, Placement, Glance, Nova, network stub, job service.

Everything runs in the foreground of a session of its own under our pid files, with the lab's own configuration,
ports and sockets, so it stands beside a distribution's own servers. No eventlet: nova 34 and the WSGI applications
use native threads.
"""

import hashlib
import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from . import cloud_api, configuration, models
from .errors import LabError
from .graph import Task
from .process import Process, run_logged, wait_for
from .service import Service
from .settings import JOB_ENGINES, Settings
from .terminal import Progress

_DATABASES = ("keystone", "placement", "glance", "nova_api", "nova_cell0", "nova_cell1")
_DISTRIBUTIONS = {"placement": "openstack_placement"}
_FLAVORS = "flavors.json"
_DISK_BYTES = 1 << 20
_JOB_DATABASE = "numa_ext"
_JOB_API = "numa-ext-jobs-api"


class ControlPlane:
    """The controller's services and the steps that bring them up."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._etc = settings.etc

    def tasks(self) -> dict[str, Task]:
        """The steps from installed packages and a filled environment to a serving controller.

        They begin after the tasks "packages" and "venv" of the caller.
        """
        settings = self._settings

        def ensure(name: str, *after: str) -> Task:
            return Task(lambda: self._service(name).ensure(self._progress), after)

        tasks = {
            "server files": Task(self._server_files, ("packages",)),
            "service files": Task(lambda: configuration.write_controller(settings), ("venv",)),
            "database files": Task(self._database_files, ("server files",)),
            "mariadb": ensure("mariadb", "database files"),
            "databases": Task(self._databases, ("mariadb",)),
            "epmd": ensure("epmd", "packages"),
            "rabbitmq": ensure("rabbitmq", "server files", "epmd"),
            "keystone schema": Task(self._keystone_schema, ("databases", "service files")),
            "nova schema": Task(self._nova_schema, ("databases", "service files")),
            "placement schema": Task(self._placement_schema, ("databases", "service files")),
            "glance schema": Task(self._glance_schema, ("databases", "service files")),
            "keystone": ensure("keystone", "keystone schema"),
            "identities": Task(self._identities, ("keystone",)),
            "network": ensure("network", "service files"),
            "placement": ensure("placement", "placement schema", "identities"),
            "glance": ensure("glance", "glance schema", "identities"),
            "nova-api": ensure("nova-api", "nova schema", "rabbitmq", "identities"),
            "nova-conductor": ensure("nova-conductor", "nova schema", "rabbitmq", "identities"),
            "nova-scheduler": ensure("nova-scheduler", "nova-conductor", "placement"),
            "nova daemons": Task(self._wait_for_daemons, ("nova-api", "nova-scheduler")),
            "resources": Task(self._resources, ("glance", "nova-api", "network")),
        }
        if not settings.plain:
            needed = ("numa-ext schema", "identities")
            tasks["numa-ext schema"] = Task(self._job_schema, ("databases", "service files"))
            tasks |= {service.name: ensure(service.name, *needed) for service in self._jobs()}
        return tasks

    def services(self) -> list[Service]:
        """All services of the controller, in the order of their needs."""
        return [
            self._mariadb(),
            self._epmd(),
            self._rabbitmq(),
            self._wsgi("keystone", self._settings.ports.keystone, "/v3"),
            self._wsgi("placement", self._settings.ports.placement, "/"),
            self._wsgi("glance", self._settings.ports.glance, "/"),
            self._wsgi("nova-api", self._settings.ports.nova, "/", *self._own_code()),
            self._wsgi("network", self._settings.ports.network, "/"),
            self._nova_daemon("nova-conductor"),
            self._nova_daemon("nova-scheduler", *self._own_code()),
            *self._jobs(),
        ]

    def _service(self, name: str) -> Service:
        return next(service for service in self.services() if service.name == name)

    # -- servers

    def _mariadb(self) -> Service:
        conf = self._etc / "mariadb.cnf"
        return Service(
            self._process("mariadb"),
            ("/usr/sbin/mariadbd", f"--defaults-file={conf}"),
            self._environment(),
            (conf,),
            lambda: _accepts(self._settings.ports.mariadb),
        )

    def _epmd(self) -> Service:
        """Erlang's name server, in our hands: one that the broker starts would stay behind it."""
        port = self._settings.ports.epmd
        return Service(
            self._process("epmd"),
            ("/usr/bin/epmd", "-port", str(port), "-address", "127.0.0.1"),
            self._environment(),
            ready=lambda: _accepts(port),
        )

    def _rabbitmq(self) -> Service:
        ports, conf = self._settings.ports, self._etc / "rabbitmq.conf"
        home = self._settings.state / "rabbitmq"
        environment = {
            "HOME": f"{home}",
            "RABBITMQ_NODENAME": "lab@localhost",
            "RABBITMQ_CONFIG_FILE": f"{conf}",
            "RABBITMQ_MNESIA_BASE": f"{home}",
            "RABBITMQ_LOG_BASE": f"{self._settings.log}/rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self._etc}/rabbitmq-plugins",
            "RABBITMQ_DIST_PORT": f"{ports.rabbitmq_distribution}",
            "RABBITMQ_PID_FILE": f"{self._settings.run}/rabbitmq-own.pid",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": f"{ports.epmd}",
            "RABBITMQ_SERVER_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Two schedulers that sleep when idle: the machine is small and shared.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }
        return Service(
            self._process("rabbitmq"),
            # Debian's wrapper in /usr/sbin would change the user.
            ("/usr/lib/rabbitmq/bin/rabbitmq-server",),
            self._environment(**environment),
            (conf,),
            lambda: _accepts(ports.rabbitmq),
        )

    def _wsgi(self, name: str, port: int, path: str, *code: Path) -> Service:
        conf = self._etc / "gunicorn" / f"{name}.py"
        environment = {
            "GUNICORN_CMD_ARGS": f"-c {conf}",
            "OS_KEYSTONE_CONFIG_FILES": f"{self._etc}/keystone/keystone.conf",
            "OS_PLACEMENT_CONFIG_DIR": f"{self._etc}/placement",
            "OS_GLANCE_CONFIG_DIR": f"{self._etc}/glance",
            "OS_NOVA_CONFIG_DIR": f"{self._etc}/nova",
            "OS_NOVA_CONFIG_FILES": "api-paste.ini;nova.conf;nova-api.conf",
            "NUMA_EXT_JOBS_CONFIG": f"{self._etc}/numa-ext-jobs/numa-ext-jobs.conf",
        }
        folder = self._etc / name.removesuffix("-api")
        own = tuple(sorted(folder.glob("*"))) if folder.is_dir() else ()
        url = self._settings.url(port, path)
        return Service(
            self._process(name, "gunicorn-"),
            (f"{self._settings.venv}/bin/gunicorn",),
            self._environment(**environment),
            (conf, *own, *code),
            lambda: cloud_api.answers(url),
        )

    def _nova_daemon(self, name: str, *code: Path) -> Service:
        conf = self._etc / "nova" / "nova.conf"
        return Service(
            self._process(name, "output-"),
            (f"{self._settings.venv}/bin/{name}", f"--config-file={conf}"),
            self._environment(),
            (conf, *code),
        )

    def _jobs(self) -> list[Service]:
        """The job service: its API and its engines."""
        if self._settings.plain:
            return []
        api = self._wsgi(_JOB_API, self._settings.ports.jobs, "/healthcheck", *self._code())
        return [api, *(self._engine(number) for number in range(JOB_ENGINES))]

    def _engine(self, number: int) -> Service:
        folder, name = self._etc / "numa-ext-jobs", f"numa-ext-engine-{number}"
        files = (folder / "numa-ext-jobs.conf", folder / f"{name}.conf")
        url = self._settings.url(self._settings.ports.engine_metrics(number), "/metrics")
        options = (f"--config-file={file}" for file in files)
        return Service(
            self._process(name, ""),
            (f"{self._settings.venv}/bin/numa-ext-engine", *options),
            # What fits models of elastic groups is not beside nova, and may come later.
            self._environment(PYTHONPATH=f"{self._settings.lab}/{models.EXTRA}"),
            (*files, *self._code()),
            lambda: cloud_api.answers(url),
        )

    # -- steps

    def _server_files(self) -> None:
        configuration.write_servers(self._settings)
        (self._settings.state / "rabbitmq").mkdir(parents=True, exist_ok=True)

    def _database_files(self) -> None:
        target = self._settings.state / "mysql"
        if target.exists():
            return
        draft = target.with_name("mysql.new")
        log = self._settings.log / "mariadb-install.log"
        with self._progress.step("creating the database files", log):
            run_logged("emptying a half-made database", ["rm", "-rf", draft], log)
            run_logged(
                "mariadb-install-db",
                [
                    "mariadb-install-db",
                    f"--defaults-file={self._etc}/mariadb.cnf",
                    f"--datadir={draft}",
                    "--auth-root-authentication-method=socket",
                    "--auth-root-socket-user=root",
                    "--skip-test-db",
                ],
                log,
                environment=self._environment(),
            )
            draft.rename(target)

    def _databases(self) -> None:
        password = self._settings.passwords().database
        names = _DATABASES if self._settings.plain else (*_DATABASES, _JOB_DATABASE)
        statements = [f"CREATE DATABASE IF NOT EXISTS {name};" for name in names]
        for host in ("127.0.0.1", "localhost"):
            user = f"'openstack'@'{host}'"
            statements += [
                f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{password}';",
                f"GRANT ALL ON *.* TO {user};",
            ]
        run_logged(
            "creating the databases",
            [
                "mariadb",
                "--no-defaults",
                f"--socket={self._settings.run}/mysql.sock",
                "--user=root",
            ],
            self._settings.log / "mariadb-install.log",
            environment=self._environment(),
            standard_input="\n".join(statements),
        )

    def _keystone_schema(self) -> None:
        url = self._settings.url(self._settings.ports.keystone, "/v3")
        (self._settings.state / "keystone").mkdir(parents=True, exist_ok=True)
        bootstrap = {
            "OS_BOOTSTRAP_PASSWORD": self._settings.passwords().admin,
            "OS_BOOTSTRAP_ADMIN_URL": url,
            "OS_BOOTSTRAP_INTERNAL_URL": url,
            "OS_BOOTSTRAP_PUBLIC_URL": url,
            "OS_BOOTSTRAP_REGION_ID": "RegionOne",
        }
        conf = f"{self._etc}/keystone/keystone.conf"
        self._schema("keystone", self._inside("keystone_schema.py", conf), bootstrap)

    def _placement_schema(self) -> None:
        command = f"{self._settings.venv}/bin/placement-manage"
        self._schema("placement", [command, f"--config-dir={self._etc}/placement", "db", "sync"])

    def _glance_schema(self) -> None:
        for folder in ("images", "staging", "tasks"):
            (self._settings.state / "glance" / folder).mkdir(parents=True, exist_ok=True)
        command = f"{self._settings.venv}/bin/glance-manage"
        self._schema("glance", [command, f"--config-dir={self._etc}/glance", "db_sync"])

    def _nova_schema(self) -> None:
        conf = f"{self._etc}/nova/nova.conf"
        self._schema("nova", self._inside("nova_schema.py", conf))

    def _job_schema(self) -> None:
        command = f"{self._settings.venv}/bin/numa-ext-manage"
        conf = f"--config-file={self._etc}/numa-ext-jobs/numa-ext-jobs.conf"
        tables = self._settings.checkout / "nova_numa_ext" / "orchestrator" / "store"
        digest = hashlib.sha256()
        for file in sorted(tables.rglob("*.py")):
            digest.update(file.read_bytes())
        self._schema("numa-ext", [command, conf, "db", "sync"], version=digest.hexdigest())

    def _schema(
        self,
        name: str,
        argv: list[str],
        environment: Mapping[str, str] | None = None,
        version: str = "",
    ) -> None:
        stamp = self._settings.state / "done" / f"{name}-schema"
        distribution = _DISTRIBUTIONS.get(name, name)
        version = version or _installed_version(self._settings.venv, distribution)
        if stamp.exists() and stamp.read_text() == version:
            return
        log = self._settings.log / f"{name}-schema.log"
        with self._progress.step(f"schema of {name}", log):
            run_logged(
                f"{name}'s schema", argv, log, environment=self._environment(**(environment or {}))
            )
        configuration.write_if_changed(stamp, version)

    def _identities(self) -> None:
        """Service users, services and endpoints."""
        settings, ports = self._settings, self._settings.ports
        services = {
            "nova": ["compute", settings.url(ports.nova, "/v2.1")],
            "placement": ["placement", settings.url(ports.placement)],
            "glance": ["image", settings.url(ports.glance)],
            "network": ["network", settings.url(ports.network)],
        }
        if not settings.plain:
            services["numa-ext-jobs"] = ["numa-ext", settings.url(ports.jobs)]
        desired = {
            "users": ["nova", "placement", "glance"],
            "password": settings.passwords().service,
            "users_of_one_role": configuration.users_of_one_role(settings),
            "services": services,
        }
        self._catalog("identities", "service users and endpoints", desired)

    def _resources(self) -> None:
        """Images without an operating system, and the example flavors.

        ``bios`` is an empty disk: a server from it idles in SeaBIOS. ``toucher`` has a kernel of
        a few hundred bytes that makes the server's memory resident and halts.
        """
        folder = self._settings.state / "images"
        folder.mkdir(parents=True, exist_ok=True)
        disk, kernel = folder / "empty.raw", folder / "toucher"
        with disk.open("wb") as stream:
            stream.truncate(_DISK_BYTES)
        script = self._settings.source / "images" / "build-toucher"
        log = self._settings.log / "images.log"
        run_logged(
            "building the toucher image", [script, kernel], log, environment=self._environment()
        )
        desired = {
            "images": [
                _image("bios", disk, "raw"),
                _image("toucher-kernel", kernel, "aki"),
                _image("toucher", disk, "raw", kernel="toucher-kernel"),
            ],
            "flavors": [
                flavor
                for flavor in json.loads((self._settings.source / _FLAVORS).read_text())
                if not (self._settings.plain and flavor["extra_specs"])
            ],
        }
        self._catalog("resources", "images and flavors", desired)

    def _wait_for_daemons(self) -> None:
        """Conductor and scheduler have reported to nova since they were started."""
        daemons = [self._service(name).process for name in ("nova-conductor", "nova-scheduler")]
        api = cloud_api.CloudApi(self._settings)

        def up() -> bool:
            return all(
                api.has_reported(process.name, "controller", process.pid_file.stat().st_mtime)
                for process in daemons
            )

        if up():
            return
        log = self._settings.log / "nova-scheduler.log"
        with self._progress.step("waiting for conductor and scheduler", log):
            wait_for("nova's conductor and scheduler report", up, 60, *daemons, log=log)

    def _catalog(self, command: str, what: str, desired: Mapping[str, object]) -> None:
        text = json.dumps(desired, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        stamp = self._settings.state / "done" / command
        if stamp.exists() and stamp.read_text() == digest:
            return
        log = self._settings.log / "catalog.log"
        environment = self._environment(
            OS_AUTH_URL=self._settings.url(self._settings.ports.keystone, "/v3"),
            OS_PASSWORD=self._settings.passwords().admin,
        )
        with self._progress.step(what, log):
            argv = self._inside("catalog.py", command)
            run_logged(what, argv, log, environment=environment, standard_input=text)
        configuration.write_if_changed(stamp, digest)

    # -- helpers

    def _process(self, name: str, log_prefix: str = "output-") -> Process:
        run, log = self._settings.run, self._settings.log
        return Process(name, run / f"{name}.pid", log / f"{log_prefix}{name}.log")

    def _environment(self, **more: str) -> dict[str, str]:
        return service_environment(self._settings, **more)

    def _inside(self, script: str, *arguments: str) -> list[str]:
        """A command that runs one of our scripts with the virtual environment's Python."""
        path = Path(__file__).with_name("inside") / script
        return [str(self._settings.python), str(path), *arguments]

    def _own_code(self) -> tuple[Path, ...]:
        """What nova's services have loaded of ours."""
        return self._code() if self._settings.plugin else ()

    def _code(self) -> tuple[Path, ...]:
        checkout = self._settings.checkout
        return (checkout / "placement_traits", checkout / "nova_numa_ext")


def service_environment(settings: Settings, **more: str) -> dict[str, str]:
    """The environment of the lab's processes: nothing of the caller's shell gets in."""
    return {
        "HOME": f"{settings.state}",
        "LANG": "C.UTF-8",
        "PATH": f"{settings.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONWARNINGS": "ignore",
        # nova's command line tools would still use eventlet.
        "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1",
        **more,
    }


def ports_in_use(settings: Settings) -> list[int]:
    """The lab's ports on which a process listens."""
    ours = range(settings.ports.base, settings.ports.emulated(0))
    listing = subprocess.run(
        ["ss", "--listening", "--tcp", "--numeric", "--no-header"],
        capture_output=True,
        text=True,
        check=True,
    )
    used = {line.split()[3].rpartition(":")[2] for line in listing.stdout.splitlines()}
    return [port for port in ours if str(port) in used]


def _image(name: str, path: Path, kind: str, kernel: str = "") -> dict[str, str]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"name": name, "path": str(path), "kind": kind, "kernel": kernel, "sha256": digest}


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False


def _installed_version(venv: Path, distribution: str) -> str:
    found = sorted(venv.glob(f"lib/python3*/site-packages/{distribution}-*.dist-info"))
    if not found:
        raise LabError(f"{distribution} is not installed in {venv}")
    return found[-1].name
