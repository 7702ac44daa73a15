# SPDX-License-Identifier: Apache-2.0
"""The commands that the documentation shows, and whether each could be typed so: read by its own parser, not run.

What a page marks with ``::``, and README.md fences without a language, are commands; anything else has a language
(``.. code-block:: text``, or ``text`` at the fence). Where a block has prompts (``$``) only their lines are
commands, the others are answers.
"""

import argparse
import importlib
import importlib.util
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from configparser import ConfigParser
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from oslo_config import cfg

ROOT: Final = Path(__file__).parents[2]
HISTORY: Final = ROOT / "doc/source/reference/release-notes.rst"
"""The one page that also names what is gone."""

PAGES: Final = (
    *sorted((ROOT / "doc/source").rglob("*.rst")),
    *(ROOT / name for name in ("README.md", "SECURITY.md", "devstack/README.rst")),
)

_SETUP: Final = ConfigParser()
_SETUP.read(ROOT / "setup.cfg")

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_LITERAL: Final = re.compile(r"(?<!`)``([^`]+)``(?!`)|(?<!`)`([^`\n]+)`(?![`_])")
_DIRECTIVE: Final = re.compile(r"\s*\.\. ")
_OPERATORS: Final = frozenset({"&&", "||", "|", ";", "&"})
_SHELL: Final = frozenset({"for", "do", "done"})
_ASSIGNMENT: Final = re.compile(r"\w+=\S*")
_OPTIONAL: Final = re.compile(r"(?<=\s)\[|\](?=\s|$)")
_REDIRECTION: Final = re.compile(r"\s(?:[12]?>{1,2}\s*|<\s+)\S+")
_INCOMPLETE: Final = "expected one argument"


class WrongCommandError(Exception):
    """A command that its own parser refuses."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page.

    :param where: page and line
    :param words: program and arguments
    :param inline: it stands in a sentence, where arguments that it needs may be missing
    """

    where: str
    words: tuple[str, ...]
    inline: bool = False

    @property
    def program(self) -> str:
        """The program without its folder."""
        first = self.words[0]
        return first if first == LAB else first.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


LAB: Final = "devstack/lab/lab"


def commands(page: Path) -> Iterator[Command]:
    """Yield the commands of the blocks of a page, in order."""
    name = page.relative_to(ROOT).as_posix()
    text = page.read_text()
    blocks = _fenced(text) if page.suffix == ".md" else _marked(text)
    for first, lines in blocks:
        prompts = any(line.startswith("$ ") for line in lines)
        for number, line in _joined(first, lines):
            if line.startswith("$ ") or not prompts:
                for words in _simple(line.removeprefix("$ ")):
                    yield Command(f"{name}:{number}", words)


def mentioned(page: Path) -> Iterator[Command]:
    """Yield the commands of ours that stand in sentences of a page."""
    name = page.relative_to(ROOT).as_posix()
    text = page.read_text()
    for match in _LITERAL.finditer(text):
        literal = " ".join((match[1] or match[2]).split())
        if not _complete(literal):
            continue
        number = text.count("\n", 0, match.start()) + 1
        for words in _simple(literal):
            yield Command(f"{name}:{number}", words, inline=True)


def _complete(literal: str) -> bool:
    """Whether a literal is a command of ours, and not a name, a family of commands or a choice of words."""
    if literal == "openstack numa":
        return False
    program, _, rest = literal.partition(" ")
    ours = program in PARSERS or literal.startswith("openstack numa ")
    return ours and bool(rest) and not re.search(r"…|\||\[", rest) and not rest.startswith("(")


def _fenced(text: str) -> Iterator[tuple[int, list[str]]]:
    for match in _FENCE.finditer(text):
        if not match[1]:
            yield text.count("\n", 0, match.start(2)) + 1, match[2].splitlines()


