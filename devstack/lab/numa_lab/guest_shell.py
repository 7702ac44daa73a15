# SPDX-License-Identifier: Apache-2.0
"""The command channel into an emulated host: sshd inside, one connection kept open, commands multiplexed over it.

A new connection costs seconds of emulated key exchange, a command over the open one about a tenth of a second.
"""

import contextlib
import os
import shlex
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .errors import LabError, LateError
from .process import Process, run_logged, wait_for

_CONTROL_SOCKET = "control.sock"


class GuestShell:
    """Commands inside one emulated host.

    :param name: the host's name.
    :param folder: the host's folder; the same path is the host's own folder inside.
    :param port: on 127.0.0.1, leads to its sshd.
    :param environment: what commands find in their environment.
    :param master: the process that keeps the connection open.
    """

    def __init__(
        self, name: str, folder: Path, port: int, environment: dict[str, str], master: Process
    ) -> None:
        self._name = name
        self._folder = folder / "ssh"
        self._port = port
        self._environment = environment
        self._master = master

    def prepare(self) -> None:
        """Make keys and configuration files; keys only once."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for key in ("host_key", "user_key"):
            if not (self._folder / key).exists():
                run_logged(
                    "ssh-keygen",
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", self._name, "-f", key],
                    self._folder / "keygen.log",
                    folder=self._folder,
                )
        public = (self._folder / "host_key.pub").read_text()
        (self._folder / "known_hosts").write_text(f"{self._name} {public}")
        (self._folder / "authorized_keys").write_text((self._folder / "user_key.pub").read_text())
        (self._folder / "environment.sh").write_text(
            "".join(
                f"export {name}={shlex.quote(value)}\n" for name, value in self._environment.items()
            )
        )
        (self._folder / "sshd_config").write_text(self._server_configuration())
        (self._folder / "config").write_text(self._client_configuration())

    def listening(self) -> bool:
        """Whether sshd inside greets: the port itself is open as soon as QEMU runs."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def connect(self, timeout_s: float) -> None:
        """Open the connection that commands share, unless it is open.

        :raises LabError: sshd refuses or does not answer in time.
        """
        if self._master.alive() and self._connected():
            return
        self._master.stop()
        (self._folder / _CONTROL_SOCKET).unlink(missing_ok=True)
        self._master.start(
            ["ssh", "-F", "config", "-M", "-N", "-S", _CONTROL_SOCKET, self._name],
            folder=self._folder,
        )
        wait_for(f"{self._name} takes commands", self._connected, timeout_s, self._master)

    def close(self) -> None:
        """Close the connection."""
        self._master.stop()

    def run(
        self,
        command: str | Sequence[str],
        timeout_s: float = 120.0,
        check: bool = True,
        standard_input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command, or a program with its words, inside; its output is captured.

        :raises LateError: it takes too long.
        :raises LabError: with ``check``, it ends with another status than 0.
        """
        line = command if isinstance(command, str) else shlex.join(command)
        try:
            done = subprocess.run(
                self._ssh(line),
                cwd=self._folder,
                input=standard_input or "",
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise LateError(f"on {self._name} not done after {timeout_s:.0f} s: {line}") from error
        if check and done.returncode != 0:
            output = (done.stderr.strip() or done.stdout.strip())[-500:]
            raise LabError(
                f"on {self._name} failed with status {done.returncode}: {line}: {output}"
            )
        return done

    def interactive(self, words: Sequence[str]) -> int:
        """A command, or a login shell, on the caller's terminal; returns its status."""
        terminal = ["-t"] if os.isatty(0) else []
        line = [shlex.join(words)] if words else []
        argv = ["ssh", "-F", "config", "-S", _CONTROL_SOCKET, *terminal, self._name, *line]
        return subprocess.run(argv, cwd=self._folder, check=False).returncode

    def _ssh(self, line: str) -> list[str]:
        return ["ssh", "-F", "config", "-S", _CONTROL_SOCKET, self._name, line]

    def _connected(self) -> bool:
        check = ["ssh", "-F", "config", "-S", _CONTROL_SOCKET, "-O", "check", self._name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return (
                subprocess.run(
                    check, cwd=self._folder, capture_output=True, timeout=10, check=False
                ).returncode
                == 0
            )
        return False

    def _server_configuration(self) -> str:
        """Only our key gets in; ciphers are those that emulation is quick with."""
        variables = " ".join(f'"{name}={value}"' for name, value in self._environment.items())
        return f"""\
ListenAddress 0.0.0.0
HostKey {self._folder}/host_key
AuthorizedKeysFile {self._folder}/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
PidFile none
MaxSessions 100
Ciphers chacha20-poly1305@openssh.com
KexAlgorithms curve25519-sha256
SetEnv {variables}
"""

    def _client_configuration(self) -> str:
        """File names are relative to this folder, so that a long path of the checkout is no harm."""
        return f"""\
Host {self._name}
  HostName 127.0.0.1
  Port {self._port}
  User root
  HostKeyAlias {self._name}
  UserKnownHostsFile known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  IdentityFile user_key
  IdentitiesOnly yes
  IdentityAgent none
  BatchMode yes
  LogLevel ERROR
  ServerAliveInterval 60
  ServerAliveCountMax 10
  ConnectTimeout 110
"""
