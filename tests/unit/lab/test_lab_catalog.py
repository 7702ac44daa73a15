# SPDX-License-Identifier: Apache-2.0
"""What the lab makes in Glance follows its files."""

from types import SimpleNamespace
from typing import Any, cast

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
    wanted = {"users": ["nova"], "password": "p", "services": {}, "host_users": [host]}
    keystone = Keystone()
    for _ in range(2):
        catalog.identities(cast("Any", SimpleNamespace(identity=keystone)), wanted)
        assert keystone.made.count("numa-ext-host-h1") == 1
    given = {(role, project) for user, role, project in keystone.assigned if "host" in user}
    assert given == {("numa_ext_host", "hosts")}
