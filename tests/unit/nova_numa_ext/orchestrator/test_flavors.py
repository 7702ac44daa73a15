# SPDX-License-Identifier: Apache-2.0
"""What nova says of servers' flavors: asked once a while, and nothing where it shows nothing."""

from types import SimpleNamespace

import pytest

from nova_numa_ext.orchestrator.cloud.flavors import FRESH_S, ServerFlavors
from placement_traits.errors import ServiceUnavailableError

ASKS = {"numa_ext:remote_gpu": "required", "numa_ext:remote_gpu_memory_mb": "4000"}


class OneServer:
    """A compute endpoint that knows one server."""

    def __init__(self, specs, status=200):
        self.flavor = {"vcpus": 2, "ram": 512, "disk": 1, "original_name": "small"}
        if specs is not None:
            self.flavor["extra_specs"] = specs
        self.status, self.paths = status, []

    def request(self, path, method, **_given):
        self.paths.append((method, path))
        body = {"server": {"id": "s", "flavor": self.flavor}}
        return SimpleNamespace(status_code=self.status, text="no", json=lambda: body)


def test_what_a_flavor_asks_for_is_read_once_a_minute():
    nova, now = OneServer(ASKS), [0.0]
    flavors = ServerFlavors(nova, clock=lambda: now[0])
    for _ in range(3):
        assert flavors.remote_gpus("s").memory_mb == 4000
    assert nova.paths == [("GET", "/servers/s")]
    now[0] = FRESH_S
    nova.flavor["extra_specs"] = {}
    assert flavors.remote_gpus("s") is None


@pytest.mark.parametrize(
    ("specs", "status"),
    [(ASKS, 404), (ASKS, 403), (None, 200), ({**ASKS, "numa_ext:remote_gpu_count": "x"}, 200)],
)
def test_what_nova_does_not_show_or_makes_no_sense_is_nothing(specs, status):
    assert ServerFlavors(OneServer(specs, status)).remote_gpus("s") is None


@pytest.mark.parametrize("flavor", ["page", {"ram": 512}, {"vcpus": "many", "ram": 512}])
def test_an_answer_that_is_not_novas_is_none(flavor):
    nova = OneServer(ASKS)
    nova.flavor = flavor
    with pytest.raises(ServiceUnavailableError, match="Nova does not answer"):
        ServerFlavors(nova).remote_gpus("s")


def test_a_nova_in_trouble_says_nothing_of_a_flavor():
    nova = OneServer(ASKS, 503)
    with pytest.raises(ServiceUnavailableError, match="Nova does not answer"):
        ServerFlavors(nova).remote_gpus("s")
