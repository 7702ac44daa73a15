# SPDX-License-Identifier: Apache-2.0
"""A real Neutron in process, on SQLite: its API, its ML2 plug-in with the driver of Open vSwitch, and its QoS plug-in.

No agent of it runs, so ports are bound nowhere: what is tested is what its API lets somebody write.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import requests
from keystoneauth1.session import Session
from keystoneauth1.token_endpoint import Token
from neutron.common import config
from neutron.db.migration.models import head
from neutron_lib.context import Context
from neutron_lib.db.api import CONTEXT_WRITER
from openstack.connection import Connection

from emulation.placement_service import Application, WsgiTransport

URL = "http://neutron.test"
PASTE = """
[composite:neutron]
use = egg:Paste#urlmap
/: versions
/v2.0: api
[app:versions]
paste.app_factory = neutron.pecan_wsgi.app:versions_factory
[app:api]
paste.app_factory = neutron.api.v2.router:APIRouter.factory
"""
CONF = """
[DEFAULT]
core_plugin = ml2
service_plugins = qos
auth_strategy = noauth
state_path = {folder}
transport_url = fake://
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
api_paste_config = {folder}/paste.ini
[oslo_concurrency]
lock_path = {folder}
[database]
connection = sqlite:///{folder}/neutron.sqlite
[ml2]
type_drivers = vlan
project_network_types = vlan
mechanism_drivers = openvswitch
extension_drivers = port_security,qos
[ml2_type_vlan]
network_vlan_ranges = physical:100:199
[oslo_messaging_notifications]
driver = noop
"""


@pytest.fixture(scope="session")
def neutron(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Network proxy of an administrator's openstacksdk."""
    folder: Path = tmp_path_factory.mktemp("neutron")
    (folder / "paste.ini").write_text(PASTE)
    (folder / "neutron.conf").write_text(CONF.format(folder=folder))
    config.register_common_config_options()
    config.init(["--config-file", str(folder / "neutron.conf")])
    head.get_metadata().create_all(CONTEXT_WRITER.get_engine())
    http = requests.Session()
    http.mount(URL, WsgiTransport(_of_an_administrator(config.load_paste_app("neutron"))))
    session = Session(auth=Token(URL, "a token that nobody checks"), session=http)
    return Connection(session=session, network_endpoint_override=URL).network


def _of_an_administrator(application: Application) -> Application:
    """Say who asks, as Neutron's filter of Keystone's tokens does."""

    def asked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        environ["neutron.context"] = Context("admin", "project", is_admin=True, roles=["admin"])
        return application(environ, start_response)

    return asked
