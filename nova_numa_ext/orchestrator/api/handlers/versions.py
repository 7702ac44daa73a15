# SPDX-License-Identifier: Apache-2.0
"""Which versions of the API there are, and which one a request asks for."""

from typing import Any, Final

import flask
import microversion_parse

from nova_numa_ext.orchestrator.api.refusals import RefusedRequestError

SERVICE_TYPE: Final = "numa-ext"
VERSION: Final = "1.0"
_HEADER: Final = "OpenStack-API-Version"


class VersionHandlers:
    """Answers who asks for them; needs no token."""

    def show(self) -> Any:
        version = {"id": "v1.0", "status": "CURRENT", "min_version": VERSION, "version": VERSION}
        link = {"rel": "self", "href": flask.request.url_root + "v1"}
        return {"versions": [{**version, "links": [link]}]}


def check() -> None:
    """Refuse a request for a version that there is not.

    :raises RefusedRequestError: it is so, or cannot be understood
    """
    try:
        asked = microversion_parse.get_version(flask.request.headers, SERVICE_TYPE) or VERSION
        known = asked == "latest" or microversion_parse.parse_version_string(asked) == (1, 0)
    except (TypeError, ValueError):
        raise RefusedRequestError(
            400, f"{_HEADER} is malformed; allowed: {SERVICE_TYPE} {VERSION}"
        ) from None
    if not known:
        raise RefusedRequestError(
            406, f"Version {asked} is not supported; supported: {VERSION} to {VERSION}."
        )


def name(response: flask.Response) -> flask.Response:
    """Add to an answer which version it is of."""
    response.headers[_HEADER] = f"{SERVICE_TYPE} {VERSION}"
    response.vary.add(_HEADER)
    return response
