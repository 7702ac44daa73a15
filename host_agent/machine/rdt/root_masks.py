# SPDX-License-Identifier: Apache-2.0
"""What resctrl cannot tell after root was shrunk: which ways it had before.

A small file next to the agent's other state, kept by the privileged side. It is good for one boot of the host, because
resctrl starts anew with the next. A lost or broken file means that nothing is known, see
:func:`host_agent.decide.partitions.plan.plan` and :meth:`host_agent.machine.rdt.executor.Executor.reset`.
"""

import json
import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from host_agent.model.rdt import Schemata

LOG = logging.getLogger(__name__)

_VERSION: Final = 1


@cache
def _tell_once(sentence: str) -> None:
    LOG.warning("%s", sentence)


class RootMemory:
    """Root's masks as they were found, in the domains where root is shrunk now.

    :param state: folder of the agent's state
    :param proc: where proc(5) is mounted
    """

    def __init__(self, state: Path, proc: Path) -> None:
        self._file = state / "rdt-root.json"
        self._boot_id = proc / "sys/kernel/random/boot_id"

    def recall(self) -> Schemata | None:
        """Return the masks, {} when root is not shrunk, None when nothing is known."""
        try:
            content: Any = json.loads(self._file.read_text())
            if (content["version"], content["boot"]) != (_VERSION, self._boot()):
                return None
            return {
                name: {int(domain): int(mask) for domain, mask in masks.items()}
                for name, masks in content["root"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep(self, found: Schemata) -> None:
        """Remember; a crash leaves the old or the new file, never half of one.

        A full disk must not keep latency-critical servers from their ways: it is told, and nothing is known then.
        """
        if self.recall() == found:
            return
        try:
            self._write(found)
        except OSError as error:
            _tell_once(
                f"{self._file} cannot be written ({error.strerror}): reset will give root all ways."
            )
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def _write(self, found: Schemata) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        new = self._file.with_suffix(".new")
        with new.open("w") as file:
            json.dump({"version": _VERSION, "boot": self._boot(), "root": found}, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._file)

    def keep_both(self, before: Schemata, after: Schemata) -> None:
        """Remember what the old or the new plan needs, for as long as either may be found after a crash."""
        names = before.keys() | after.keys()
        self.keep({name: {**before.get(name, {}), **after.get(name, {})} for name in sorted(names)})

    def _boot(self) -> str:
        return self._boot_id.read_text().strip()
