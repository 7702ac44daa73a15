# SPDX-License-Identifier: Apache-2.0
"""An honest stub in the place of Neutron: a network API in which there is nothing and nothing can be made.

Nova asks the network endpoint whenever it lists servers (ports, security groups) and checks quotas; without one these
requests fail. The lab's servers have no NIC (``--nic none``), so empty answers are true ones. Any attempt to create
something is refused with 404 and a sentence that says why.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

_QUOTA_RESOURCES = (
    "network",
    "subnet",
    "port",
    "router",
    "floatingip",
    "security_group",
    "security_group_rule",
)
_UNLIMITED = -1


def answer(method: str, path: str, host: str) -> tuple[str, dict[str, Any]]:
    """The HTTP status and JSON body for one request.

    :param path: the URL's path, for example ``/v2.0/ports``.
    :param host: the Host header, for the link in the list of versions.
    """
    words = [word for word in path.split("/") if word]
    match words:
        case [] if method == "GET":
            link = {"rel": "self", "href": f"http://{host}/v2.0/"}
            return "200 OK", {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]}
        case ["v2.0"] if method == "GET":
            return "200 OK", {"resources": []}
        case ["v2.0", collection] if method == "GET":
            return "200 OK", {collection.removesuffix(".json").replace("-", "_"): []}
        case ["v2.0", "quotas", _] if method == "GET":
            return "200 OK", {"quota": dict.fromkeys(_QUOTA_RESOURCES, _UNLIMITED)}
    message = "the lab has no networks: its network service is an empty stub, use --nic none"
    return "404 Not Found", {"NeutronError": {"type": "NotFound", "message": message, "detail": ""}}


def application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], Any]
) -> Iterable[bytes]:
    """WSGI entry point."""
    host = environ.get("HTTP_HOST", "127.0.0.1")
    status, body = answer(environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/"), host)
    data = json.dumps(body).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(data)))]
    start_response(status, headers)
    return [data]
