# SPDX-License-Identifier: Apache-2.0
"""A host and the job service: ask what is to be done, do it, report what is done, again and again.

The service does not wait: a host asks every few seconds with the ETag of the last answer, each pause a random part
longer or shorter, so that hosts do not ask in step. It reports what has changed at once, and otherwise often enough not
to be taken for silent. A host on which nothing asks for a remote GPU, and of which the service has asked nothing,
*rests*: it asks and reports much less often, until its own servers change, or a question or a report is lost. One whose
server asks for a lease and has none yet, or whose lease has no client yet, asks often for a while.

A server that has stopped and runs again between two turns, as by a quick hard reboot, has another domain: it is
reported as one that does not run until the service's answer says that it is not attached any more, so that its lease
gets another epoch, as after a slow one. That is not seen where this process itself was started again in between.

The last answer is on disk. Where the service does not answer, whether this process is a new one or not, leases run on
as it asked. Where it answers that it cannot say now (503), as one does whose old database was restored, it is reported
all the same what is done here and what it had asked: of this, operators make the database whole.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Protocol

from host_agent.conf.remote_gpus import PAUSE_SPREAD
from host_agent.remote_gpu.answer import (
    AttachedLease,
    LeaseAnswer,
    LeaseReport,
    RunningServers,
    kept_answer,
    read_answer,
)
from host_agent.remote_gpu.gpu_host import GpuHost
from placement_traits.errors import InvalidValueError, ServiceUnavailableError, cut
from placement_traits.json_store import JsonStore
from placement_traits.plain import Value

_LOG: Final = logging.getLogger(__name__)
_VERSION: Final = 1
_REPORT_S: Final = 15.0

HURRY_S: Final = 0.1
"""Seconds between two turns while a move waits for this host."""

SOON_S: Final = 0.5
"""Seconds between two turns while a lease is new here."""

AWAITED_S: Final = 10.0
"""Seconds for which a host asks often what becomes of a server without its lease, or of a lease without a client."""

MISSED_S: Final = 20.0
"""Seconds for which a host asks often that a lease of one of its servers may soon come back."""


class SaysNothingError(ServiceUnavailableError):
    """The service answers, and does not say what is to be done for leases."""


class HttpAnswer(Protocol):
    """An answer of the service."""

    status_code: int
    headers: Any
    text: str

    def json(self) -> Any:
        """Return its body."""


Request = Callable[..., HttpAnswer]
"""Method, path, ``json`` and ``headers`` -> answer; raises ServiceUnavailableError where there is none."""


def answer_in(file: Path) -> JsonStore[LeaseAnswer]:
    """Return the file of the service's last answer."""
    return JsonStore(file, _VERSION, read_answer, kept_answer)


