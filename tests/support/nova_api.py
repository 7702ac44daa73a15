# SPDX-License-Identifier: Apache-2.0
"""Nova's API about servers and flavors, as far as our commands ask it: answers of nova 34, from a dictionary."""

import functools
import re
from urllib.parse import parse_qs, urlsplit

from tests.support.faults import answer

_PAGE = 2


def shown(server, host, *, cells=None, image=True, **changes):
    """What nova shows of a server.

    :param server: an :class:`emulation.servers.Server`
    :param cells: (host node, host CPUs of its vCPUs) of each NUMA cell; default: of the server; None: floating
    :param image: it boots from an image
    :param changes: members that differ
    """
    if cells is None:
        cells = [(server.node, server.cpus)] if server.cpus else []
    flavor = {"vcpus": server.vcpus, "ram": server.memory_mb, "disk": 0, "ephemeral": 0, "swap": 0}
    first = 0
    nodes = []
    for node, cpus in cells:
        vcpus = range(first, first + len(cpus))
        first += len(cpus)
        pins = dict(zip(map(str, vcpus), cpus, strict=True))
        nodes.append({"host_node": node, "cpu_pinning": pins, "vcpu_set": list(vcpus)})
    return {
        "id": server.uuid,
        "name": server.title,
        "status": "ACTIVE",
        "tenant_id": "project",
        "user_id": "user",
        "OS-EXT-STS:task_state": None,
        "OS-EXT-SRV-ATTR:hypervisor_hostname": host,
        "flavor": {**flavor, "extra_specs": server.specs},
        "image": {"id": "i", "properties": {}} if image else "",
        "nodes": nodes,
        **changes,
    }


class NovaApi:
    """Servers and migrations by id; a test changes them as nova would.

    :ivar groups: server groups, each with its members' uuids
    :ivar hosts: compute nodes
    :ivar asked: paths that were asked for
    :ivar fault: when set, called with each path; what it returns is the answer
    """

    def __init__(self):
        self.servers = {}
        self.migrations = []
        self.flavors = []
        self.groups = {}
        self.hosts = ["h1", "h2"]
        self.asked = []
        self.fault = None

    def add(self, server, host="h1", **options):
        """Nova has a server on a host."""
        self.servers[server.uuid] = shown(server, host, **options)

    def request(self, url, method, *, microversion, raise_exc):
        """Answer a GET."""
        assert (method, microversion, raise_exc) == ("GET", "2.98", False)
        self.asked.append(url)
        faulty = self.fault and self.fault(url)
        if faulty is not None and faulty is not False:
            return faulty
        path, query = urlsplit(url).path, parse_qs(urlsplit(url).query)
        body = (
            self._hypervisors if path == "/os-hypervisors" else functools.partial(self._body, path)
        )
        found = body({key: values[0] for key, values in query.items()})
        reply = answer(404 if found is None else 200)
        reply.json = lambda: found
        return reply

    def _body(self, path, query):
        if path == "/servers/detail":
            assert query["all_tenants"] == "1"
            return {"servers": self._page([*self.servers.values()], "id", query)}
        if path == "/flavors/detail":
            assert query["is_public"] == "None", "private ones, too"
            return {"flavors": self._page(self.flavors, "id", query)}
        if path == "/os-migrations":
            return {"migrations": self._migrations(query)}
        if path.startswith("/os-server-groups/"):
            members = self.groups.get(path.rpartition("/")[2])
            return None if members is None else {"server_group": {"members": members}}
        return self._server(path)

    def _hypervisors(self, query):
        listed = [{"id": f"id of {host}", "hypervisor_hostname": host} for host in self.hosts]
        return {"hypervisors": self._page(listed, "id", query)}

    def _migrations(self, query):
        asked = query.get("instance_uuid")
        found = [m for m in self.migrations if asked in (None, m["instance_uuid"])]
        return found if asked else self._page(found, "uuid", query)

    def _server(self, path):
        _, uuid, topology = re.fullmatch(r"(/servers/)([^/]+)(/topology)?", path).groups()
        server = self.servers.get(uuid)
        if server is None:
            return None
        return {"nodes": server["nodes"], "pagesize_kb": None} if topology else {"server": server}

    @staticmethod
    def _page(found, key, query):
        """Few at a time, whatever the limit: nova has one, too."""
        ids = [each[key] for each in found]
        first = ids.index(query["marker"]) + 1 if "marker" in query else 0
        return found[first : first + _PAGE]
