# SPDX-License-Identifier: Apache-2.0
"""What the API of jobs asks while a job is submitted, answered at once: Keystone, nova, Glance, Neutron over HTTP.

``python -m benchmarks.jobs_cloud`` prints its port and serves on loopback until its standard input ends. It stores
nothing, and believes every token: one names its project, ``admin`` has all roles. What the API takes for a request is
measured beside it, not what a cloud takes to answer.
"""

import json
import sys
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import make_server

from benchmarks.placement_server import Quiet, Server

ADMIN: Final = "admin"
FLAVOR, IMAGE = "bench", str(uuid.uuid5(uuid.NAMESPACE_DNS, "image"))
_SERVICE: Final = "jobs"
_LASTS_UNTIL: Final = "2099-01-01T00:00:00.000000Z"
_TOKENS: Final = "/v3/auth/tokens"

Answer = tuple[str, dict[str, Any], list[tuple[str, str]]]
Start = Callable[[str, list[tuple[str, str]]], Any]


def _token(name: str, url: str) -> dict[str, Any]:
    roles = ("reader", "member", "admin") if name in (ADMIN, _SERVICE) else ("reader", "member")
    domain = {"id": "default", "name": "Default"}
    services = {
        "identity": "/v3",
        "compute": "/v2.1",
        "image": "",
        "network": "",
    }
    catalog = [
        {
            "type": kind,
            "id": kind,
            "name": kind,
            "endpoints": [
                {
                    "id": kind,
                    "interface": each,
                    "region_id": "one",
                    "region": "one",
                    "url": url + at,
                }
                for each in ("public", "internal", "admin")
            ],
        }
        for kind, at in services.items()
    ]
    return {
        "token": {
            "methods": ["password"],
            "user": {"id": f"user-of-{name}", "name": name, "domain": domain},
            "project": {"id": name, "name": name, "domain": domain},
            "roles": [{"id": each, "name": each} for each in roles],
            "catalog": catalog,
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "expires_at": _LASTS_UNTIL,
            "audit_ids": [name],
        }
    }


def _identity(method: str, path: str, headers: dict[str, Any], url: str) -> Answer:
    if path == _TOKENS:
        name = _SERVICE if method == "POST" else headers.get("HTTP_X_SUBJECT_TOKEN", "")
        status = "201 Created" if method == "POST" else "200 OK"
        return status, _token(name, url), [("X-Subject-Token", name)]
    if path == "/v3/OS-TRUST/trusts":
        return "201 Created", {"trust": {"id": uuid.uuid4().hex}}, []
    link = {"rel": "self", "href": f"{url}/v3/"}
    return "200 OK", {"version": {"id": "v3.14", "status": "stable", "links": [link]}}, []


_OTHERS: Final[dict[str, dict[str, Any]]] = {
    f"/v2.1/flavors/{FLAVOR}": {
        "flavor": {
            "id": FLAVOR,
            "name": FLAVOR,
            "vcpus": 4,
            "ram": 4096,
            "disk": 20,
            "swap": 0,
            "OS-FLV-EXT-DATA:ephemeral": 0,
            "extra_specs": {"numa_ext:tier": "BE"},
        }
    },
    "/v2.1/limits": {"limits": {"absolute": {}}},
    f"/v2/images/{IMAGE}": {"id": IMAGE, "status": "active", "min_disk": 0, "min_ram": 0},
    "/v2.0/networks": {"networks": [{"id": "network", "name": "network"}]},
}


def application(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Answer a request, as WSGI."""
    path, url = environ["PATH_INFO"], f"http://{environ['HTTP_HOST']}"
    answer: Answer = ("404 Not Found", {}, [])
    if path.startswith("/v3"):
        answer = _identity(environ["REQUEST_METHOD"], path, environ, url)
    elif path in _OTHERS:
        answer = ("200 OK", _OTHERS[path], [])
    status, body, more = answer
    data = json.dumps(body).encode()
    start(status, [("Content-Type", "application/json"), ("Content-Length", str(len(data))), *more])
    return [data]


def main() -> None:
    """Serve until standard input ends."""
    server = make_server("127.0.0.1", 0, application, Server, Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
