# SPDX-License-Identifier: Apache-2.0
"""The cloud as a user's token shows it: which requests are sent, and what is made of the answers."""

from json import dumps
from types import SimpleNamespace

import pytest
from keystoneauth1 import session
from keystoneauth1.access import AccessInfoV3
from keystoneauth1.exceptions import ConnectFailure, EndpointNotFound

from nova_numa_ext.orchestrator.cloud.asking import SilentError
from nova_numa_ext.orchestrator.cloud.stacks import Stack
from nova_numa_ext.orchestrator.cloud.user import (
    ProjectQuota,
    TokenCloud,
    UserClouds,
    UserFlavor,
    UserGroup,
    UserImage,
    UserNetwork,
)
from placement_traits.errors import CapabilityMissingError
from tests.support.faults import answer

UUID = "11111111-2222-3333-4444-555555555555"
BIG = {
    "id": "7",
    "name": "big one/é",
    "vcpus": 4,
    "ram": 1024,
    "disk": 10,
    "OS-FLV-EXT-DATA:ephemeral": 2,
    "swap": 1025,
    "extra_specs": {"hw:cpu_policy": "dedicated"},
}
SMALL = {**BIG, "id": "8", "name": "small", "swap": 0}


class Service:
    """Answers by path; what it does not know is a 404.

    :ivar asked: requests in order
    """

    def __init__(self):
        self.answers = {}
        self.asked = []

    def request(self, path, method, *, json=None, raise_exc):
        assert not raise_exc
        self.asked.append((method, path) if json is None else (method, path, json))
        found = self.answers.get(path, (404, {}))
        if isinstance(found, Exception):
            raise found
        status, body = found
        return answer(status, body if isinstance(body, str) else dumps(body))


def token(**more):
    """What Keystone says of a token."""
    body = {
        "user": {"id": "user-1", "name": "alice", "domain": {"id": "d", "name": "d"}},
        "project": {"id": "project-1", "name": "work", "domain": {"id": "d", "name": "d"}},
        "roles": [{"id": "1", "name": "Member"}, {"id": "2", "name": "reader"}],
        **more,
    }
    return AccessInfoV3(body={"token": body}, auth_token="t")


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def cloud(service):
    return cloud_of(service)


def cloud_of(service, **more):
    adapters = dict.fromkeys(("compute", "image", "network", "orchestration", "identity"), service)
    return TokenCloud(token(**more), **adapters, trustee=lambda: "jobs-1", roles=("member",))


def test_a_flavor_is_found_by_its_id_and_counts_all_its_disks(service, cloud):
    service.answers["/flavors/7"] = (200, {"flavor": BIG})
    found = UserFlavor("7", 4, 1024, 14, 10, {"hw:cpu_policy": "dedicated"})
    assert [cloud.flavor("7"), cloud.flavor("7")] == [found, found]
    assert service.asked == [("GET", "/flavors/7")], "the second part asks nobody again"


def test_a_flavor_is_found_by_its_name_on_whatever_page(service, cloud):
    service.answers |= {
        "/flavors/detail": (200, {"flavors": [SMALL]}),
        "/flavors/detail?marker=8": (200, {"flavors": [BIG]}),
        "/flavors/detail?marker=7": (200, {"flavors": []}),
    }
    assert cloud.flavor("big one/é").uuid == "7"
    assert service.asked[0] == ("GET", "/flavors/big%20one%2F%C3%A9")
    assert cloud.flavor("none") is None


def test_a_stack_is_found_by_its_id_or_name(service, cloud):
    row = {"id": UUID, "stack_name": "web é"}
    shown = row | {"stack_status": "CREATE_COMPLETE", "parameters": {"size": 3}}
    service.answers |= {
        f"/stacks?id={UUID}": (200, {"stacks": [row]}),
        "/stacks?name=web+%C3%A9": (200, {"stacks": [row]}),
        "/stacks?name=none": (200, {"stacks": []}),
        f"/stacks/web%20%C3%A9/{UUID}": (200, {"stack": shown}),
    }
    found = Stack(UUID, "web é", "CREATE_COMPLETE", "", {"size": "3"})
    assert cloud.stack(UUID) == cloud.stack("web é") == found
    assert found.size("size") == 3
    assert cloud.stack("none") is None


