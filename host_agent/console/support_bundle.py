# SPDX-License-Identifier: Apache-2.0
"""All that one needs to help from far away, in one file: what is configured, what is, what was done; no secrets.

A part that cannot be had holds one sentence that says why: a bundle is made on hosts where something is wrong.
"""

import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from host_agent.conf import configuration
from host_agent.conf.configuration import Configuration
from host_agent.console.masking import Masks, secrets
from placement_traits import oslo_options
from placement_traits.errors import InvalidValueError, NumaExtError
from placement_traits.regular_file import open_regular

_UNITS: Final = ("numa-host-agent", "numa-host-agent-helper", "numa-host-agent-withdraw")
_LOG_LINES: Final = 5_000
_LOG_S: Final = 60.0
_LONGEST: Final = 8 * 2**20

# Below /proc, /sys and the resctrl tree.
_PROC: Final = ("cmdline", "cpuinfo", "meminfo", "mounts", "sys/kernel/numa_balancing", "version")
_SYS: Final = (
    "devices/system/cpu/o*line",
    "devices/system/node/node*/cpulist",
    "devices/system/node/node*/distance",
    "devices/system/node/node*/meminfo",
    "kernel/mm/ksm/run",
    "kernel/mm/transparent_hugepage/enabled",
)
_RESCTRL: Final = ("info/**/*", "schemata", "*/schemata", "*/mode")


def write(conf: Configuration, file: Path) -> list[dict[str, str]]:
    """Write a bundle that only its owner can read; return a row for each part.

    :param file: a gzipped tar file, which must not be there yet
    :raises InvalidValueError: it cannot be written
    """
    files = list(map(Path, oslo_options.files(conf.oslo)))
    texts = [_read(each) for each in files if each.is_file()]
    masks = Masks(secrets(texts, configuration.secret_options(conf)))
    rows = []
    try:
        with (
            closing(
                os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            ) as to,
            tarfile.open(fileobj=to, mode="w:gz") as bundle,
        ):
            for name, make in _parts(conf, files):
                text, result = _made(make)
                _add(bundle, f"{file.name.partition('.')[0]}/{name}", masks.text(text))
                rows.append({"part": name, "result": masks.text(result)})
    except OSError as error:
        allowed = f"a file to make ({error.strerror})"
        raise InvalidValueError("--output", str(file), allowed) from error
    return rows


def _made(make: Callable[[], str]) -> tuple[str, str]:
    """Return a part's text and how it went."""
    try:
        return make(), "there"
    except (NumaExtError, OSError, ImportError, subprocess.SubprocessError) as error:
        sentence = " ".join(str(error).split())
        return f"{sentence}\n", sentence


def _add(bundle: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    bundle.addfile(member, BytesIO(content))


def _parts(conf: Configuration, files: list[Path]) -> Iterator[tuple[str, Callable[[], str]]]:
    paths = conf.paths
    yield "versions.txt", _versions
    for file in [*files, Path(conf.agent.deny_servers)]:
        yield f"configuration/{file.name}", partial(_read, file)
    yield "doctor.json", lambda: _json(_doctor(conf))
    yield "status.json", lambda: _json(_status(conf))
    yield "topology.json", lambda: _topology(conf)
    yield from _below("state", paths.state, ("*.json*",), _read_of_agent)
    yield from _below("proc", paths.proc, _PROC)
    yield from _below("sys", paths.sys, _SYS)
    yield from _below("resctrl", paths.resctrl, _RESCTRL)
    yield "log.txt", _log


def _read(file: Path) -> str:
    """Return a file's text, the end of a long one."""
    return file.read_bytes()[-_LONGEST:].decode(errors="replace")


def _read_of_agent(file: Path) -> str:
    """Return the end of a file in the agent's folder: what its user links to there is not sent away."""
    with open_regular(file) as content:
        content.seek(max(0, os.fstat(content.fileno()).st_size - _LONGEST))
        return content.read(_LONGEST).decode(errors="replace")


def _below(
    name: str, root: Path, patterns: tuple[str, ...], read: Callable[[Path], str] = _read
) -> Iterator[tuple[str, Callable[[], str]]]:
    for pattern in patterns:
        for file in sorted(root.glob(pattern)):
            if file.is_file():
                yield f"{name}/{file.relative_to(root)}", partial(read, file)


def _json(found: Any) -> str:
    return json.dumps(found, indent=2, default=str) + "\n"


def _versions() -> str:
    installed = {f"{each.metadata['Name']} {each.version}" for each in metadata.distributions()}
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    lines = [system, " ".join(platform.uname()), f"Python {platform.python_version()}"]
    return "\n".join([*lines, "", *sorted(installed, key=str.lower)]) + "\n"


def _doctor(conf: Configuration) -> list[dict[str, Any]]:
    from host_agent.console import doctor

    return [finding.row for finding in doctor.check(conf)]


def _status(conf: Configuration) -> list[dict[str, Any]]:
    from host_agent.console.status import status

    return status(conf)


def _topology(conf: Configuration) -> str:
    from host_agent.control.assembly.observer import topology_reader

    return topology_reader(conf)().to_json(2) + "\n"


def _log() -> str:
    """Return what systemd has kept of our units."""
    command = ["journalctl", "--no-pager", "--output=short-iso-precise", f"--lines={_LOG_LINES}"]
    command += [f"--unit={unit}" for unit in _UNITS]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace", timeout=_LOG_S
    ).stdout
