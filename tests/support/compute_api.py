# SPDX-License-Identifier: Apache-2.0
"""Nova's API as a job's user meets it: servers with tags, server groups, answers of nova 34, from a dictionary."""

import json
import threading
import uuid
from urllib.parse import parse_qs, urlsplit

from keystoneauth1 import exceptions as keystone_errors

from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.cloud.stacks import UserStacks
from nova_numa_ext.orchestrator.cloud.trusts import TrustError
from tests.support.faults import answer

_PAGE = 3
FLAVOR = {"original_name": "small", "vcpus": 4, "ram": 2048, "disk": 10, "extra_specs": {}}
_MADE = {("POST", "/servers"), ("POST", "/os-server-groups")}


class ComputeApi:
    """Servers and server groups; nova builds and deletes when :meth:`settle` is called. Any thread may ask.

    :ivar servers: by uuid, as nova shows them
    :ivar room: servers that find a host; the next ones end in ERROR
    :ivar words: nova's, on those
    :ivar refuse: when set, called with (method, path); a status that it returns is the answer
    :ivar hook: when set, called with ``before`` or ``after`` and the request; may raise, as a process that dies
    :ivar created: number of servers ever made
    :ivar host: where servers come to be from now on
    :ivar late: POSTs take effect when :meth:`settle` is called, and no answer comes
    :ivar down: servers of a cell that does not answer: no list has them
    :ivar hangs: servers that stay in BUILD: their compute host has died
    :ivar locked: servers that nova does not delete before they are unlocked
    :ivar flavors: by id, as nova shows them
    """

    def __init__(self, room=100):
        self.servers = {}
        self.groups = {}
        self.room = room
        self.words = "No valid host was found. There are not enough hosts."
        self.refuse = None
        self.hook = None
        self.created = 0
        self._lock = threading.RLock()
        self.host = "h1"
        self.late = False
        self.down = set()
        self.hangs = set()
        self.locked = set()
        self.flavors = {"flavor-1": FLAVOR}
        self._asked = []

    def request(self, path, method, *, json=None, raise_exc, microversion):
        """Answer as nova does."""
        assert not raise_exc
        what = f"{method} {path}"
        if self.hook:
            self.hook("before", what)
        status = self.refuse(method, path) if self.refuse else None
        result = _told(status, {"refused": {"message": "as the test wants it"}})
        if status is None and self.late and (method, path) in _MADE:
            self._asked.append((method, urlsplit(path), json))
            raise keystone_errors.ConnectTimeout("timed out")
        if status is None:
            with self._lock:
                result = self._answer(method, urlsplit(path), json)
        if self.hook:
            self.hook("after", what)
        return result

    def settle(self):
        """Let nova finish what it has begun."""
        with self._lock:
            self._settle()

    def _settle(self):
        gone = [each for each, shown in self.servers.items() if shown["status"] == "DELETED"]
        for each in gone:
            del self.servers[each]
        for asked in self._asked:
            self._answer(*asked)
        self._asked.clear()
        building = [
            each
            for each in self.servers.values()
            if each["status"] == "BUILD" and each["id"] not in self.hangs
        ]
        for shown in building:
            busy = sum(each["status"] == "ACTIVE" for each in self.servers.values())
            if busy < self.room:
                shown |= {"status": "ACTIVE", "host": self.host, "hostId": f"id-of-{self.host}"}
            else:
                shown["status"] = "ERROR"
                shown["fault"] = {"message": self.words}

    def host_of(self, server):
        """Where a server holds amounts, None when it is gone."""
        with self._lock:
            return self.servers.get(server, {}).get("host")

    def there(self):
        """Servers that are not being deleted."""
        with self._lock:
            return {k: v for k, v in self.servers.items() if v["status"] != "DELETED"}

    def fail(self, server, message="libvirt does not like it"):
        """Let a server end in ERROR."""
        self.servers[server] |= {"status": "ERROR", "fault": {"message": message}}

    def _answer(self, method, url, body):
        kind, _, key = url.path.strip("/").partition("/")
        key, _, action = key.partition("/")
        query = parse_qs(url.query)
        if kind == "servers":
            return self._server(method, key, action, query, body)
        if (method, kind) == ("GET", "flavors"):
            found = self.flavors.get(key)
            missing = {"itemNotFound": {"message": "no such flavor"}}
            return _told(200, {"flavor": found}) if found else _told(404, missing)
        assert kind == "os-server-groups", (method, url)
        return self._groups(method, key, body)

    def _server(self, method, key, action, query, body):
        if key == "detail":
            return _told(200, {"servers": self._page(query)})
        if not key:
            asked = body["server"]
            assert asked.get("min_count", 1) == asked.get("max_count", 1), "all, or none"
            group = body.get("os:scheduler_hints", {}).get("group", "")
            made = [self._create({**asked, "name": name}, group) for name in _names(asked)]
            return _told(202, {"server": {"id": made[0]}})
        if key not in self.servers:
            return _told(404, {"itemNotFound": {"message": "no such server"}})
        if method == "GET":
            return _told(200, {"server": self._shown(key)})
        if method == "DELETE" and key in self.locked:
            return _told(409, {"conflictingRequest": {"message": "is locked"}})
        if method == "DELETE":
            self.servers[key]["status"] = "DELETED"
        else:
            assert (action, body) == ("action", {"unlock": None})
            self.locked.discard(key)
        return _told(204)

    def _groups(self, method, key, body):
        if method == "GET" and key:
            found = self.groups.get(key)
            missing = {"itemNotFound": {"message": "no such group"}}
            return (
                _told(200, {"server_group": self._group(found)}) if found else _told(404, missing)
            )
        if method == "GET":
            return _told(200, {"server_groups": list(self.groups.values())})
        if method == "DELETE":
            return _told(204 if self.groups.pop(key, None) else 404)
        group = {"id": str(uuid.uuid4()), **body["server_group"]}
        self.groups[group["id"]] = group
        return _told(200, {"server_group": group})

    def _group(self, group):
        """As nova shows one: with its servers that are not deleted."""
        there = [each["id"] for each in self.servers.values() if each["group"] == group["id"]]
        members = [*group.get("members", ()), *there]
        return group | {"members": [each for each in members if self._is_there(each)]}

    def _is_there(self, server):
        return self.servers.get(server, {}).get("status", "DELETED") != "DELETED"

    def make_group(self, name, members=()):
        """Make a server group as a user does; return its uuid."""
        body = {"server_group": {"name": name, "members": list(members)}}
        return self._groups("POST", "", body).json()["server_group"]["id"]

    def make_server(self, group=""):
        """Make a server as a user does, that is active; return its uuid."""
        asked = {"name": "of-a-user", "tags": [], "imageRef": "image-1"}
        server = self._create(asked, group)
        self.servers[server] |= {"status": "ACTIVE", "host": self.host, "hostId": "id-of-h1"}
        return server

    def _create(self, asked, group=""):
        server = str(uuid.uuid4())
        self.created += 1
        self.servers[server] = {
            "id": server,
            "name": asked["name"],
            "tags": asked["tags"],
            "group": group,
            "status": "BUILD",
            "created": f"2026-01-01T00:00:{self.created:04d}Z",
            "hostId": "",
            "tenant_id": "project-1",
            "user_id": "user-1",
            "image": {"id": asked["imageRef"]},
            "flavor": FLAVOR,
        }
        return server

    def _shown(self, server):
        if server in self.down:
            return {"id": server, "status": "UNKNOWN"}
        return self.servers[server]

    def _page(self, query):
        wanted = set(query.get("tags", ()))
        rows = [self.servers[uuid] for uuid in self.servers if uuid not in self.down]
        rows = [each for each in rows if wanted <= set(each["tags"])]
        if not query:
            rows += [self._shown(uuid) for uuid in self.down]
        if "marker" in query:
            ids = [each["id"] for each in rows]
            rows = rows[ids.index(query["marker"][0]) + 1 :]
        return rows[:_PAGE] if query else rows