def test_a_cloud_without_heat_says_so():
    def absent(*_path, **_options):
        raise EndpointNotFound("public endpoint for orchestration service not found")

    cloud = cloud_of(SimpleNamespace(request=absent))
    with pytest.raises(CapabilityMissingError, match="The cloud has no Heat: its catalogue"):
        cloud.stack("web")


def test_whose_a_server_is_nova_says_with_the_users_token(service, cloud):
    service.answers[f"/servers/{UUID}"] = (200, {"server": {"tenant_id": "project-1"}})
    assert cloud.project_of(UUID) == "project-1"
    assert cloud.project_of("../flavors/7") is None, "what nova does not show is of none"
    service.answers[f"/servers/{UUID}"] = (200, {"server": {}})
    with pytest.raises(SilentError):
        cloud.project_of(UUID)


def test_a_group_of_another_project_is_not_there(service, cloud):
    """Nova answers 403 where one is, and 404 where none is."""
    path = f"/os-server-groups/{UUID}"
    body = {"server_group": {"project_id": "project-1", "members": ["s-1", "s-2"]}}
    service.answers[path] = (200, body)
    assert cloud.user_group(UUID) == UserGroup("project-1", ("s-1", "s-2"))
    for status in (403, 404):
        service.answers[path] = (status, {})
        assert cloud.user_group(UUID) is None


def test_names_of_servers_are_listed_page_by_page(service, cloud):
    def page(*rows):
        return (200, {"servers": [{"id": uuid, "name": name} for uuid, name in rows]})

    of_another = "/servers?all_tenants=1&project_id=project-2&limit=1000"
    service.answers |= {
        "/servers?limit=1000": page(("s-1", "a"), ("s-2", "b")),
        "/servers?limit=1000&marker=s-2": page(("s-3", "b")),
        "/servers?limit=1000&marker=s-3": page(),
        of_another: (403, {}),
    }
    assert cloud.servers_of("project-1") == {"s-1": "a", "s-2": "b", "s-3": "b"}
    with pytest.raises(CapabilityMissingError, match="does not let this token"):
        cloud.servers_of("project-2")


@pytest.mark.parametrize("name", [".", "..", "detail"])
def test_a_flavor_that_is_named_like_a_path_asks_for_no_other_one(service, cloud, name):
    service.answers["/flavors/detail"] = (200, {"flavors": [{**BIG, "name": name}]})
    assert cloud.flavor(name).uuid == "7"
    assert service.asked == [("GET", "/flavors/detail")]


def test_extra_specs_that_nova_hides_are_named(service, cloud):
    shown = {key: value for key, value in BIG.items() if key != "extra_specs"}
    service.answers["/flavors/7"] = (200, {"flavor": shown})
    with pytest.raises(CapabilityMissingError, match="os-flavor-extra-specs:index"):
        cloud.flavor("7")


def test_images_are_found_by_id_and_by_name(service, cloud):
    shown = {"id": UUID, "status": "active", "min_disk": 5, "min_ram": 512}
    service.answers[f"/v2/images/{UUID}"] = (200, shown)
    assert cloud.images(UUID) == (UserImage(UUID, "active", 5, 512),)
    assert cloud.images(UUID.replace("1", "2")) == ()
    service.answers["/v2/images?name=in%3A%22in%3Aa%2Cb%22"] = (200, {"images": [shown, shown]})
    assert len(cloud.images("in:a,b")) == 2
    service.answers["/v2/images?name=a%22%5C"] = (200, {"images": [shown]})
    assert len(cloud.images('a"\\')) == 1
    service.answers["/v2/images?name=in%3A%22"] = (400, "Invalid filter value")
    assert cloud.images('in:"') == ()


def test_networks_are_found_by_id_and_by_name(service, cloud):
    shown = {"networks": [{"id": UUID, "name": "a&b"}]}
    fields = "fields=id&fields=name"
    service.answers |= {
        f"/v2.0/networks?id={UUID}&{fields}": (200, shown),
        f"/v2.0/networks?name=a%26b&{fields}": (200, shown),
        f"/v2.0/networks?project_id=project-1&shared=False&{fields}": (200, shown),
        f"/v2.0/networks?shared=True&{fields}": (200, {"networks": []}),
    }
    expected = (UserNetwork(UUID, "a&b"),)
    assert [cloud.networks(UUID), cloud.networks("a&b")] == [expected, expected]
    assert cloud.available_networks() == expected


