# SPDX-License-Identifier: Apache-2.0
"""Does nova move a server that exists? Its flavor was accepted once, whatever we think of it now."""

import logging
from collections.abc import Iterable
from typing import Any

from nova import context, objects

LOG = logging.getLogger(__name__)


def keeps_its_flavor(spec: Any, host_states: Iterable[Any]) -> bool:
    """Return whether a RequestSpec is of an evacuation, a migration or an unshelve: not of a create, not of a resize.

    A resize looks like a cold migration; only nova's database tells them apart, which is asked here. Where it does not
    answer, a server that exists is not held where it is.
    """
    cell, known = _cell(spec), _known(spec, host_states)
    if cell is None and known is None:
        return False
    try:
        return bool(_own_flavor(spec, cell, known).id == spec.flavor.id)
    except Exception:
        LOG.exception("Whether server %s is resized is unknown; it may move.", spec.instance_uuid)
        return True


def is_move(spec: Any, host_states: Iterable[Any]) -> bool:
    """Return whether a RequestSpec is of a server that exists: of anything but a create."""
    return _cell(spec) is not None or _known(spec, host_states) is not None


def _cell(spec: Any) -> Any:
    """Return nova's cell that a server must stay in: nova names it for everything but a create."""
    destination = spec.requested_destination if "requested_destination" in spec else None
    return destination.cell if destination is not None and "cell" in destination else None


def _known(spec: Any, host_states: Iterable[Any]) -> Any:
    """Return the server as a HostState knows it, None when it is on none of the hosts."""
    found = (state.instances.get(spec.instance_uuid) for state in host_states)
    return next((instance for instance in found if instance is not None), None)


def _own_flavor(spec: Any, cell: Any, known: Any) -> Any:
    """Return the flavor that a server has now."""
    if cell is None:
        return known.flavor
    with context.target_cell(context.get_admin_context(), cell) as target:
        instance = objects.Instance.get_by_uuid(
            target, spec.instance_uuid, expected_attrs=["flavor"]
        )
    return instance.flavor