def _names(asked):
    """Nova numbers the servers of one request, from 1."""
    count = asked.get("max_count", 1)
    return [f"{asked['name']}-{n + 1}" for n in range(count)] if count > 1 else [asked["name"]]


class FakeTrusts:
    """Keystone's trusts: all are good until they are taken away or deleted.

    :ivar lost: trusts that give no rights any more
    :ivar all: those that Keystone lists, :class:`GivenTrust`, but for those that were given back
    :ivar deleted: trusts that were given back
    :ivar asked: how often one was to be given back
    :ivar hook: as of the compute API
    :ivar heat: its API, where there is one
    """

    def __init__(self, api):
        self.api = api
        self.lost = set()
        self.all = []
        self.deleted = []
        self.asked = 0
        self.hook = None
        self.heat = None

    def servers(self, trust):
        """Nova with the user's rights."""
        self._tell("before", f"act by {trust}")
        self._refuse(trust)
        return UserServers(self.api)

    def stacks(self, trust):
        """Heat with the user's rights."""
        self._tell("before", f"act by {trust}")
        self._refuse(trust)
        return UserStacks(self.heat)

    def check(self, trust):
        """Whether it gives rights."""
        self._tell("before", f"check {trust}")
        self._refuse(trust)

    def _refuse(self, trust):
        if trust in self.lost or trust in self.deleted:
            raise TrustError("the user is disabled")

    def given(self):
        """What Keystone lists."""
        return [each for each in self.all if each.trust not in self.deleted]

    def delete(self, trust):
        """Give it back."""
        self.asked += 1
        self._tell("before", f"delete {trust}")
        if trust in self.lost:
            raise TrustError("the user is disabled")
        if trust not in self.deleted:
            self.deleted.append(trust)
        self._tell("after", f"delete {trust}")

    def _tell(self, *what):
        if self.hook:
            self.hook(*what)


class FakeHosts:
    """Where Placement has the amounts of servers."""

    def __init__(self, api):
        self.api = api

    def host(self, server, _host_id=""):
        """Return a host's root provider, None for a server that has none."""
        return self.api.host_of(server)

    def names(self, server):
        """Return the names of a server's hosts; here providers are called as hosts are."""
        host = self.host(server)
        return frozenset({host} if host else ())

    def fabrics(self, _host):
        """Return the fabrics of a host: none, here none is a client."""
        return frozenset()

    def nic(self, _host):
        """Return the NIC of a host to pools: none, here none is a client."""

    def owner(self, _server):
        """Return project and user: none, here no server asks for a remote GPU."""


def _told(status, body=None):
    if status is None:
        return None
    return answer(status, "" if body is None else json.dumps(body))