class LeaseTurns:
    """What this host does for leases; for one thread at a time.

    :ivar answer: the service's last
    :param host: its name, as nova and Placement have it
    :param request: to the service, with the credential of this host
    :param gpu_host: serves leases of its GPUs
    :param servers: returns the servers that run here; raises ServiceUnavailableError where that is not known
    :param kept: file of the last answer
    :param rest_s: seconds between two questions while it rests; 0: it never does, as it lends GPUs
    :param clock: monotonic seconds
    """

    def __init__(
        self,
        host: str,
        request: Request,
        gpu_host: GpuHost,
        servers: Callable[[], RunningServers],
        kept: Path,
        *,
        rest_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = f"/v1/hosts/{host}/leases"
        self._request = request
        self._gpu_host = gpu_host
        self._servers = servers
        self._rest_s = rest_s
        self._clock = clock
        self._store = answer_in(kept)
        found = self._store.load()
        self._known = found is not None
        self.answer = found or LeaseAnswer()
        self._tag = ""
        self._reported: LeaseReport | None = None
        self._reported_s = 0.0
        self._asked_s = self._missed_s = self._awaited_s = -math.inf
        self._unheard: type[ServiceUnavailableError] | None = None
        self._attached: set[str] = set()
        self._domains: dict[str, str] = {}
        self._stopped: dict[str, frozenset[tuple[str, int]]] = {}
        self._awaited: set[str] = set()

    def attaches(self) -> Sequence[AttachedLease] | None:
        """Return the leases of this host's servers, None while nothing is known of them; for any thread."""
        return self.answer.attaches if self._known else None

    def pause_s(self, interval_s: float) -> float:
        """Return how long this host waits until its next turn, seconds.

        Servers that start wait for all turns between that and their lease: who has a part in it asks often for a while.

        :param interval_s: between two turns, about, where nothing is awaited
        """
        if self._hurries():
            return HURRY_S
        usual_s = pause_s(interval_s)
        return min(SOON_S, usual_s) if self._awaits() else usual_s

    def _awaits(self) -> bool:
        """Whether a server that asks for a lease has none since lately, or a lease that is served has no client."""
        now_s = self._clock()
        led = {each.server_id for each in self.answer.attaches}
        reported = self._reported.servers if self._reported is not None else None
        awaited = set(reported.requests) - led if reported is not None else set()
        awaited |= {each.id for each in self.answer.serves if not each.client_host}
        if awaited - self._awaited:
            self._awaited_s = now_s
        self._awaited = awaited
        return bool(awaited) and now_s - self._awaited_s < AWAITED_S

    def _hurries(self) -> bool:
        """Whether a move waits for this host: a lease comes or goes, or one of its servers may soon connect again."""
        now_s = self._clock()
        attached = {each.id for each in self.answer.attaches}
        if self._attached - attached:
            self._missed_s = now_s
        self._attached = attached
        return self.answer.moves or now_s - self._missed_s < MISSED_S

    def turn(self) -> bool:
        """Ask, do, report; return whether the service has answered, or need not be asked."""
        if self._rests():
            return True
        says_nothing = False
        self._asked_s = self._clock()
        try:
            self._ask()
            answered = True
            if self._unheard is not None:
                _LOG.info("the job service answers again")
            self._unheard = None
        except ServiceUnavailableError as error:
            if self._unheard is not type(error):  # hours of one trouble are a line
                _LOG.warning("leases run on as they are: %s", error)
            self._unheard = type(error)
            self._asked_s = -math.inf  # it rests only while it is heard
            answered, says_nothing = False, isinstance(error, SaysNothingError)
        if not self._known:
            return answered  # what runs here may be of leases: nothing is ended on a guess
        try:
            report = self._obeyed()
            if says_nothing:
                with suppress(SaysNothingError):  # it has taken note, and says nothing either
                    self._send(report, self.answer)
            elif answered and self._is_due(report):
                self._send(report)
                if self._obeyed() != report:  # the answer to the report asked for more
                    self._reported = None
        except ServiceUnavailableError as error:
            _LOG.warning("what is done for leases is not reported: %s", error)
            self._asked_s = -math.inf
            return False
        return answered

    def _rests(self) -> bool:
        """Return whether nothing is to be asked now: no lease is here, and what the service knows is still so."""
        if not self._rest_s or self._clock() - self._asked_s >= self._rest_s:
            return False
        known = self._reported.servers if self._reported is not None else None
        if known is None or known.requests or self.answer != LeaseAnswer():
            return False
        return self._running() == known

    def _obeyed(self) -> LeaseReport:
        host = self._gpu_host
        serves, ended = host.obey(self.answer)
        return LeaseReport(
            serves,
            ended,
            self._running(),
            host.used(),
            host.moving,
            can_move=host.can_move,
            link_mbps=host.link_mbps(),
            used_mb=host.memory_mb(),
        )

    def _running(self) -> RunningServers | None:
        try:
            found = self._servers()
        except ServiceUnavailableError as error:
            _LOG.warning("which servers run is not known now, and not reported: %s", error)
            return None
        return found.without(self._have_stopped(found.domains))

    def _have_stopped(self, domains: Mapping[str, str]) -> frozenset[str]:
        """Return the servers that run again, and whose leases the service still takes for attached as before."""
        attached: dict[str, set[tuple[str, int]]] = {}
        for each in self.answer.attaches:
            attached.setdefault(each.server_id, set()).add((each.id, each.epoch))
        for server, domain in domains.items():
            if self._domains.get(server, domain) != domain and server in attached:
                self._stopped[server] = frozenset(attached[server])
        # One that is off stays known while it is attached: that may not have been reported yet.
        self._domains = {k: v for k, v in self._domains.items() if k in attached} | {**domains}
        self._stopped = {k: v for k, v in self._stopped.items() if v & attached.get(k, set())}
        return frozenset(self._stopped)

    def _is_due(self, report: LeaseReport) -> bool:
        return report != self._reported or self._clock() - self._reported_s >= _REPORT_S

    def _ask(self) -> None:
        headers = {"If-None-Match": self._tag} if self._tag else {}
        answer = self._request("GET", self._path, headers=headers)
        if answer.status_code != 304:
            self._take(answer)
            self._tag = answer.headers.get("ETag", "")

    def _send(self, report: LeaseReport, asked: LeaseAnswer | None = None) -> None:
        self._take(self._request("POST", self._path, json=report.body(asked)))
        self._tag = ""  # of an answer before this one
        self._reported, self._reported_s = report, self._clock()

    def _take(self, answer: HttpAnswer) -> None:
        if answer.status_code != 200:
            why = f"The job service refuses: {answer.status_code} {cut(answer.text)}"
            says_nothing = answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            raise (SaysNothingError if says_nothing else ServiceUnavailableError)(why)
        try:
            found = read_answer(Value(answer.json(), "the job service's answer"))
        except (InvalidValueError, ValueError) as error:
            raise ServiceUnavailableError(
                f"The job service answers in another form: {error}"
            ) from error
        if found != self.answer or not self._known:
            self._store.save(found)
        self.answer, self._known = found, True


def pause_s(interval_s: float) -> float:
    """Return how long a host waits until its next turn, seconds."""
    return interval_s * random.uniform(1 - PAUSE_SPREAD, 1 + PAUSE_SPREAD)
