# SPDX-License-Identifier: Apache-2.0
"""Models that are fitted in a process of their own (:mod:`.worker`): a fit that hangs or dies takes nothing with it."""

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final

from nova_numa_ext.policy.elastic.boundary import Labels, Plane, Points
from placement_traits.command_line import module
from placement_traits.errors import CapabilityMissingError, ServiceUnavailableError, cut

_READ: Final = 65536


class ModelsBeside:
    """A :class:`~nova_numa_ext.policy.elastic.group.Learner`; for one thread at a time.

    All methods raise :class:`placement_traits.errors.ServiceUnavailableError` where there is no answer, and
    :class:`placement_traits.errors.CapabilityMissingError` where a library is missing. The next call starts a new
    process.

    :param season: periods after which a load repeats
    :param timeout_s: seconds that one answer may take, the start of the process included
    """

    def __init__(self, season: int, timeout_s: float) -> None:
        self._season, self._timeout_s = season, timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._predictors: tuple[str, ...] = ()
        self._read = b""

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predictors."""
        self._started()
        return self._predictors

    def planes(self, samples: Sequence[tuple[Points, Labels]]) -> list[Plane | None]:
        """Fit a plane to each set."""
        asked = [[points.tolist(), labels.tolist()] for points, labels in samples]
        return [each and Plane(*each) for each in self._asked({"samples": asked})["planes"]]

    def predictions(self, history: Sequence[float], leads: Sequence[int]) -> list[list[float]]:
        """Return what each predictor says, a row of leads for each."""
        asked = {"history": [*history], "leads": [*leads]}
        found: list[list[float]] = self._asked(asked)["predictions"]
        return found

    def close(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _asked(self, request: dict[str, Any]) -> Any:
        process = self._started()
        until_s = time.monotonic() + self._timeout_s
        self._send(process, json.dumps(request).encode() + b"\n", until_s)
        return self._answer(process, until_s)

    def _send(self, process: subprocess.Popen[bytes], request: bytes, until_s: float) -> None:
        """Write a request, as much at a time as does not block: one that hangs reads none, and a pipe holds little."""
        assert process.stdin
        rest = memoryview(request)
        while rest:
            left_s = max(until_s - time.monotonic(), 0.0)
            if not select.select([], [process.stdin], [], left_s)[1]:
                raise self._ended_in_time()
            try:
                rest = rest[os.write(process.stdin.fileno(), rest[: select.PIPE_BUF]) :]
            except OSError as error:
                self.close()
                raise ServiceUnavailableError(
                    f"The process that fits models is gone: {error.strerror}."
                ) from error

    def _ended_in_time(self) -> ServiceUnavailableError:
        """End a process whose time is over; return the error that says so."""
        self.close()
        return ServiceUnavailableError(
            f"The process that fits models did not answer within {self._timeout_s:g} s and was ended."
        )

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._read = b""
            self._process = subprocess.Popen(
                module("nova_numa_ext.learning.worker", str(self._season)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # On models so small threads cost more than they give.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            )
            until_s = time.monotonic() + self._timeout_s
            self._predictors = tuple(self._answer(self._process, until_s)["predictors"])
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], until_s: float) -> Any:
        assert process.stdout
        while b"\n" not in self._read:
            left_s = max(until_s - time.monotonic(), 0.0)
            if not select.select([process.stdout], [], [], left_s)[0]:
                raise self._ended_in_time()
            more = os.read(process.stdout.fileno(), _READ)
            if not more:
                self.close()
                raise ServiceUnavailableError(
                    f"The process that fits models has ended with status {process.returncode}."
                )
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        found = json.loads(line)
        if "error" in found:
            self.close()
            if found.get("missing"):
                raise CapabilityMissingError(found["error"])
            raise ServiceUnavailableError(
                f"The process that fits models has failed: {cut(found['error'])}"
            )
        return found