def test_a_server_group_is_seen_with_its_project(service, cloud):
    path = f"/os-server-groups/{UUID}"
    service.answers[path] = (200, {"server_group": {"id": UUID, "project_id": "project-2"}})
    assert cloud.server_group(UUID) == "project-2"
    assert cloud.server_group("../servers") is None
    assert service.asked == [("GET", path), ("GET", "/os-server-groups/..%2Fservers")]


def test_limits_are_those_of_the_project(service, cloud):
    shown = {"maxTotalInstances": 10, "maxTotalCores": -1, "maxServerGroupMembers": 0}
    service.answers["/limits"] = (200, {"limits": {"absolute": shown}})
    assert cloud.quota() == ProjectQuota(instances=10, members=0)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ConnectFailure("no route to 10.0.0.1"), "no route to 10.0.0.1"),
        ((500, "oops"), "500 to GET /limits: oops"),
        ((404, ""), "nothing behind GET /limits"),
        ((200, "<html>"), "200 to GET /limits: <html>"),
        ((200, []), "200 to GET /limits: []"),
        ((200, {"limits": {}}), "200 to GET /limits"),
        ((200, {"limits": {"absolute": {"maxTotalCores": "x"}}}), "200 to GET /limits"),
    ],
)
def test_what_is_no_answer_of_novas_is_silence(service, cloud, found, words):
    service.answers["/limits"] = found
    with pytest.raises(SilentError, match="Nova does not answer") as raised:
        cloud.quota()
    assert words in str(raised.value)


def test_what_the_token_may_not_ask_is_a_sentence(service, cloud):
    service.answers["/limits"] = (403, "Policy doesn't allow it")
    with pytest.raises(CapabilityMissingError, match="Nova does not let this token GET /limits: P"):
        cloud.quota()


def test_a_trust_passes_on_no_more_than_is_needed(service, cloud):
    path = "/OS-TRUST/trusts"
    service.answers[path] = (201, {"trust": {"id": "trust-1"}})
    assert cloud.trust(1800000000.5) == "trust-1"
    ((method, asked, body),) = service.asked
    assert (method, asked) == ("POST", path)
    assert body["trust"] == {
        "trustor_user_id": "user-1",
        "trustee_user_id": "jobs-1",
        "project_id": "project-1",
        "impersonation": True,
        "allow_redelegation": False,
        "expires_at": "2027-01-15T08:00:00.500000Z",
        "roles": [{"name": "member"}],
    }


def test_a_trust_is_taken_back_once(service, cloud):
    service.answers["/OS-TRUST/trusts/trust-1"] = (204, "")
    cloud.delete_trust("trust-1")
    cloud.delete_trust("trust-2")
    service.answers["/OS-TRUST/trusts/trust-3"] = (503, "")
    with pytest.raises(SilentError):
        cloud.delete_trust("trust-3")


@pytest.mark.parametrize("status", [403, 404])
def test_a_user_that_keystone_makes_no_trust_for_learns_why(service, cloud, status):
    service.answers["/OS-TRUST/trusts"] = (status, "no such role")
    with pytest.raises(CapabilityMissingError, match="roles that come from a federated group"):
        cloud.trust(2e9)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"application_credential": {"id": "a"}}, "a token of an application credential cannot"),
        ({"OS-TRUST:trust": {"id": "t"}}, "a token of a trust cannot give one"),
        ({"OS-OAUTH1": {"access_token_id": "o"}}, "a token of an OAuth consumer cannot"),
        ({"roles": [{"id": "2", "name": "reader"}]}, "with role member, which this token does not"),
        ({"roles": []}, "in project project-1; it has none"),
    ],
)
def test_a_token_that_can_give_no_trust_is_known_before_it_is_tried(service, more, sentence):
    cloud = cloud_of(service, **more)
    for ask in (cloud.check_trust, lambda: cloud.trust(2e9)):
        with pytest.raises(CapabilityMissingError, match=sentence):
            ask()
    assert service.asked == []


def test_the_service_asks_who_it_is_once():
    asked = []

    def trustee():
        asked.append(1)
        return "jobs-1"

    clouds = UserClouds(session.Session(), trustee, ("member",), interface="internal")

    class Auth:
        """What keystonemiddleware leaves."""

        user = token()

    made = [clouds.of({"keystone.token_auth": Auth()}) for _ in range(2)]
    assert asked == [], "no request to Keystone before the first trust"
    assert [each._trustee() for each in made] == ["jobs-1", "jobs-1"]
    assert asked == [1]
