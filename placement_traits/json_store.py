# SPDX-License-Identifier: Apache-2.0
"""A small file of state: JSON with a version, replaced as a whole.

A crash or a full disk leaves the old content or the new, never half of one, and what :meth:`JsonStore.save` returned
from is on the disk. A file that cannot be used (unreadable, no JSON, NaN or Infinity, nested too deep, too large,
another version, values that its reader refuses) is one sentence in the log, and the caller starts with nothing; the
first new content moves it to ``NAME.bad``. Reading alone changes nothing, so that a command or a dry run may do it; it
follows no link and waits for no pipe, for root's commands read in the folder of another user.
"""

import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from placement_traits.errors import InvalidValueError
from placement_traits.plain import Value
from placement_traits.regular_file import open_regular

LOG = logging.getLogger(__name__)

MAX_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 32
_DRAFT_NAME: Final = re.compile(r".+\.json\.([1-9]\d{0,9})\.new")
# No link: root may write into a folder of another user.
_DRAFT: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC

Content = TypeVar("Content")


class JsonStore(Generic[Content]):
    """One file; a thread that saves while others do so has to order them.

    :param path: the file; its folder is made when it is missing
    :param version: of the content's form; a file of another version is not used, but for ``renamed``
    :param decode: makes the content of the members of the file
    :param encode: returns the members, as what :mod:`json` writes
    :param boot_id: file with the id of the host's boot, for content that is good for one boot only
    :param mode: of the file; its group is the folder's
    :param renamed: name of a member in the version before -> its name now; a file of that version is used, too
    """

    def __init__(
        self,
        path: Path,
        version: int,
        decode: Callable[[Value], Content],
        encode: Callable[[Content], Mapping[str, Any]],
        *,
        boot_id: Path | None = None,
        mode: int = 0o640,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self._version = version
        self._decode = decode
        self._encode = encode
        self._boot_id = boot_id
        self._mode = mode
        self._renamed = renamed
        self._refused = False

    def load(self) -> Content | None:
        """Return the content; None when there is no file, or none that can be used, which is logged once."""
        try:
            return self.read()
        except FileNotFoundError:
            self._refused = False
        except (OSError, InvalidValueError) as error:
            self._refused = True
            _warn_once(f"{self.path} is not used: {error}", _stamp(self.path))
        return None

    def read(self) -> Content | None:
        """Return the content, None when it is of another boot of the host.

        :raises FileNotFoundError: there is no file
        :raises OSError: it cannot be read
        :raises InvalidValueError: it cannot be used
        """
        self._refused = False
        found = Value(_parsed(self.path), str(self.path))
        version = found.member("version")
        if self._renamed and version.raw == self._version - 1 and not isinstance(version.raw, bool):
            raw = {self._renamed.get(name, name): part for name, part in found.raw.items()}
            found = Value(raw, found.where)
        elif version.raw != self._version or isinstance(version.raw, bool):
            raise version.refused(str(self._version))
        if self._boot_id is not None and found.member("boot").text() != self._boot():
            return None
        return self._decode(found)

    def save(self, content: Content) -> None:
        """Replace the file.

        :raises OSError: it cannot be written
        :raises InvalidValueError: the content holds a number that JSON has not (NaN, infinity)
        """
        members: dict[str, Any] = {"version": self._version}
        if self._boot_id is not None:
            members["boot"] = self._boot()
        try:
            text = json.dumps({**members, **self._encode(content)}, allow_nan=False)
        except ValueError as error:
            raise InvalidValueError(str(self.path), str(error), "finite numbers") from error
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        if self._refused:
            self._set_aside()
        replace_file(self.path, text.encode(), self._mode)

    def remove(self) -> None:
        """Remove the file, if there is one.

        :raises OSError: it cannot be removed
        """
        self.path.unlink(missing_ok=True)

    def _boot(self) -> str:
        return self._boot_id.read_text().strip() if self._boot_id is not None else ""

    def _set_aside(self) -> None:
        aside = self.path.with_name(f"{self.path.name}.bad")
        with suppress(FileNotFoundError):
            self.path.replace(aside)
            LOG.warning("%s is kept as %s", self.path, aside.name)
        self._refused = False


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Replace a file as a whole: what this returned from is on the disk.

    :param mode: of the file; its group is the folder's
    :raises OSError: it cannot be written; the old content stays
    """
    # A name of its own for each writer, by which remove_drafts knows it: two must not write into one draft.
    draft = path.with_name(f"{path.name}.{threading.get_native_id()}.new")
    try:
        with os.fdopen(os.open(draft, _DRAFT, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            with suppress(PermissionError):  # what root writes the agent has to read
                os.fchown(file.fileno(), -1, path.parent.stat().st_gid)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_drafts(folder: Path) -> None:
    """Remove what writers that were killed in the middle of a write have left in a folder; those that live keep theirs.

    The folder's owner calls it at its start. What cannot be removed is left, because it is never read.
    """
    with suppress(OSError):
        for file in folder.iterdir():
            found = _DRAFT_NAME.fullmatch(file.name)
            if found and not Path("/proc", found[1]).exists():
                with suppress(OSError):
                    file.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parsed(path: Path) -> Any:
    with open_regular(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidValueError(str(path), f"more than {MAX_BYTES} bytes", "a small file")
    try:
        found = json.loads(data.decode(), parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise InvalidValueError(str(path), "its depth", f"{MAX_DEPTH} levels") from None
    except ValueError as error:
        raise InvalidValueError(str(path), str(error), "a JSON text of finite numbers") from None
    _check_depth(found, path)
    return found


def _no_number(word: str) -> Any:
    raise ValueError(word)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("a number without bounds")
    return number


def _check_depth(found: Any, path: Path) -> None:
    """Refuse what is nested so deep that writing it again may fail."""
    level = [found]
    for _depth in range(MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += one.values()
            elif isinstance(one, list):
                inner += one
        level = inner
    if level:
        raise InvalidValueError(str(path), "its depth", f"{MAX_DEPTH} levels")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=64)
def _warn_once(sentence: str, _stamp: tuple[int, int] | None) -> None:
    LOG.warning("%s", sentence)