def _marked(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield first line's number and lines of each literal block, without their indentation."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.rstrip().endswith("::") or _DIRECTIVE.match(line):
            continue
        margin = _margin(line)
        block = []
        for other in lines[number + 1 :]:
            if other.strip() and _margin(other) <= margin:
                break
            block.append(other)
        least = min((_margin(other) for other in block if other.strip()), default=0)
        yield number + 2, [other[least:] for other in block]


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(first: int, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield lines, joined where a backslash ends them."""
    number, whole = first, ""
    for at, line in enumerate(lines, first):
        if not whole:
            number = at
        whole += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if whole.strip():
            yield number, whole.strip()
        whole = ""


def _simple(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the simple commands of a line of shell."""
    plain = _OPTIONAL.sub("", _REDIRECTION.sub("", f" {line}"))
    lexer = shlex.shlex(plain, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    try:
        found = [*lexer]
    except ValueError as error:
        raise WrongCommandError(f"{error}: {line}") from error
    words: list[str] = []
    for word in (*found, ";"):
        if word not in _OPERATORS:
            words.append(word)
            continue
        while words and (_ASSIGNMENT.fullmatch(words[0]) or words[0] in _SHELL | {"sudo"}):
            words = words[1:] if words[0] != "for" else []
        if words:
            yield tuple(words)
        words = []


def _raising(parser: argparse.ArgumentParser, *, whole: bool) -> argparse.ArgumentParser:
    """Return a parser that raises instead of ending the process, those of its commands, too.

    :param whole: False: arguments that a command needs may be missing
    """

    def refuse(message: str) -> None:
        raise WrongCommandError(message)

    parser.allow_abbrev = False
    parser.error = refuse  # type: ignore[assignment, method-assign]
    for required in (*parser._actions, *parser._mutually_exclusive_groups):
        required.required = required.required and whole  # type: ignore[attr-defined]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _raising(sub, whole=whole)
    return parser


Reader = Callable[[list[str], bool], None]
"""Reads the arguments of a program, of which some may be missing where the second argument is False."""


def _by_argparse(module: str) -> Reader:
    def parse(arguments: list[str], whole: bool) -> None:
        made = importlib.import_module(module)._parser()
        parser = made[0] if isinstance(made, tuple) else made
        _raising(parser, whole=whole).parse_args(arguments)

    return parse


def _agent(arguments: list[str], _whole: bool) -> None:
    from host_agent.conf.configuration import _CLI

    conf = cfg.ConfigOpts()
    conf.register_cli_opts(_CLI)
    _by_oslo(conf, arguments)


def _upgrade(arguments: list[str], _whole: bool) -> None:
    """As oslo.upgradecheck reads them."""
    from oslo_upgradecheck import upgradecheck

    conf = cfg.ConfigOpts()
    upgradecheck.register_cli_options(conf, upgradecheck.UpgradeCommands())
    _by_oslo(conf, arguments)


def _by_oslo(conf: cfg.ConfigOpts, arguments: Sequence[str]) -> None:
    files = [at for at, word in enumerate(arguments) if word == "--config-file"]
    given = [word for at, word in enumerate(arguments) if not {at, at - 1} & set(files)]
    errors = StringIO()
    try:
        with redirect_stderr(errors), redirect_stdout(StringIO()):
            conf(given, default_config_files=[])
    except SystemExit as ended:
        if ended.code:
            raise WrongCommandError(errors.getvalue().strip()) from ended


@cache
def _plugins() -> dict[str, EntryPoint]:
    """The commands of ``openstack``: ours as setup.cfg declares them, the others as they are installed."""
    found = {
        entry.name.replace("_", " "): entry
        for group in _GROUPS
        for entry in entry_points(group=group)
    }
    ours = _SETUP["entry_points"]["openstack.numa.v1"].strip().splitlines()
    for name, _, value in (line.partition(" = ") for line in ours):
        found[name.replace("_", " ")] = EntryPoint(name, value, "openstack.numa.v1")
    return found


_GROUPS: Final = (
    "openstack.common",
    "openstack.compute.v2",
    "openstack.identity.v3",
    "openstack.image.v2",
    "openstack.network.v2",
    "openstack.placement.v1",
)


_APPLICATION: Final = SimpleNamespace(
    client_manager=SimpleNamespace(placement=SimpleNamespace(api_version="1.39"))
)
"""What osc-placement asks of the application while it makes a parser: with the newest version every option is there."""


def plugin_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the class of an ``openstack`` command and its arguments.

    :param words: after ``openstack``
    :raises WrongCommandError: there is none
    """
    for length in range(len(words), 0, -1):
        name = " ".join(words[:length])
        if name in _plugins():
            return _plugins()[name].load(), list(words[length:])
    raise WrongCommandError(f"there is no command openstack {' '.join(words[:3])}")


def _openstack(words: list[str], whole: bool) -> None:
    command, arguments = plugin_of(words)
    _raising(command(_APPLICATION, None).get_parser("openstack"), whole=whole).parse_args(arguments)


def _supervisor(arguments: list[str], whole: bool) -> None:
    """The user of a host, who is not there where the documentation is tested, is root."""
    words = list(arguments)
    if "--user" in words[:-1]:
        words[words.index("--user") + 1] = "root"
    _by_argparse("host_agent.cmd.supervisor")(words, whole)


def _make(arguments: list[str], _whole: bool) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.M))
    targets |= {
        f"bench-{file.stem.removeprefix('bench_').replace('_', '-')}"
        for file in (ROOT / "benchmarks").glob("bench_*.py")
    }
    for word in arguments:
        if "=" in word:
            variable = word.partition("=")[0]
            known = bool(re.search(rf"\$\({variable}\)", makefile))
        else:
            known = word in targets
        if not known:
            raise WrongCommandError(f"the Makefile knows no {word}")


def _lab(arguments: list[str], whole: bool) -> None:
    words = list(arguments)
    if words[:1] == ["shell"] and len(words) > 2:
        check(Command("", tuple(words[2:])))
        words = words[:2]
    if words[:1] == ["explain"]:
        return PARSERS["numa-ext-explain"](words[1:], whole)
    return _by_argparse("numa_lab.cli")(words, whole)


def _pip(arguments: list[str], _whole: bool) -> None:
    for extras in re.findall(r"(?:^| )(?:\.|\S*\.whl)\[([\w,]+)\]", " ".join(arguments)):
        unknown = set(extras.split(",")) - set(_SETUP["extras"])
        if unknown:
            raise WrongCommandError(f"setup.cfg has no extra {', '.join(unknown)}")


def _python(arguments: list[str], _whole: bool) -> None:
    module = arguments[1] if arguments[:1] == ["-m"] else ""
    ours = module.partition(".")[0] in _PACKAGES
    if ours and importlib.util.find_spec(module) is None:
        raise WrongCommandError(f"there is no module {module}")


_PACKAGES: Final = ("nova_numa_ext", "host_agent", "placement_traits", "benchmarks", "tests")


def _copied(arguments: list[str], _whole: bool) -> None:
    """Files of the checkout that are copied onto a host."""
    for word in arguments[:-1]:
        if word.startswith("etc/") and not list(ROOT.glob(word)):
            raise WrongCommandError(f"{word} is not in the repository")


def _systemctl(arguments: list[str], _whole: bool) -> None:
    for word in arguments:
        if word.startswith(("numa-", "sys-fs")):
            unit = word if "." in word else f"{word}.service"
            if not (ROOT / "etc/systemd" / unit).exists():
                raise WrongCommandError(f"there is no unit {unit}")


PARSERS: Final[dict[str, Reader]] = {
    "numa-ext-engine": _by_argparse("nova_numa_ext.orchestrator.service"),
    "numa-ext-explain": _by_argparse("nova_numa_ext.cli.explain_command"),
    "numa-ext-heal": _by_argparse("nova_numa_ext.cli.heal_command"),
    "numa-ext-manage": _by_argparse("nova_numa_ext.orchestrator.manage"),
    "numa-ext-status": _upgrade,
    "numa-host-agent": _agent,
    "numa-host-agent-ctl": _by_argparse("host_agent.cmd.ctl"),
    "numa-host-agent-helper": _agent,
    "numa-host-agent-lanes": _by_argparse("host_agent.cmd.lanes"),
    "numa-host-agent-leases": _by_argparse("host_agent.cmd.leases"),
    "numa-host-agent-supervisor": _supervisor,
    "openstack": _openstack,
    "make": _make,
    LAB: _lab,
}
CHECKS: Final[dict[str, Reader]] = {
    "pip": _pip,
    "python": _python,
    "python3": _python,
    "cp": _copied,
    "install": _copied,
    "systemctl": _systemctl,
}
"""Programs of others whose arguments name something of ours."""

_ROOT: Final = "changes the machine as root"
_ELSEWHERE: Final = "its program is not among what tests need"
_DATABASE: Final = "needs a MariaDB: tests/functional/jobs/test_manage.py runs it on its own"
NOT_OURS: Final = {
    ".": "sets the shell's own variables",
    "export": "sets the shell's own variables",
    "apparmor_parser": "needs AppArmor in the kernel",
    "apt-get": _ROOT,
    "chown": _ROOT,
    "curl": "asks a running lab",
    "dpkg-buildpackage": "takes minutes: tests/functional/packaging builds the package with it",
    "git": "tags a release, and sends the tag to others",
    "journalctl": "needs systemd as process 1",
    "jq": _ELSEWHERE,
    "kolla-build": _ELSEWHERE,
    "ln": _ROOT,
    "mariadb": _DATABASE,
    "mariadb-dump": _DATABASE,
    "mkdir": _ROOT,
    "numa-rgpu-bench": "needs a device of OpenCL: tests/functional/host_agent/test_pocl.py runs it",
    "pytest": "the tests that it names are run by make test-long",
    "rally": "needs Rally's own environment: make rally runs it",
    "rsync": _ELSEWHERE,
    "runuser": _ROOT,
    "ssh": "needs a second machine",
    "sysctl": _ROOT,
    "systemd-sysusers": _ROOT,
    "systemd-tmpfiles": _ROOT,
    "tc": "needs an adapter with classes of its own",
}
"""Programs of others, each with why no test runs these lines."""


def check(command: Command) -> None:
    """Hold a command against what would read it.

    :raises WrongCommandError: it would be refused, or nothing is known about the program
    """
    program = command.program
    parse = PARSERS.get(program) or CHECKS.get(program)
    if parse is None:
        if program not in NOT_OURS:
            raise WrongCommandError(f"{program} is neither ours nor listed as another's program")
        return
    try:
        parse(list(command.words[1:]), not command.inline)
    except WrongCommandError as error:
        if not (command.inline and _INCOMPLETE in str(error)):
            raise
    except SystemExit as ended:  # --help, --version
        if ended.code:
            raise WrongCommandError(f"ends with {ended.code}") from ended


_NUMBERS: Final = {"--vcpus": "vcpus", "--ram": "ram", "--disk": "disk"}


def flavor_of(command: Command) -> SimpleNamespace:
    """The flavor that a command makes, as openstacksdk shows it."""
    words = command.words[3:]
    pairs = list(pairwise(words))
    numbers = {name: int(value) for option, value in pairs if (name := _NUMBERS.get(option))}
    specs = dict(value.split("=", 1) for option, value in pairs if option == "--property")
    (name,) = {word for before, word in pairs if "--" not in word and not before.startswith("--")}
    return SimpleNamespace(name=name, extra_specs=specs, **numbers)
