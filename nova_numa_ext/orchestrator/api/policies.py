# SPDX-License-Identifier: Apache-2.0
"""Who may do what: the rules that ``policy.yaml`` overrides."""

from collections.abc import Sequence
from typing import Any, Final

from oslo_policy import policy

_READER: Final = "role:reader and project_id:%(project_id)s"
_MEMBER: Final = "role:member and project_id:%(project_id)s"
_EVERYWHERE: Final = "role:admin or role:service"

CREATE: Final = "numa_ext:jobs:create"
PRIORITY: Final = "numa_ext:jobs:create:priority"
LIST: Final = "numa_ext:jobs:list"
LIST_ALL: Final = "numa_ext:jobs:list:all_projects"
SHOW: Final = "numa_ext:jobs:show"
INTERNALS: Final = "numa_ext:jobs:show:internals"
LIMITS: Final = "numa_ext:limits:show"
CANCEL: Final = "numa_ext:jobs:cancel"
HOLD: Final = "numa_ext:jobs:hold"
RELEASE: Final = "numa_ext:jobs:release"
LEASE_CREATE: Final = "numa_ext:leases:create"
LEASE_PRIORITY: Final = "numa_ext:leases:create:priority"
LEASE_LIST: Final = "numa_ext:leases:list"
LEASE_LIST_ALL: Final = "numa_ext:leases:list:all_projects"
LEASE_SHOW: Final = "numa_ext:leases:show"
LEASE_INTERNALS: Final = "numa_ext:leases:show:internals"
LEASE_ATTACH: Final = "numa_ext:leases:attach"
LEASE_RELEASE: Final = "numa_ext:leases:release"
LEASE_MOVE: Final = "numa_ext:leases:move"
LEASE_REQUEUE: Final = "numa_ext:leases:requeue"
HOST_LEASES: Final = "numa_ext:hosts:leases:list"
HOST_REPORT: Final = "numa_ext:hosts:leases:report"
HOST_OFF: Final = "numa_ext:hosts:off"
SCALING_SET: Final = "numa_ext:scaling:set"
SCALING_DELETE: Final = "numa_ext:scaling:delete"
SCALING_LIST: Final = "numa_ext:scaling:list"
SCALING_LIST_ALL: Final = "numa_ext:scaling:list:all_projects"
SCALING_SHOW: Final = "numa_ext:scaling:show"
SCALING_PAUSE: Final = "numa_ext:scaling:pause"
TOPOLOGY: Final = "numa_ext:groups:topology"

# A name is of one user within its domain only, and any domain may have one that is called like a host's.
_OWN_HOST: Final = (
    "role:numa_ext_host and user_name:numa-ext-host-%(host)s and project_name:numa-ext-hosts"
    " and user_domain_id:default and project_domain_id:default"
)


def _rule(name: str, check: str, what: str, *operations: tuple[str, str]) -> Any:
    return policy.DocumentedRuleDefault(
        name,
        check,
        what,
        [{"method": method, "path": path} for method, path in operations],
        scope_types=["project"],
    )


