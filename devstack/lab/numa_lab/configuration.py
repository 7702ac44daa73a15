# SPDX-License-Identifier: Apache-2.0
"""Configuration files of all services, rendered from ``devstack/lab/templates``.

Rendering is strict: a name that a template uses and that has no value is an error. What a cloud needs for this project
is appended from ``devstack/options``, where the DevStack plug-in reads it, too. Files are written only when their text
changes, readable by root only, because they hold passwords.
"""

import json
import os
import string
import uuid
from collections.abc import Mapping
from pathlib import Path

from .errors import LabError
from .settings import JOB_ENGINES, HostConfig, Settings

GPU_RESOURCE_CLASS = "CUSTOM_GPU"
PCI_ALIAS = {"name": "gpu", "resource_class": GPU_RESOURCE_CLASS, "device_type": "type-PCI"}

_AGENT_USER = "numa-ext-host-"
_AGENT_PROJECT = "numa-ext-hosts"

_JOB_USER = "numa-ext-jobs"

_OUR_PLUGINS = ("NumaExtFilter", "NumaExtWeigher")

_WSGI_APPLICATIONS = {
    "keystone": "keystone.wsgi.api:application",
    "placement": "placement.wsgi.api:application",
    "glance": "glance.wsgi.api:application",
    "nova-api": "nova.wsgi.osapi_compute:application",
    "network": "numa_lab.stub_network:application",
}
_JOB_APPLICATION = {"numa-ext-jobs-api": "nova_numa_ext.orchestrator.wsgi:application"}


def render(template: Path, values: Mapping[str, object]) -> str:
    """The text of ``template`` with ``$name`` replaced by ``values``.

    :raises LabError: the template names something that is not in ``values``.
    """
    text = string.Template(template.read_text())
    try:
        return text.substitute(values)
    except KeyError as error:
        raise LabError(
            f"template {template.name} wants ${error.args[0]}, which is not set"
        ) from error


