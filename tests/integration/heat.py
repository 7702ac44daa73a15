# SPDX-License-Identifier: Apache-2.0
"""A real Heat of PyPI beside the lab, on its MariaDB, RabbitMQ and Keystone: for stories that need one.

It has an environment of its own below the lab's folder, for its libraries are not nova's, and is no part of the lab:
who starts it ends it, and what it has made in Keystone and MariaDB goes with it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pymysql
from keystoneauth1.adapter import Adapter
from keystoneauth1.exceptions import ClientException
from numa_lab.process import Process

from nova_numa_ext.orchestrator.cloud.stacks import ENDPOINT
from tests.integration.cloud import LabCloud, eventually
from tests.support.ports import free_port

PACKAGES = ("openstack-heat>=27,<28", "pymysql", "gunicorn")
STARTED_S = 120.0
_ANSWER_S = 5.0
_DOMAIN = "heat-of-stories"
_CONF = """\
[DEFAULT]
transport_url = {transport}
stack_domain_admin = {domain}-admin
stack_domain_admin_password = {password}
stack_user_domain_id = {domain_id}
heat_metadata_server_url = http://127.0.0.1:{port}
num_engine_workers = 1
auth_encryption_key = {key}
[database]
connection = {database}
[keystone_authtoken]
www_authenticate_uri = {keystone}
auth_url = {keystone}
auth_type = password
username = {user}
password = {password}
project_name = service
user_domain_id = default
project_domain_id = default
[trustee]
auth_url = {keystone}
auth_type = password
username = {user}
password = {password}
user_domain_id = default
[clients_keystone]
auth_uri = {keystone}
[paste_deploy]
api_paste_config = {paste}
"""
_APP = """\
import sys

sys.argv = ["heat-wsgi-api", "--config-file", "{conf}"]
from heat.api.openstack.wsgi import init_application

