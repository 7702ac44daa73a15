# SPDX-License-Identifier: Apache-2.0
"""A transport that a file declares: templates of its server's command line, environment, probe, and of the guest's.

The file is TOML. Words in braces stand for values; others than these are refused when the file is read, and a brace
that is meant is written twice::

    name = "rcuda"                         # of the transport, and of the trait of GPUs that it carries
    apis = ["cuda"]
    slices = "advisory"                    # or "enforced": the server itself keeps a lease to {memory_mb}
    ports = 1                              # consecutive ports of 127.0.0.1 that a server listens on

    [server]                               # {lease} {gpu} {memory_mb} {memory_bytes} {port} {folder}
    argv = ["/opt/rcuda/bin/rCUDAd", "-p", "{port}"]
    environment = { CUDA_VISIBLE_DEVICES = "{gpu}" }
    probe = ["/usr/bin/true"]              # optional; without it all ports have to take connections
    paths = ["/opt/rcuda"]                 # optional: what the server reads of the host, beside /usr and its program

    [guest.environment]                    # once: {count} devices, {endpoints} = 127.0.0.1:PORT,127.0.0.1:PORT…
    RCUDA_DEVICE_COUNT = "{count}"

    [guest.device]                         # for each device {j}: GPU {index}, reached at 127.0.0.1:{port}
    "RCUDA_DEVICE_{j}" = "127.0.0.1:{index}"
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from host_agent.transports.transport import (
    AttachedGpu,
    GpuServer,
    ServerCommand,
    TransportCapabilities,
    virtual_devices,
)
from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACES: Final = re.compile(r"\{\{|\}\}|\{(\w*)\}|[{}]")
_MOST_PORTS: Final = 16
_LONGEST_FILE: Final = 1 << 16
_SERVER: Final = frozenset({"lease", "gpu", "memory_mb", "memory_bytes", "port", "folder"})
_ONCE: Final = frozenset({"count", "endpoints"})
_DEVICE: Final = frozenset({"count", "j", "index", "port"})
_KEYS: Final = frozenset({"name", "apis", "slices", "ports", "server", "guest"})


@dataclass(frozen=True, slots=True)
class DeclaredTransport:
    """What a file declares; made by :func:`read`.

    :param name: of the transport
    :param can: its capabilities
    :param argv: template of the server's command line
    :param environment: templates of the server's environment
    :param probe: template of the command that sees whether it serves; empty: its ports take connections
    :param reads: what the server reads of the host, beside ``/usr`` and its program
    :param once: templates of what the guest's environment has once
    :param device: templates, of names too, of what it has for each device
    """

    name: str
    can: TransportCapabilities
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    probe: tuple[str, ...]
    reads: tuple[Path, ...]
    once: Mapping[str, str]
    device: Mapping[str, str]

    def capabilities(self) -> TransportCapabilities:
        """As the file declares them; nothing of it is tested."""
        return self.can

    def findings(self) -> Sequence[str]:
        """Whether the server's program is there."""
        program = Path(self.argv[0])
        if program.is_file():
            return ()
        return (f"{program} is not there: install the server of transport {self.name}",)

    def paths(self) -> Sequence[Path]:
        """The server's program, and what the file says."""
        return (Path(self.argv[0]), *self.reads)

    def server_command(self, server: GpuServer) -> ServerCommand:
        """The templates, with the lease's values."""
        values = {
            "lease": server.lease,
            "gpu": server.gpu,
            "memory_mb": server.memory_mb,
            "memory_bytes": server.memory_bytes,
            "port": server.port,
            "folder": server.folder,
        }
        return ServerCommand(
            _filled(self.argv, values),
            {name: _fill(text, values) for name, text in self.environment.items()},
            server.folder,
            _filled(self.probe, values),
        )

    def guest_environment(
        self, gpus: Sequence[AttachedGpu], virtual_per_gpu: int = 1
    ) -> Mapping[str, str]:
        """The guest's templates: those of ``environment`` once, those of ``device`` for each device."""
        devices = virtual_devices(gpus, virtual_per_gpu)
        endpoints = ",".join(f"127.0.0.1:{gpus[index].port}" for index in devices)
        count = {"count": len(devices)}
        once = {**count, "endpoints": endpoints}
        found = {name: _fill(text, once) for name, text in self.once.items()}
        for j, index in enumerate(devices):
            values = {**count, "j": j, "index": index, "port": gpus[index].port}
            found |= {
                _fill(name, values): _fill(text, values) for name, text in self.device.items()
            }
        return found


