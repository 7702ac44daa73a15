# SPDX-License-Identifier: Apache-2.0
"""Nova's API as a job's user meets it: servers with tags, server groups, answers of nova 34, from a dictionary."""

import json
import uuid
from urllib.parse import parse_qs, urlsplit

from nova_numa_ext.orchestrator.cloud.servers import UserServers
from nova_numa_ext.orchestrator.cloud.trusts import TrustError
from tests.support.faults import answer

_PAGE = 3


class ComputeApi:
    """Servers and server groups; nova builds and deletes when :meth:`settle` is called.

    :ivar servers: by uuid, as nova shows them
    :ivar room: servers that find a host; the next ones end in ERROR
    :ivar refuse: when set, called with (method, path); a status that it returns is the answer
    :ivar hook: when set, called with ``before`` or ``after`` and the request; may raise, as a process that dies
    :ivar created: number of servers ever made
    """

    def __init__(self, room=100):
        self.servers = {}
        self.groups = {}
        self.room = room
        self.refuse = None
        self.hook = None
        self.created = 0

    def request(self, path, method, *, json=None, raise_exc, microversion):
        """Answer as nova does."""
        assert not raise_exc
        what = f"{method} {path}"
        if self.hook:
            self.hook("before", what)
        status = self.refuse(method, path) if self.refuse else None
        result = _told(status, {"refused": {"message": "as the test wants it"}})
        if status is None:
            result = self._answer(method, urlsplit(path), json)
        if self.hook:
            self.hook("after", what)
        return result

    def settle(self):
        """Let nova finish what it has begun."""
        gone = [each for each, shown in self.servers.items() if shown["status"] == "DELETED"]
        for each in gone:
            del self.servers[each]
        building = [each for each in self.servers.values() if each["status"] == "BUILD"]
        for shown in building:
            busy = sum(each["status"] == "ACTIVE" for each in self.servers.values())
            if busy < self.room:
                shown["status"] = "ACTIVE"
            else:
                shown["status"] = "ERROR"
                shown["fault"] = {"message": "No valid host was found. There are not enough hosts."}

    def there(self):
        """Servers that are not being deleted."""
        return {k: v for k, v in self.servers.items() if v["status"] != "DELETED"}

    def fail(self, server, message="libvirt does not like it"):
        """Let a server end in ERROR."""
        self.servers[server] |= {"status": "ERROR", "fault": {"message": message}}

    def _answer(self, method, url, body):
        kind, _, key = url.path.strip("/").partition("/")
        query = parse_qs(url.query)
        if (method, kind, key) == ("GET", "servers", "detail"):
            return _told(200, {"servers": self._page(query)})
        if (method, kind) == ("POST", "servers"):
            return _told(202, {"server": {"id": self._create(body["server"])}})
        if (method, kind) == ("DELETE", "servers"):
            if key not in self.servers:
                return _told(404, {"itemNotFound": {"message": "no such server"}})
            self.servers[key]["status"] = "DELETED"
            return _told(204)
        assert kind == "os-server-groups", (method, url)
        return self._groups(method, key, body)

    def _groups(self, method, key, body):
        if method == "GET":
            return _told(200, {"server_groups": list(self.groups.values())})
        if method == "DELETE":
            return _told(204 if self.groups.pop(key, None) else 404)
        group = {"id": str(uuid.uuid4()), **body["server_group"]}
        self.groups[group["id"]] = group
        return _told(200, {"server_group": group})

    def _create(self, asked):
        server = str(uuid.uuid4())
        self.created += 1
        self.servers[server] = {
            "id": server,
            "name": asked["name"],
            "tags": asked["tags"],
            "status": "BUILD",
            "created": f"2026-01-01T00:00:{self.created:04d}Z",
        }
        return server

    def _page(self, query):
        (tag,) = query["tags"]
        rows = [each for each in self.servers.values() if tag in each["tags"]]
        if "marker" in query:
            ids = [each["id"] for each in rows]
            rows = rows[ids.index(query["marker"][0]) + 1 :]
        return rows[:_PAGE]


class FakeTrusts:
    """Keystone's trusts: all are good until they are taken away or deleted.

    :ivar lost: trusts that give no rights any more
    :ivar deleted: trusts that were given back
    """

    def __init__(self, api):
        self.api = api
        self.lost = set()
        self.deleted = []

    def servers(self, trust):
        """Nova with the user's rights."""
        if trust in self.lost or trust in self.deleted:
            raise TrustError("the user is disabled")
        return UserServers(self.api)

    def delete(self, trust):
        """Give it back."""
        if trust not in self.deleted:
            self.deleted.append(trust)


def _told(status, body=None):
    if status is None:
        return None
    return answer(status, "" if body is None else json.dumps(body))
