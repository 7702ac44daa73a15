# SPDX-License-Identifier: Apache-2.0
"""What the job service lets nova-scheduler know of a server: a scheduler hint that no one else can make or read.

Nova takes scheduler hints of any user, keeps them with the server, and since microversion 2.100 shows them to its
owner. Naming hosts is a right of administrators, and so is knowing them. So the hint is a Fernet token: sealed with a
key that only the job service and nova-scheduler have. nova-scheduler asks no service about it.

A user may send the token of an own server once more. It counts for the same project and flavor and for an hour, and
gives nothing that the job had not: the server goes to one of the hosts that the queue chose for its like.
"""

import json
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from placement_traits.errors import InvalidValueError, NumaExtError

HINT: Final = "numa_ext_job"
LASTS_S: Final = 3600


class HintError(NumaExtError):
    """A scheduler hint is none that the job service has made, or it is too old."""


@dataclass(frozen=True, slots=True)
class JobHint:
    """What nova-scheduler has to know of a server of a job.

    :param job: uuid of the job
    :param part: name of its part
    :param project: uuid of its project; in another one the hint does not count
    :param flavor: nova's id of its flavor; with another one a server cannot be made by the hint
    :param hosts: root providers of the hosts that the part was planned on; none: nova chooses among all
    :param spare: of those that are as good, where nova refuses the planned ones
    :param extra_specs: of the part, as far as nova-scheduler has to know them; the flavor's own ones win
    :param any_utility: the job was postponed for the last time: GPUs below ``numa_ext:min_utility`` are good enough
    """

    job: str
    part: str
    project: str
    flavor: str
    hosts: tuple[str, ...]
    spare: tuple[str, ...]
    extra_specs: Mapping[str, str]
    any_utility: bool


class HintKeys:
    """Seals hints, and opens them.

    :ivar names: of the keys, by which two processes can be compared without a key being shown
    :param keys: in base64; the first one seals, all of them open; none: no hint counts
    :raises ValueError: one of them is no key of Fernet
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = MultiFernet([Fernet(each) for each in keys]) if keys else None
        self.names = tuple(map(_name, keys))

    def __str__(self) -> str:
        """Their names."""
        return ", ".join(self.names) or "none"

    def __bool__(self) -> bool:
        """There is a key."""
        return self._keys is not None

    def seal(self, hint: JobHint, now: float) -> str:
        """Return the text of a hint.

        :param now: seconds since 1970
        """
        assert self._keys is not None, "a hint is sealed without a key"
        return self._keys.encrypt_at_time(json.dumps(asdict(hint)).encode(), int(now)).decode()

    def opened(self, text: str, now: float | None) -> JobHint:
        """Return what a hint says.

        :param now: seconds since 1970; None: however old it is
        :raises HintError: see there
        """
        if self._keys is None:
            raise HintError("[numa_ext]job_hint_keys is not set")
        try:
            sealed = (
                self._keys.decrypt(text)
                if now is None
                else self._keys.decrypt_at_time(text, LASTS_S, int(now))
            )
        except (InvalidToken, ValueError) as error:
            raise HintError(
                f"no key of [numa_ext]job_hint_keys opens it, or it is older than {LASTS_S} s or from the future"
            ) from error
        found = json.loads(sealed)
        hosts, spare = tuple(found.pop("hosts")), tuple(found.pop("spare"))
        return JobHint(**found, hosts=hosts, spare=spare)


def differences(engine: HintKeys, scheduler: HintKeys) -> str:
    """Return what is wrong with the keys of an engine and a nova-scheduler, '' for nothing."""
    if not engine and not scheduler:
        return (
            "there are no job_hint_keys: nova chooses the hosts of jobs by the flavor alone, and what jobs ask for "
            "beside it does not hold"
        )
    if not engine:
        return "[numa_ext_jobs]job_hint_keys is not set: engines make no hints, though nova-scheduler has keys"
    if engine.names[0] not in scheduler.names:
        return (
            f"engines seal with key {engine.names[0]}, which nova-scheduler has not (it has {scheduler}): no server of "
            "a job finds a host; set [numa_ext]job_hint_keys of nova.conf and restart nova-scheduler"
        )
    return ""


def _name(key: str) -> str:
    return sha256(urlsafe_b64decode(key)).hexdigest()[:8]


def hint_keys(texts: Sequence[str], section: str) -> HintKeys:
    """Return the keys of an option ``job_hint_keys``.

    :param section: where the option stands, for the error
    :raises InvalidValueError: one of them is no key of Fernet; it is not shown
    """
    try:
        return HintKeys(texts)
    except ValueError as error:
        raise InvalidValueError(
            f"[{section}]job_hint_keys",
            f"{len(texts)} keys of which one is none",
            "keys of 32 bytes in URL-safe base64, as Fernet.generate_key makes them",
        ) from error