def write_if_changed(path: Path, text: str, mode: int = 0o600) -> bool:
    """Make ``path`` hold ``text``; return whether it had to be written."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    with open(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode), "w") as stream:
        stream.write(text)
    draft.replace(path)
    return True


def nova_compute_conf(settings: Settings, host: HostConfig) -> str:
    """The whole nova.conf of one compute; services are reached on 127.0.0.1 on every host."""
    values = _common_values(settings) | {
        "name": host.name,
        "compute_state": host.state,
        "compute_log": host.log,
        "instances": host.instances,
        "cpu_sets": _lines(
            cpu_dedicated_set=host.cpu_dedicated_set, cpu_shared_set=host.cpu_shared_set
        ),
        "device_specs": "\n".join(f"device_spec = {spec}" for spec in host.pci_device_specs),
        "migration": _lines(live_migration_inbound_addr=host.migration_address),
        "privsep": f"{settings.venv}/bin/privsep-helper",
    }
    auth = _host_auth(settings, f"nova-compute-{host.name}")
    return _nova_conf(settings, "nova-compute.conf", values, auth)


def agent_conf(
    settings: Settings,
    host: HostConfig,
    nova_conf: Path,
    helper: Path,
    state: Path | None = None,
) -> str:
    """The whole configuration of our agent on one compute.

    :param nova_conf: what its nova-compute reads
    :param helper: folder of the agent's privileged helper; its socket is beside it
    :param state: folder of the agent's state, as that host sees it; the default is in nova's
    """
    values = _common_values(settings) | {
        "name": host.name,
        "agent_state": state or host.state / "numa-host-agent",
        "helper": helper,
        "nova_conf": nova_conf,
        "gpu_products": ",".join(_products(host)),
        "gpu_matrix": host.gpu_matrix,
        "metrics_port": settings.ports.agent_metrics,
        "auth": _host_auth(settings, f"{_AGENT_USER}{host.name}", _AGENT_PROJECT),
    }
    own = render(settings.source / "templates" / "numa-host-agent.conf", values)
    return own + _options(settings, "numa-host-agent.conf")


def supervisor(settings: Settings, conf: Path, user: str = "") -> tuple[str, ...]:
    """What Python is given to keep our agent on a compute: there is no systemd.

    Times are those of an emulated host, which needs a second for what others do in 50 ms: a first round takes minutes.

    :param conf: the agent's configuration
    :param user: who runs it; "" who runs the supervisor
    """
    patience = ("--max-silence=600", "--watchdog=600", "--start=900")
    program = f"{settings.venv}/bin/numa-host-agent-supervisor"
    as_user = (f"--user={user}",) if user else ()
    return (program, f"--config-file={conf}", *as_user, *patience)


def write_servers(settings: Settings) -> None:
    """Write the configuration of MariaDB and RabbitMQ."""
    for name in ("mariadb.cnf", "rabbitmq.conf"):
        text = render(settings.source / "templates" / name, _common_values(settings))
        write_if_changed(settings.etc / name, text)
    write_if_changed(settings.etc / "rabbitmq-plugins", "[].\n")


def write_controller(settings: Settings) -> None:
    """Write the configuration of OpenStack's services; needs the virtual environment's own files."""
    values = _common_values(settings)
    templates = settings.source / "templates"
    for name, user in (("keystone", ""), ("placement", "placement"), ("glance-api", "glance")):
        text = render(templates / f"{name}.conf", values | {"auth": _auth(settings, user)})
        if name == "placement" and not settings.plain:
            text += render(templates / "placement-policy.conf", values)
            text += _options(settings, "placement.conf")
        write_if_changed(settings.etc / name.removesuffix("-api") / f"{name}.conf", text)
    nova = _nova_conf(settings, "nova-controller.conf", values, _auth(settings, "nova"))
    if not settings.plain:
        nova += render(templates / "nova-numa-ext.conf", values)
        _write_jobs(settings, values)
    write_if_changed(settings.etc / "nova" / "nova.conf", nova)
    # The log of a WSGI application would be called after gunicorn.
    write_if_changed(
        settings.etc / "nova" / "nova-api.conf",
        f"[DEFAULT]\nlog_file = {settings.log}/nova-api.log\n",
    )
    ports = _wsgi_ports(settings)
    applications = _WSGI_APPLICATIONS | ({} if settings.plain else _JOB_APPLICATION)
    for name, application in applications.items():
        text = render(
            templates / "gunicorn.py",
            {"application": application, "port": ports[name], "pythonpath": settings.source},
        )
        write_if_changed(settings.etc / "gunicorn" / f"{name}.py", text)
    for source, target in (
        ("nova/api-paste.ini", "nova/api-paste.ini"),
        ("glance/glance-api-paste.ini", "glance-api-paste.ini"),
    ):
        write_if_changed(settings.etc / target, (settings.venv / "etc" / source).read_text())
    write_if_changed(settings.lab / "openrc", openrc(settings))


def _write_jobs(settings: Settings, values: Mapping[str, object]) -> None:
    """Write what the job service reads, and what each engine reads beside it."""
    folder = settings.etc / "numa-ext-jobs"
    auth = _credentials(settings, _JOB_USER, settings.password_of(_JOB_USER))
    text = render(settings.source / "templates" / "numa-ext-jobs.conf", {**values, "auth": auth})
    write_if_changed(folder / "numa-ext-jobs.conf", text + _options(settings, "numa-ext-jobs.conf"))
    for engine in range(JOB_ENGINES):
        port = settings.ports.engine_metrics(engine)
        write_if_changed(
            folder / f"numa-ext-engine-{engine}.conf",
            f"[numa_ext_jobs]\nmetrics_port = {port}\nmark_file = {settings.state}/jobs-mark-{engine}.json\n"
            f"scaling_traces = {settings.state}/traces\nscaling_hooks = {settings.state}/hooks\n"
            f"scaling_prometheus = {settings.url(settings.ports.prometheus)}\n",
        )


def write_libvirt(settings: Settings) -> None:
    """Write the configuration of the local compute's own libvirtd."""
    folder = settings.etc / "libvirt"
    for name, text in libvirt_files(settings, _host_uuid(settings), settings.log).items():
        write_if_changed(folder / name, text)


def libvirt_files(
    settings: Settings, host_uuid: uuid.UUID, log: Path, migration_address: str = ""
) -> dict[str, str]:
    """libvirt's configuration files of one compute, by name.

    :param log: folder of libvirtd's log, as that host sees it.
    :param migration_address: the only address at which the libvirtd of another host is let in, without a password, and
        at which guests arrive; "" lets none in.
    """
    address = json.dumps(migration_address)
    listen, migration = "listen_tcp = 0", ""
    if migration_address:
        listen = f'listen_tcp = 1\nlisten_addr = {address}\nauth_tcp = "none"'
        migration = f"migration_address = {address}"
    values = {"host_uuid": host_uuid, "log": log, "listen": listen, "migration": migration}
    templates = settings.source / "templates"
    return {name: render(templates / name, values) for name in ("libvirtd.conf", "qemu.conf")}


