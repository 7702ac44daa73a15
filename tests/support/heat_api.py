# SPDX-License-Identifier: Apache-2.0
"""Heat's API as the owner of one stack meets it: answers of Heat 27, a group that removes its oldest servers first."""

import json
from urllib.parse import parse_qs, urlsplit

from keystoneauth1 import exceptions as keystone_errors

from tests.support.faults import answer

PARAMETER = "size"


class HeatApi:
    """One stack with a group of servers in a server group; Heat works when :meth:`settle` is called.

    :ivar size: what the stack's parameter says
    :ivar status: of the stack
    :ivar works: how the next update ends: its status
    :ivar refuse: when set, called with (method, path); a status that it returns is the answer
    :ivar late: updates take effect when :meth:`settle` is called, and no answer comes
    :ivar lost: updates never arrive, and no answer comes
    :ivar hook: when set, called with ``before`` or ``after`` and the request; may raise, as a process that dies
    :ivar updates: sizes that it was asked for
    """

    def __init__(self, compute, group, size):
        self.compute, self.group = compute, group
        self.uuid, self.name = "5f7c0b0e-0000-4000-8000-00000000beef", "web"
        self.parameters = {PARAMETER: str(size), "flavor": "small", "key": "******"}
        self.status, self.reason, self.works = "CREATE_COMPLETE", "", "UPDATE_COMPLETE"
        self.made = [compute.make_server(group) for _ in range(size)]
        self.refuse = self.hook = None
        self.late = self.lost = self.hangs = False
        self.updates, self._asked, self._before = [], [], size

    @property
    def size(self):
        """What its parameter says."""
        return int(self.parameters[PARAMETER])

    def request(self, path, method, *, json=None, raise_exc):
        """Answer as Heat does."""
        assert not raise_exc
        what = f"{method} {path.partition('?')[0]}"
        if self.hook:
            self.hook("before", what)
        status = self.refuse(method, path) if self.refuse else None
        if status is not None:
            result = _told(status, {"error": {"message": "as the test has it"}})
        elif method == "PATCH" and (self.late or self.lost):
            self._asked += [] if self.lost else [json]
            raise keystone_errors.ConnectTimeout("timed out")
        else:
            result = self._answer(method, urlsplit(path), json)
        if self.hook:
            self.hook("after", what)
        return result

    def settle(self):
        """Let Heat finish what it has begun."""
        asked, self._asked = self._asked, []
        for body in asked:
            self._update(body)
        if not self.status.endswith("IN_PROGRESS") or self.hangs:
            return
        self.status = self.works
        if self.works == "ROLLBACK_COMPLETE":
            self.parameters[PARAMETER] = str(self._before)
        if self.works != "UPDATE_COMPLETE":
            self.reason = "Resource CREATE failed: No valid host was found"
            return
        while len(self.made) > self.size:
            self.compute.servers[self.made.pop(0)]["status"] = "DELETED"
        self.made += [
            self.compute.make_server(self.group) for _ in range(self.size - len(self.made))
        ]

    def _answer(self, method, url, body):
        query = parse_qs(url.query)
        own = f"/stacks/{self.name}/{self.uuid}"
        row = {"id": self.uuid, "stack_name": self.name, "stack_status": self.status}
        if url.path == "/stacks":
            asked = (query.get("name") or query.get("id"))[0]
            return _told(200, {"stacks": [row] if asked in {self.name, self.uuid} else []})
        if not url.path.startswith(own):
            return _told(404, {"error": {"message": "The Stack could not be found."}})
        if method == "PATCH":
            self._update(body)
            return _told(202)
        if url.path == own:
            shown = row | {"stack_status_reason": self.reason, "parameters": self.parameters}
            return _told(200, {"stack": shown})
        assert url.path == f"{own}/resources"
        assert query == {"type": ["OS::Nova::Server"], "nested_depth": ["5"]}
        return _told(200, {"resources": [{"physical_resource_id": one} for one in self.made]})

    def _update(self, body):
        assert body.keys() == {"parameters"}, "all else stays"
        assert body["parameters"].keys() == {PARAMETER}
        self._before, size = self.size, body["parameters"][PARAMETER]
        self.updates.append(size)
        self.parameters[PARAMETER] = str(size)
        self.status, self.reason = "UPDATE_IN_PROGRESS", "Stack UPDATE started"


def _told(status, body=None):
    return answer(status, json.dumps(body or {}))