def read(path: Path) -> DeclaredTransport:
    """Read a file that declares a transport.

    :raises InvalidValueError: it cannot be read, is malformed, or has an unknown key, value or word in braces
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_FILE + 1)
        if len(content) > _LONGEST_FILE:
            raise InvalidValueError(str(path), f"{len(content)} bytes or more", f"{_LONGEST_FILE}")
        raw = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValueError(str(path), str(error), "a readable TOML file") from error
    return _Reader(str(path)).transport(raw)


class _Reader:
    """Checks what a file says; every error names the file and the key."""

    def __init__(self, path: str) -> None:
        self._path = path

    def transport(self, raw: Mapping[str, Any]) -> DeclaredTransport:
        self._known("", raw, _KEYS)
        name = self._text("name", raw.get("name"))
        if not _NAME.fullmatch(name):
            raise self._refused("name", name, "small letters, digits and _; at most 32")
        server = self._table("server", raw.get("server"))
        self._known("server.", server, {"argv", "environment", "probe", "paths"})
        guest = self._table("guest", raw.get("guest"))
        self._known("guest.", guest, {"environment", "device"})
        argv = self._words("server.argv", server.get("argv"))
        if not argv or not argv[0].startswith("/") or "{" in argv[0]:
            raise self._refused("server.argv", argv[:1], "the absolute path of a program first")
        once = self._variables("guest.environment", guest.get("environment", {}), _ONCE)
        device = self._devices(guest.get("device", {}))
        if not once and not device:
            raise self._refused("guest", {}, "a variable by which programs find their GPUs")
        return DeclaredTransport(
            name,
            self._capabilities(raw),
            argv,
            self._variables("server.environment", server.get("environment", {}), _SERVER),
            self._words("server.probe", server.get("probe", [])),
            self._paths(server.get("paths", [])),
            once,
            device,
        )

    def _capabilities(self, raw: Mapping[str, Any]) -> TransportCapabilities:
        apis = raw.get("apis")
        known = [api.value for api in RemoteGpuApi]
        if not isinstance(apis, list) or not apis or any(api not in known for api in apis):
            raise self._refused("apis", apis, f"a list of {', '.join(known)}")
        slices = raw.get("slices")
        if slices not in ("enforced", "advisory"):
            raise self._refused("slices", slices, "enforced, advisory")
        ports = raw.get("ports", 1)
        if not isinstance(ports, int) or isinstance(ports, bool) or not 1 <= ports <= _MOST_PORTS:
            raise self._refused("ports", ports, f"1 to {_MOST_PORTS}")
        return TransportCapabilities(
            frozenset(map(RemoteGpuApi, apis)), slices == "enforced", ports
        )

    def _devices(self, raw: Any) -> Mapping[str, str]:
        found = self._table("guest.device", raw)
        for name, text in found.items():
            key = f"guest.device.{name}"
            self._template(key, name, _DEVICE)
            self._template(key, self._text(key, text), _DEVICE)
            values = dict.fromkeys(_DEVICE, "0")
            if not _VARIABLE.fullmatch(_fill(name, values)):
                raise self._refused(key, name, "the name of a variable")
            if "j" not in {match[1] for match in _BRACES.finditer(name)}:
                raise self._refused(
                    key, name, "a name with {j}, else each device replaces the last"
                )
        return MappingProxyType(dict(found))

    def _variables(self, key: str, raw: Any, words: frozenset[str]) -> Mapping[str, str]:
        found = self._table(key, raw)
        for name, text in found.items():
            if not _VARIABLE.fullmatch(name):
                raise self._refused(key, name, "names of variables")
            self._template(f"{key}.{name}", self._text(f"{key}.{name}", text), words)
        return MappingProxyType(dict(found))

    def _words(self, key: str, raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, list):
            raise self._refused(key, raw, "a list of texts")
        for word in raw:
            self._template(key, self._text(key, word), _SERVER)
        return tuple(raw)

    def _paths(self, raw: Any) -> tuple[Path, ...]:
        if not isinstance(raw, list):
            raise self._refused("server.paths", raw, "a list of absolute paths")
        for each in raw:
            text = self._text("server.paths", each)
            if not text.startswith("/") or len(Path(text).parts) == 1 or ".." in Path(text).parts:
                raise self._refused("server.paths", each, "absolute paths below / without ..")
        return tuple(map(Path, raw))

    def _template(self, key: str, text: str, words: frozenset[str]) -> None:
        for match in _BRACES.finditer(text):
            if match[0] not in ("{{", "}}") and match[1] not in words:
                known = ", ".join(sorted(f"{{{word}}}" for word in words))
                raise self._refused(key, match[0], f"{known}; {{{{ and }}}} for braces")

    def _text(self, key: str, raw: Any) -> str:
        if not isinstance(raw, str) or "\0" in raw:
            raise self._refused(key, raw, "a text")
        return raw

    def _table(self, key: str, raw: Any) -> Mapping[str, Any]:
        if not isinstance(raw, dict):
            raise self._refused(key, raw, "a table")
        return raw

    def _known(self, prefix: str, raw: Mapping[str, Any], keys: frozenset[str] | set[str]) -> None:
        for name in raw:
            if name not in keys:
                raise self._refused(f"{prefix}{name}", name, f"the keys {', '.join(sorted(keys))}")

    def _refused(self, key: str, value: object, allowed: str) -> InvalidValueError:
        return InvalidValueError(f"{self._path}: {key}", value, allowed)


def _fill(template: str, values: Mapping[str, object]) -> str:
    def filled(match: re.Match[str]) -> str:
        return match[0][0] if match[0] in ("{{", "}}") else str(values[match[1]])

    return _BRACES.sub(filled, template)


def _filled(templates: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(_fill(template, values) for template in templates)
