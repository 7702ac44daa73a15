# SPDX-License-Identifier: Apache-2.0
"""The mark that keeps an agent from acting."""

from typing import Any

from host_agent.conf.configuration import Configuration


def pause(conf: Configuration) -> dict[str, Any]:
    """Set the mark that the agent looks at each round; return what was done."""
    mark = conf.paths.paused
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return {"agent": "paused", "mark": str(mark)}


def resume(conf: Configuration) -> dict[str, Any]:
    """Remove the mark, so that the agent acts again; return what was done."""
    mark = conf.paths.paused
    mark.unlink(missing_ok=True)
    return {"agent": "resumed", "mark": str(mark)}
