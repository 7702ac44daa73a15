# SPDX-License-Identifier: Apache-2.0
"""What resctrl does not show after root was shrunk: which ways it had before.

A small file next to the agent's other state, kept by the privileged side. It is good for one boot of the host, because
resctrl starts afresh with the next. A lost or broken file means that nothing is known, see
:func:`host_agent.decide.partitions.plan.plan` and :meth:`host_agent.machine.rdt.writer.GroupWriter.reset`.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from host_agent.model.rdt import Schemata
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

LOG = logging.getLogger(__name__)

_VERSION: Final = 1


@cache
def _warn_once(sentence: str) -> None:
    LOG.warning("%s", sentence)


class RootMemory:
    """Root's masks as they were found, in the domains where root is shrunk now.

    :param state: folder of the agent's state
    :param proc: where proc(5) is mounted
    """

    def __init__(self, state: Path, proc: Path) -> None:
        boot_id = proc / "sys/kernel/random/boot_id"
        self._store: JsonStore[Schemata] = JsonStore(
            state / "rdt-root.json", _VERSION, _decode, _encode, boot_id=boot_id
        )

    def recall(self) -> Schemata | None:
        """Return the masks, {} when root is not shrunk, None when nothing is known."""
        return self._store.load()

    def keep(self, found: Schemata) -> None:
        """Remember.

        A full disk must not keep latency-critical servers from their ways: it is logged, and nothing is known then.
        """
        if self.recall() == found:
            return
        try:
            self._store.save(found)
        except OSError as error:
            _warn_once(
                f"{self._store.path} cannot be written ({error.strerror}): reset will give root all ways."
            )
            with suppress(OSError):
                self._store.remove()

    def keep_both(self, before: Schemata, after: Schemata) -> None:
        """Remember what the old or the new plan needs, for as long as either may be found after a crash."""
        names = before.keys() | after.keys()
        self.keep({name: {**before.get(name, {}), **after.get(name, {})} for name in sorted(names)})


def _decode(found: Value) -> Schemata:
    return {
        resource: {domain: mask.integer() for domain, mask in masks.numbered().items()}
        for resource, masks in found.member("root").members().items()
    }


def _encode(found: Schemata) -> Mapping[str, Any]:
    return {"root": found}
