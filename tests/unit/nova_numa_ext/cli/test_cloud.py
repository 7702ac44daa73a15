# SPDX-License-Identifier: Apache-2.0
"""The commands reach the services by what openstackclient hands to a plug-in."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from openstack.config import OpenStackConfig
from openstack.connection import Connection

from nova_numa_ext.cli.cloud import Cloud

_VERSION = {"id": "v1.0", "max_version": "1.39", "min_version": "1.0", "status": "CURRENT"}
PLACEMENT = {"versions": [{**_VERSION, "links": [{"rel": "self", "href": ""}]}]}


class Services(BaseHTTPRequestHandler):
    """Placement's root, and a job service without jobs."""

    def do_GET(self) -> None:
        answer = {"jobs": []} if self.path.startswith("/v1/jobs?") else PLACEMENT
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *words: object) -> None:
        """Print nothing."""


def test_jobs_are_listed_by_the_connection_of_openstackclient() -> None:
    """Made as osc-lib makes it: the session first, and of the same configuration the connection."""
    server = HTTPServer(("127.0.0.1", 0), Services)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        config = OpenStackConfig(load_yaml_config=False, load_envvars=False).get_one(
            auth_type="admin_token", auth={"endpoint": url, "token": "t"}
        )
        config.get_session()
        assert list(Cloud(Connection(config=config)).jobs().jobs()) == []
    finally:
        server.shutdown()
        server.server_close()