RULES: Final = (
    _rule(CREATE, _MEMBER, "Submit a job.", ("POST", "/v1/jobs")),
    _rule(PRIORITY, "role:admin", "Submit a job with a priority above 0.", ("POST", "/v1/jobs")),
    _rule(LIST, f"({_READER}) or {_EVERYWHERE}", "List jobs of the project.", ("GET", "/v1/jobs")),
    _rule(
        LIST_ALL, _EVERYWHERE, "List jobs of all projects.", ("GET", "/v1/jobs?all_projects=true")
    ),
    _rule(
        SHOW,
        f"({_READER}) or {_EVERYWHERE}",
        "Show a job and its events.",
        ("GET", "/v1/jobs/{job}"),
        ("GET", "/v1/jobs/{job}/events"),
    ),
    _rule(
        INTERNALS,
        _EVERYWHERE,
        "See in the reasons and events of a job what nova hides from its users, too: names of hosts and engines, jobs "
        "of other projects, what other services have said to the job service.",
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/{job}"),
        ("GET", "/v1/jobs/{job}/events"),
    ),
    _rule(
        LIMITS,
        f"({_READER}) or {_EVERYWHERE}",
        "Show what the project's jobs and leases use of its limits.",
        ("GET", "/v1/limits"),
    ),
    _rule(
        CANCEL,
        f"({_MEMBER}) or role:admin",
        "Cancel a job.",
        ("POST", "/v1/jobs/{job}/cancel"),
    ),
    _rule(HOLD, f"({_MEMBER}) or role:admin", "Hold a job.", ("POST", "/v1/jobs/{job}/hold")),
    _rule(
        RELEASE,
        f"({_MEMBER}) or role:admin",
        "Release a held job.",
        ("POST", "/v1/jobs/{job}/release"),
    ),
    _rule(LEASE_CREATE, "role:admin", "Ask for a lease of a remote GPU.", ("POST", "/v1/leases")),
    _rule(
        LEASE_PRIORITY,
        "role:admin",
        "Ask for a lease with a priority above 0.",
        ("POST", "/v1/leases"),
    ),
    _rule(
        LEASE_LIST,
        f"({_READER}) or {_EVERYWHERE}",
        "List leases of the project.",
        ("GET", "/v1/leases"),
    ),
    _rule(
        LEASE_LIST_ALL,
        _EVERYWHERE,
        "List leases of all projects.",
        ("GET", "/v1/leases?all_projects=true"),
    ),
    _rule(
        LEASE_SHOW,
        f"({_READER}) or {_EVERYWHERE}",
        "Show a lease.",
        ("GET", "/v1/leases/{lease}"),
    ),
    _rule(
        LEASE_INTERNALS,
        _EVERYWHERE,
        "See which host a lease is asked of, which lends the GPU, which GPU it is, and who else released it.",
        ("GET", "/v1/leases"),
        ("GET", "/v1/leases/{lease}"),
    ),
    _rule(
        LEASE_ATTACH,
        f"({_MEMBER}) or role:admin",
        "Say which server of its project a lease is for.",
        ("POST", "/v1/leases/{lease}/attach"),
    ),
    _rule(
        LEASE_RELEASE,
        f"({_MEMBER}) or role:admin",
        "Release a lease.",
        ("POST", "/v1/leases/{lease}/release"),
    ),
    _rule(
        LEASE_MOVE,
        "role:admin",
        "Move a lease to another GPU, where it begins with empty memory unless both hosts can carry it.",
        ("POST", "/v1/leases/{lease}/move"),
    ),
    _rule(
        LEASE_REQUEUE,
        f"({_MEMBER}) or role:admin",
        "Release a lease whose GPU's host is silent, and ask for the same again.",
        ("POST", "/v1/leases/{lease}/requeue"),
    ),
    _rule(
        HOST_LEASES,
        f"({_OWN_HOST}) or {_EVERYWHERE}",
        "See which leases a host serves and uses. A host's own user sees its own: see the rule for reports.",
        ("GET", "/v1/hosts/{host}/leases"),
    ),
    _rule(
        HOST_REPORT,
        _OWN_HOST,
        "Report what a host does for leases. Only its own user, numa-ext-host-HOST in the project numa-ext-hosts, may: "
        "what is reported decides which client may use a GPU. Where these are in another domain than default, put its "
        "id in place of that one here and in the rule for lists.",
        ("POST", "/v1/hosts/{host}/leases"),
    ),
    _rule(
        HOST_OFF,
        "role:admin",
        "Say that a host which does not report is off, so that what leases hold of its GPUs is free.",
        ("POST", "/v1/hosts/{host}/off"),
    ),
    _rule(
        SCALING_SET,
        "role:admin",
        "Say what an elastic group is sized by. Only administrators may: its source is a file of the controllers.",
        ("PUT", "/v1/scaling/{group}"),
    ),
    _rule(
        SCALING_DELETE,
        "role:admin",
        "Delete an elastic group and the decisions on it. A member can pause it, and could not set it again.",
        ("DELETE", "/v1/scaling/{group}"),
    ),
    _rule(
        SCALING_LIST,
        f"({_READER}) or {_EVERYWHERE}",
        "List elastic groups of the project.",
        ("GET", "/v1/scaling"),
    ),
    _rule(
        SCALING_LIST_ALL,
        _EVERYWHERE,
        "List elastic groups of all projects.",
        ("GET", "/v1/scaling?all_projects=true"),
    ),
    _rule(
        SCALING_SHOW,
        f"({_READER}) or {_EVERYWHERE}",
        "Show an elastic group and the decisions on it.",
        ("GET", "/v1/scaling/{group}"),
        ("GET", "/v1/scaling/{group}/decisions"),
    ),
    _rule(
        SCALING_PAUSE,
        f"({_MEMBER}) or role:admin",
        "Have nothing decided on an elastic group, or again.",
        ("POST", "/v1/scaling/{group}/pause"),
        ("POST", "/v1/scaling/{group}/resume"),
    ),
    _rule(
        TOPOLOGY,
        f"({_READER}) or role:admin",
        "Show which servers of a server group are near each other, by hashes of the names of switches.",
        ("GET", "/v1/groups/{group}/topology"),
    ),
)


def list_rules() -> Sequence[Any]:
    """Return the rules, for oslopolicy-sample-generator."""
    return RULES
