# SPDX-License-Identifier: Apache-2.0
"""The network stub tells no lies: there is nothing, and nothing can be made."""

import json

import pytest
from numa_lab.stub_network import answer, application


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v2.0/ports", "ports"),
        ("/v2.0/security-groups", "security_groups"),
        ("/v2.0/networks.json", "networks"),
        ("/v2.0/extensions", "extensions"),
    ],
)
def test_every_collection_is_empty(path: str, key: str) -> None:
    assert answer("GET", path, "127.0.0.1") == ("200 OK", {key: []})


def test_versions_link_to_where_they_were_asked() -> None:
    status, body = answer("GET", "/", "127.0.0.1:1234")

    assert status == "200 OK"
    assert body["versions"][0]["links"][0]["href"] == "http://127.0.0.1:1234/v2.0/"


def test_quotas_are_unlimited() -> None:
    _, body = answer("GET", "/v2.0/quotas/project", "host")

    assert set(body["quota"].values()) == {-1}


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v2.0/ports"), ("GET", "/v2.0/ports/1234"), ("GET", "/v3")]
)
def test_anything_else_is_refused_with_the_reason(method: str, path: str) -> None:
    status, body = answer(method, path, "host")

    assert status == "404 Not Found"
    assert "--nic none" in body["NeutronError"]["message"]


def test_wsgi_answers_with_json_of_the_right_length() -> None:
    told: dict[str, object] = {}

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        told.update(headers, status=status)

    (data,) = application({"REQUEST_METHOD": "GET", "PATH_INFO": "/v2.0/ports"}, start)

    assert json.loads(data) == {"ports": []}
    assert told["status"] == "200 OK"
    assert told["Content-Length"] == str(len(data))
