# SPDX-License-Identifier: Apache-2.0
"""Makes Keystone's catalogue, images and flavors be as desired, in one process: the CLI takes a second per call.

Runs with the virtual environment's Python: ``catalog.py identities|resources|flavors``, the desired state as JSON on
standard input. The lab gives ``OS_AUTH_URL`` and ``OS_PASSWORD`` of its administrator in the environment, the DevStack
plug-in ``OS_CLOUD``, a name of clouds.yaml. Idempotent.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openstack
from openstack.connection import Connection

_CONTENTS = "numa_lab_sha256"
# Nova checks extra specs from 2.86 on, and a server tells its fault and its host.
_MICROVERSION = "2.100"


def connect(environment: Mapping[str, str]) -> Connection:
    """As the administrator: of the cloud that is named, or of the lab, for which no clouds.yaml of the user is read."""
    cloud = environment.get("OS_CLOUD")
    if cloud:
        return openstack.connect(cloud=cloud, compute_default_microversion=_MICROVERSION)
    return openstack.connect(
        load_yaml_config=False,
        load_envvars=False,
        auth_url=environment["OS_AUTH_URL"],
        username="admin",
        password=environment["OS_PASSWORD"],
        project_name="admin",
        user_domain_id="default",
        project_domain_id="default",
        region_name="RegionOne",
        compute_default_microversion=_MICROVERSION,
    )


def identities(cloud: Connection, desired: Mapping[str, Any]) -> None:
    """Projects, users, roles, services, endpoints."""
    identity = cloud.identity
    project = identity.find_project("service") or identity.create_project(
        name="service", domain_id="default"
    )
    roles = {role.name: role for role in identity.roles()}
    if "service" not in roles:
        roles["service"] = identity.create_role(name="service")
    for name in desired["users"]:
        user = identity.find_user(name)
        if user is None:
            user = identity.create_user(
                name=name,
                password=desired["password"],
                domain_id="default",
                default_project_id=project.id,
            )
        for role in ("admin", "service"):
            identity.assign_project_role_to_user(project, user, roles[role])
    for user_of_one_role in desired["users_of_one_role"]:
        _user_of_one_role(cloud, roles, user_of_one_role)
    known = {service.name: service for service in identity.services()}
    for name, (kind, url) in desired["services"].items():
        service = known.get(name) or identity.create_service(name=name, type=kind)
        _endpoints(cloud, service.id, url)


def _user_of_one_role(cloud: Connection, roles: dict[str, Any], desired: Mapping[str, str]) -> None:
    """A user with one role in one project, such as that of one compute host."""
    identity = cloud.identity
    project = identity.find_project(desired["project"]) or identity.create_project(
        name=desired["project"], domain_id="default"
    )
    if desired["role"] not in roles:
        roles[desired["role"]] = identity.create_role(name=desired["role"])
    user = identity.find_user(desired["name"]) or identity.create_user(
        name=desired["name"],
        password=desired["password"],
        domain_id="default",
        default_project_id=project.id,
    )
    identity.assign_project_role_to_user(project, user, roles[desired["role"]])


def resources(cloud: Connection, desired: Mapping[str, Any]) -> None:
    """Images from files, flavors with exactly the extra specs desired."""
    for image in desired["images"]:
        _image(cloud, image)
    flavors(cloud, desired["flavors"])


def flavors(cloud: Connection, desired: Sequence[Mapping[str, Any]]) -> None:
    """Flavors with exactly the sizes and extra specs desired."""
    for flavor in desired:
        _flavor(cloud, flavor)


def _endpoints(cloud: Connection, service_id: str, url: str) -> None:
    known = {e.interface: e for e in cloud.identity.endpoints(service_id=service_id)}
    for interface in ("public", "internal"):
        endpoint = known.get(interface)
        if endpoint is None:
            cloud.identity.create_endpoint(
                service_id=service_id, interface=interface, url=url, region_id="RegionOne"
            )
        elif endpoint.url != url:
            cloud.identity.update_endpoint(endpoint, url=url)


def _image(cloud: Connection, desired: Mapping[str, Any]) -> None:
    """A public image; one made from a file with other contents, or for another kernel, is made again."""
    image = cloud.image.find_image(desired["name"])
    kernel = cloud.image.find_image(desired["kernel"]).id if desired["kernel"] else None
    if image is not None and (image.properties.get(_CONTENTS), image.kernel_id) != (
        desired["sha256"],
        kernel,
    ):
        cloud.image.delete_image(image)
        image = None
    if image is None:
        properties = {_CONTENTS: desired["sha256"]}
        if kernel:
            properties["kernel_id"] = kernel
        kind = desired["kind"]
        cloud.image.create_image(
            name=desired["name"],
            filename=desired["path"],
            disk_format=kind,
            container_format="bare" if kind == "raw" else kind,
            visibility="public",
            **properties,
        )


def _flavor(cloud: Connection, desired: Mapping[str, Any]) -> None:
    """Nova cannot change a flavor's sizes: one with other sizes is made again."""
    compute = cloud.compute
    sizes = {key: desired[key] for key in ("vcpus", "ram", "disk")}
    flavor = compute.find_flavor(desired["name"], get_extra_specs=True)
    if flavor is not None and {key: getattr(flavor, key) for key in sizes} != sizes:
        compute.delete_flavor(flavor)
        flavor = None
    if flavor is None:
        flavor = compute.create_flavor(name=desired["name"], **sizes)
    known = dict(flavor.extra_specs or {})
    for key in known.keys() - desired["extra_specs"].keys():
        compute.delete_flavor_extra_specs_property(flavor, key)
    if desired["extra_specs"].items() - known.items():
        compute.create_flavor_extra_specs(flavor, desired["extra_specs"])


if __name__ == "__main__":
    commands: dict[str, Callable[[Connection, Any], None]] = {
        "identities": identities,
        "resources": resources,
        "flavors": flavors,
    }
    commands[sys.argv[1]](connect(os.environ), json.load(sys.stdin))