application = init_application()
"""


class LabHeat:
    """Heat's engine and API; :meth:`start` and :meth:`end` come in pairs.

    :ivar api: as the lab's administrator asks it
    """

    def __init__(self, cloud: LabCloud) -> None:
        self._cloud, self._settings = cloud, cloud.settings
        self._folder = cloud.settings.lab / "heat"
        self._venv, self._state = self._folder / "venv", self._folder / "state"
        self._port = free_port()
        self._processes = [
            Process(name, self._state / f"{name}.pid", self._settings.log / f"{name}.log")
            for name in ("heat-engine", "heat-api")
        ]
        session = cloud.api.session
        url = f"http://127.0.0.1:{self._port}/v1/{session.get_project_id()}"
        self.api = Adapter(session, endpoint_override=url, service_type=ENDPOINT)

    def start(self) -> None:
        """Install it once; then make what it needs and start it."""
        self._install()
        self._forget_identities()  # of a run that was ended from outside
        shutil.rmtree(self._state, ignore_errors=True)
        self._state.mkdir(parents=True)
        self._database("DROP DATABASE IF EXISTS heat", "CREATE DATABASE heat")
        self._configure()
        conf, programs = f"{self._state}/heat.conf", self._venv / "bin"
        # Its environment is its own: no path of this checkout's.
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        environment["OS_HEAT_CONFIG_FILES"] = conf
        with (self._settings.log / "heat-sync.log").open("w") as log:
            words = [f"{programs}/heat-manage", "--config-file", conf, "db_sync"]
            subprocess.run(words, check=True, stdout=log, stderr=log, env=environment)
        engine, api = self._processes
        engine.start([f"{programs}/heat-engine", "--config-file", conf], environment)
        # A request that comes before the engine waits a minute for its answer: another process has the next one.
        bind = ["--bind", f"127.0.0.1:{self._port}", "--workers", "2", "--timeout", "120"]
        served = [f"{programs}/gunicorn", "--chdir", f"{self._state}", *bind, "app:application"]
        api.start(served, environment)
        # A token that was given before has a catalogue without Heat, and who has seen it keeps that for minutes.
        self._cloud.api.session.invalidate()
        eventually("Heat is up", self._is_up, STARTED_S)

    def end(self) -> None:
        """Stop it, and take away what it has made."""
        for process in self._processes:
            process.stop()
        self._forget_identities()
        self._database("DROP DATABASE IF EXISTS heat")
        self._cloud.api.session.invalidate()

    def stack(self, name: str) -> Mapping[str, Any]:
        """A stack as Heat shows it."""
        row = self.api.get("/stacks", params={"name": name}).json()["stacks"][0]
        shown = self.api.get(f"/stacks/{name}/{row['id']}")
        return dict(shown.json()["stack"])

    def updates(self, name: str) -> int:
        """How often a stack was updated."""
        uuid = self.stack(name)["id"]
        found = self.api.get(f"/stacks/{name}/{uuid}/events").json()["events"]
        return sum(
            (each["resource_name"], each["resource_status"]) == (name, "UPDATE_IN_PROGRESS")
            for each in found
        )

    def delete(self, name: str) -> None:
        """Delete a stack and wait until it is gone."""
        rows = self.api.get("/stacks", params={"name": name}).json()["stacks"]
        for row in rows:
            self.api.delete(f"/stacks/{name}/{row['id']}")

        def gone() -> bool:
            return not self.api.get("/stacks", params={"name": name}).json()["stacks"]

        eventually(f"stack {name} is gone", gone, 240)

    def _forget_identities(self) -> None:
        for words in (
            f"service delete {_DOMAIN}",
            f"user delete {_DOMAIN}",
            f"domain set --disable {_DOMAIN}",
            f"domain delete {_DOMAIN}",
        ):
            self._cloud.openstack(*words.split(), check=False)

    def _install(self) -> None:
        if (self._venv / "bin" / "heat-engine").exists():
            return
        subprocess.run([sys.executable, "-m", "venv", "--clear", f"{self._venv}"], check=True)
        pip = [f"{self._venv}/bin/python", "-m", "pip", "install", "-q", *PACKAGES]
        subprocess.run(pip, check=True)

    def _configure(self) -> None:
        settings, passwords = self._settings, self._settings.passwords()
        keystone = settings.url(settings.ports.keystone, "/v3")
        secret = passwords.service
        public = f"http://127.0.0.1:{self._port}/v1/%(project_id)s"
        for words in (
            f"user create --password {secret} {_DOMAIN}",
            f"role add --user {_DOMAIN} --project service admin",
            "role create --or-show heat_stack_user",
            f"service create --name {_DOMAIN} {ENDPOINT}",
            f"endpoint create --region RegionOne {ENDPOINT} public {public}",
            f"domain create {_DOMAIN}",
            f"user create --domain {_DOMAIN} --password {secret} {_DOMAIN}-admin",
            f"role add --domain {_DOMAIN} --user-domain {_DOMAIN} --user {_DOMAIN}-admin admin",
        ):
            self._cloud.openstack(*words.split())
        shown = self._cloud.openstack("domain", "show", _DOMAIN, "-f", "value", "-c", "id")
        database = f"openstack:{passwords.database}@127.0.0.1:{settings.ports.mariadb}/heat"
        text = _CONF.format(
            transport=f"rabbit://openstack:{passwords.rabbitmq}@127.0.0.1:{settings.ports.rabbitmq}/",
            domain=_DOMAIN,
            domain_id=shown.stdout.strip(),
            user=_DOMAIN,
            password=secret,
            port=self._port,
            key=secret.ljust(32, "0")[:32],
            database=f"mysql+pymysql://{database}?charset=utf8mb4",
            keystone=keystone,
            paste=self._venv / "etc" / "heat" / "api-paste.ini",
        )
        conf = self._state / "heat.conf"
        conf.touch(mode=0o600)
        conf.write_text(text)
        (self._state / "app.py").write_text(_APP.format(conf=conf))

    def _database(self, *statements: str) -> None:
        settings = self._settings
        with (
            pymysql.connect(
                host="127.0.0.1",
                port=settings.ports.mariadb,
                user="openstack",
                password=settings.passwords().database,
                autocommit=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)

    def _is_up(self) -> bool:
        try:
            answer = self.api.get("/services", raise_exc=False, timeout=_ANSWER_S)
        except ClientException:  # no connection yet, or no answer in time
            return False
        return answer.status_code == 200 and any(
            each["status"] == "up" for each in answer.json()["services"]
        )
