# SPDX-License-Identifier: Apache-2.0
"""DevStack as a plug-in sees it: its three programs by ``programs.sh``, in a folder that stands for the machine."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from oslo_config import iniparser

CHECKOUT = Path(__file__).parents[3]
_PROGRAMS = Path(__file__).with_name("programs.sh")
# What a plug-in may call without sudo, beside DevStack's functions.
_COMMANDS = (
    *(
        "awk",
        "base64",
        "cat",
        "cp",
        "dirname",
        "grep",
        "head",
        "install",
        "ln",
        "ls",
        "mkdir",
        "rm",
        "rmdir",
        "touch",
        "tr",
    ),
    "xargs",
)
_PYTHON = """#!/bin/bash
echo "python OS_CLOUD=$OS_CLOUD $*" >> "{root}/calls"
if [[ "$*" == *" flavors" ]]; then
    cat > "{root}/flavors"
fi
"""
# Of DevStack and of the machine's imitation, not of a plug-in.
_NOT_FILES = ("bin", "calls", "mistakes", "units", "mounted", "numa_balancing", "flavors")


@dataclass(frozen=True, slots=True)
class Run:
    """What one program did.

    :param calls: of DevStack's functions, and of commands by sudo, in order
    :param trace: standard error, where xtrace goes
    """

    status: int
    calls: tuple[str, ...]
    mistakes: tuple[str, ...]
    trace: str

    def of(self, name: str) -> list[str]:
        """Arguments of all calls of a name."""
        return [call.removeprefix(f"{name} ") for call in self.calls if call.startswith(f"{name} ")]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine on which DevStack runs.

    :param root: what is ``/`` there
    :param plugin: the plug-in's checkout
    """

    root: Path
    plugin: Path = CHECKOUT

    def prepare(self) -> None:
        """Put there what DevStack finds; the kernel balances memory over nodes."""
        (self.root / "bin").mkdir(parents=True)
        for command in _COMMANDS:
            (self.root / "bin" / command).symlink_to(shutil.which(command) or command)
        (self.root / "bin/python3").write_text(_PYTHON.format(root=self.root))
        (self.root / "bin/python3").chmod(0o755)
        (self.root / "numa_balancing").write_text("1\n")

    def run(self, program: str, services: str = "", **variables: str) -> Run:
        """Run ``stack``, ``unstack`` or ``clean``.

        :param services: ``ENABLED_SERVICES``, comma separated
        :param variables: of local.conf, and what the machine does (``programs.sh``)
        """
        for name in ("calls", "mistakes"):
            (self.root / name).write_text("")
        done = subprocess.run(
            [shutil.which("bash") or "bash", _PROGRAMS, program, self.plugin, self.root],
            env={"LANG": "C.UTF-8", "ENABLED_SERVICES": services, **variables},
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        calls, mistakes = ((self.root / n).read_text().splitlines() for n in ("calls", "mistakes"))
        return Run(done.returncode, tuple(calls), tuple(mistakes), done.stderr)

    def files(self) -> dict[str, str]:
        """All files, with their text or where they lead, and all folders that are empty."""
        found = {}
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root)
            if name.parts[0] in _NOT_FILES:
                continue
            if path.is_symlink():
                found[str(name)] = str(path.readlink())
            elif path.is_file():
                found[str(name)] = path.read_text()
            elif not any(path.iterdir()):
                found[f"{name}/"] = ""
        return found

    def active(self) -> set[str]:
        """Units that run."""
        return {file.name for file in (self.root / "active").iterdir()}

    def enabled(self) -> set[str]:
        """Units that run from boot on."""
        return {file.name for file in (self.root / "enabled").iterdir()}


class _Options(iniparser.BaseParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], list[str]] = {}
        self._section = "DEFAULT"

    def new_section(self, section: str) -> None:
        self._section = section

    def assignment(self, key: str, value: list[str]) -> None:
        self.found.setdefault((self._section, key), []).append("\n".join(value))


def options(file: Path) -> dict[tuple[str, str], list[str]]:
    """Section and name of each option of a file -> its values, in order."""
    parser = _Options()
    with file.open() as stream:
        parser.parse(stream)
    return parser.found
