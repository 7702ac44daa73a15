# SPDX-License-Identifier: Apache-2.0
"""The operator's certificates, as the supervisor of leases reads them for their gateways."""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from placement_traits.errors import ServiceUnavailableError

_LOG: Final = logging.getLogger(__name__)

LinkTexts = Mapping[str, str | None]
"""``ca``, ``certificate`` and ``key`` in PEM; ``crl``, or None where there is no list of revoked certificates."""

_Stamp = tuple[int, int, int] | None


def digest(texts: LinkTexts) -> str:
    """Return by what two readings are compared."""
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class LinkPaths:
    """Where the certificates of a host that lends GPUs are.

    :param certificate: of this host, for servers, with its chain
    :param key: of that
    :param ca: those who sign hosts' certificates
    :param crl: lists of revoked ones; it need not be there
    """

    certificate: Path
    key: Path
    ca: Path
    crl: Path


class LinkFiles:
    """What the files hold; they are read again when they have changed. For any thread.

    :param paths: of the files
    """

    def __init__(self, paths: LinkPaths) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._stamps: tuple[_Stamp, ...] = ()
        self._texts: LinkTexts = {}
        self._digest = ""
        self._trouble = ""

    def read(self) -> tuple[LinkTexts, str]:
        """Return what they hold and its digest; where they cannot be read, what they held last.

        :raises ServiceUnavailableError: they could never be read
        """
        with self._lock:
            try:
                self._look()
                self._trouble = ""
            except (OSError, UnicodeDecodeError) as error:
                if not self._digest:
                    raise ServiceUnavailableError(f"Certificates of the link: {error}") from error
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    _LOG.warning("certificates of the link are as they were read last: %s", error)
            return self._texts, self._digest

    def _look(self) -> None:
        paths = self._paths
        stamps = (
            *map(_stamp, (paths.certificate, paths.key, paths.ca)),
            _stamp_if_there(paths.crl),
        )
        if stamps == self._stamps:
            return
        texts: LinkTexts = {
            "certificate": paths.certificate.read_text(),
            "key": paths.key.read_text(),
            "ca": paths.ca.read_text(),
            "crl": None if stamps[-1] is None else paths.crl.read_text(),
        }
        self._texts, self._digest, self._stamps = texts, digest(texts), stamps


def _stamp(path: Path) -> _Stamp:
    found = os.stat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size


def _stamp_if_there(path: Path) -> _Stamp:
    try:
        return _stamp(path)
    except FileNotFoundError:
        return None