def instance_prefix(settings: Settings) -> str:
    """How libvirt's names of this lab's guests begin."""
    return f"instance-{settings.ports.base}-"


def openrc(settings: Settings) -> str:
    """Shell lines that export the administrator's credentials and the virtual environment."""
    return render(settings.source / "templates" / "openrc", _common_values(settings))


def _common_values(settings: Settings) -> dict[str, object]:
    ports, passwords = settings.ports, settings.passwords()
    database = f"mysql+pymysql://openstack:{passwords.database}@127.0.0.1:{ports.mariadb}"
    return {
        "etc": settings.etc,
        "state": settings.state,
        "log": settings.log,
        "run": settings.run,
        "venv": settings.venv,
        "mariadb_port": ports.mariadb,
        "rabbitmq_port": ports.rabbitmq,
        "glance_port": ports.glance,
        "keystone_url": settings.url(ports.keystone),
        "glance_url": settings.url(ports.glance),
        "database": database,
        "policy_file": settings.checkout / "etc" / "placement" / "policy.yaml",
        "admin_password": passwords.admin,
        "rabbitmq_password": passwords.rabbitmq,
        "scheduler_metrics": ports.scheduler_metrics,
        "job_hint_key": settings.job_hint_key(),
        "instance_prefix": instance_prefix(settings),
        "pci_alias": json.dumps(PCI_ALIAS),
    }


def _auth(settings: Settings, user: str) -> str:
    """Credentials of a service on the controller."""
    if not user:
        return ""
    return _credentials(settings, user, settings.passwords().service)


def _credentials(settings: Settings, user: str, password: str, project: str = "service") -> str:
    values = {"user": user, "password": password, "project": project}
    return render(settings.source / "templates" / "auth.conf", _common_values(settings) | values)


def _host_auth(settings: Settings, user: str, project: str = "service") -> str:
    """Credentials that one compute host has, and no other."""
    return _credentials(settings, user, settings.password_of(user), project)


def users_of_one_role(settings: Settings) -> list[dict[str, str]]:
    """Keystone users of all compute hosts and of the job service: name, password, project and the one role of each."""
    kinds = [("nova-compute-", "service", "service")]
    if not settings.plain:
        kinds.append((_AGENT_USER, _AGENT_PROJECT, "numa_ext_host"))
    made = [
        {"name": f"{head}{name}", "project": project, "role": role}
        for name in settings.compute_names
        for head, project, role in kinds
    ]
    if not settings.plain:
        made.append({"name": _JOB_USER, "project": "service", "role": "service"})
    return [{**user, "password": settings.password_of(user["name"])} for user in made]


def _nova_conf(settings: Settings, part: str, values: Mapping[str, object], auth: str) -> str:
    values = {**values, "auth": auth}
    templates = settings.source / "templates"
    own = render(templates / "nova-common.conf", values) + render(templates / part, values)
    if settings.plain:
        return own + render(templates / "nova-plain.conf", values)
    options = _options(settings, "nova.conf")
    return own + (options if settings.plugin else _without_ours(options))


def _options(settings: Settings, name: str) -> str:
    """What the lab and DevStack have in common of a service's configuration."""
    return (settings.checkout / "devstack" / "options" / name).read_text()


def _without_ours(options: str) -> str:
    """nova.conf's text without the filter and the weigher of this project: for comparisons."""
    lines = []
    for line in options.splitlines(keepends=True):
        name, separator, values = line.partition(" = ")
        left = [one for one in values.split(",") if not one.rstrip().endswith(_OUR_PLUGINS)]
        if not separator or line.startswith("#"):
            lines.append(line)
        elif left:
            lines.append(f"{name} = {','.join(left).rstrip()}\n")
    return "".join(lines)


def _wsgi_ports(settings: Settings) -> dict[str, int]:
    ports = settings.ports
    return {
        "keystone": ports.keystone,
        "placement": ports.placement,
        "glance": ports.glance,
        "nova-api": ports.nova,
        "network": ports.network,
        "numa-ext-jobs-api": ports.jobs,
    }


def _host_uuid(settings: Settings) -> uuid.UUID:
    """The same for one lab folder for ever, different from the machine's own libvirt."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"file://{settings.lab}/local")


def _products(host: HostConfig) -> list[str]:
    """``vendor:product`` of the host's PCI devices, which our agent takes as GPUs."""
    specs = [json.loads(text) for text in host.pci_device_specs]
    return [f"{spec['vendor_id']}:{spec['product_id']}" for spec in specs]


def _lines(**options: str) -> str:
    return "\n".join(f"{name} = {value}" for name, value in options.items() if value)
