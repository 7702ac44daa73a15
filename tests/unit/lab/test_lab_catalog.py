# SPDX-License-Identifier: Apache-2.0
"""What the lab makes in Glance, Keystone and nova follows its files."""

from types import SimpleNamespace
from typing import Any, cast

import openstack
import pytest
from numa_lab.inside import catalog

KERNEL = {"name": "k", "path": "/k", "kind": "aki", "kernel": "", "sha256": "1"}
DISK = {"name": "d", "path": "/d", "kind": "raw", "kernel": "k", "sha256": "2"}


class Glance:
    """Images by name; each one made has an id of its own."""

    def __init__(self) -> None:
        self._images: dict[str, Any] = {}
        self.made: list[str] = []

    def find_image(self, name: str) -> Any:
        return self._images.get(name)

    def delete_image(self, image: Any) -> None:
        del self._images[image.name]

    def create_image(self, name: str, kernel_id: str | None = None, **options: Any) -> None:
        number = str(len(self.made))
        self.made.append(name)
        known = {key: value for key, value in options.items() if "sha256" in key}
        image = SimpleNamespace(id=number, name=name, kernel_id=kernel_id, properties=known)
        self._images[name] = image


@pytest.mark.parametrize(
    ("changed", "made_again"),
    [({}, []), ({"d": "9"}, ["d"]), ({"k": "9"}, ["k", "d"])],
    ids=["nothing", "disk", "kernel"],
)
def test_an_image_follows_its_file_and_its_kernel(
    changed: dict[str, str], made_again: list[str]
) -> None:
    glance = Glance()
    cloud: Any = SimpleNamespace(image=glance)
    catalog.resources(cloud, {"images": [KERNEL, DISK], "flavors": []})
    assert glance.made == ["k", "d"]
    images = [
        image | {"sha256": changed.get(image["name"], image["sha256"])} for image in (KERNEL, DISK)
    ]
    catalog.resources(cloud, {"images": images, "flavors": []})
    assert glance.made[2:] == made_again
    assert glance.find_image("d").kernel_id == glance.find_image("k").id


class Keystone:
    """Projects, users and roles by name, and what was assigned."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.assigned: list[tuple[str, str, str]] = []
        self._known: dict[str, Any] = {}

    def roles(self) -> list[Any]:
        return [SimpleNamespace(name="admin")]

    def services(self) -> list[Any]:
        return []

    def find_project(self, name: str) -> Any:
        return self._known.get(name)

    find_user = find_project

    def create_project(self, name: str, **_options: str) -> Any:
        self.made.append(name)
        self._known[name] = SimpleNamespace(name=name, id=name)
        return self._known[name]

    create_user = create_role = create_project

    def assign_project_role_to_user(self, project: Any, user: Any, role: Any) -> None:
        self.assigned.append((user.name, role.name, project.name))


def test_users_of_hosts_have_their_one_role_in_their_project() -> None:
    host = {
        "name": "numa-ext-host-h1",
        "role": "numa_ext_host",
        "project": "hosts",
        "password": "x",
    }
    wanted = {"users": ["nova"], "password": "p", "services": {}, "users_of_one_role": [host]}
    keystone = Keystone()
    for _ in range(2):
        catalog.identities(cast("Any", SimpleNamespace(identity=keystone)), wanted)
        assert keystone.made.count("numa-ext-host-h1") == 1
    given = {(role, project) for user, role, project in keystone.assigned if "host" in user}
    assert given == {("numa_ext_host", "hosts")}


class Nova:
    """Flavors by name; each one made has an id of its own."""

    def __init__(self) -> None:
        self.flavors: dict[str, Any] = {}
        self.calls: list[str] = []

    def find_flavor(self, name: str, *, get_extra_specs: bool) -> Any:
        assert get_extra_specs
        return self.flavors.get(name)

    def create_flavor(self, name: str, **sizes: int) -> Any:
        self.calls.append(f"create {name}")
        self.flavors[name] = SimpleNamespace(name=name, extra_specs={}, **sizes)
        return self.flavors[name]

    def delete_flavor(self, flavor: Any) -> None:
        self.calls.append(f"delete {flavor.name}")
        del self.flavors[flavor.name]

    def create_flavor_extra_specs(self, flavor: Any, specs: dict[str, str]) -> None:
        self.calls.append(f"set {flavor.name}")
        flavor.extra_specs |= specs

    def delete_flavor_extra_specs_property(self, flavor: Any, key: str) -> None:
        self.calls.append(f"unset {flavor.name} {key}")
        del flavor.extra_specs[key]


def test_flavors_follow_their_file() -> None:
    lc = {"name": "lc", "vcpus": 2, "ram": 128, "disk": 1, "extra_specs": {"numa_ext:tier": "LC"}}
    nova = Nova()
    cloud: Any = SimpleNamespace(compute=nova)
    for _ in range(2):
        catalog.flavors(cloud, [lc])
        assert nova.calls == ["create lc", "set lc"]
    nova.flavors["lc"].extra_specs["other"] = "1"
    catalog.flavors(cloud, [lc])
    assert nova.calls[2:] == ["unset lc other"]
    catalog.flavors(cloud, [lc | {"ram": 256}])
    assert nova.calls[3:] == ["delete lc", "create lc", "set lc"]
    assert (nova.flavors["lc"].ram, nova.flavors["lc"].extra_specs) == (256, lc["extra_specs"])


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({"OS_CLOUD": "devstack-admin"}, {"cloud": "devstack-admin"}),
        (
            {"OS_AUTH_URL": "http://k", "OS_PASSWORD": "p"},
            {"auth_url": "http://k", "password": "p", "load_yaml_config": False},
        ),
    ],
    ids=["cloud", "lab"],
)
def test_a_cloud_is_reached_by_name_the_lab_by_its_password(
    environment: dict[str, str], asked: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(openstack, "connect", lambda **options: calls.append(options))
    catalog.connect(environment)
    (options,) = calls
    assert options.items() >= asked.items()
    assert options["compute_default_microversion"] == "2.100", "extra specs are checked"
    assert ("cloud" in options) == ("cloud" in asked)
