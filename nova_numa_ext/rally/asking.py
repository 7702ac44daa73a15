# SPDX-License-Identifier: Apache-2.0
"""Commands that answer in JSON: how a task reads back a host, or asks why a server is where it is.

A task names them, because only the operator knows how to get to a host: ``ssh {host} python3 readback.py`` in most
clouds, ``lab shell {host} ...`` in the lab.
"""

import json
import shlex
import subprocess
from typing import Any

from placement_traits.errors import InvalidValueError, NumaExtError


class NoAnswerError(NumaExtError):
    """A command failed, took too long, or did not print JSON."""


def words_of(command: str, **values: str) -> list[str]:
    """Return a command's words with ``{name}`` filled in; a value is never taken apart.

    :raises InvalidValueError: an unknown name, or quotation marks that do not close
    """
    try:
        return [word.format(**values) for word in shlex.split(command)]
    except (KeyError, IndexError, ValueError) as error:
        allowed = f"words with {', '.join('{' + name + '}' for name in values)} ({error!r})"
        raise InvalidValueError("command", command, allowed) from error


def ask(command: str, timeout_s: float, **values: str) -> Any:
    """Run a command, without a shell, and return the JSON that it prints.

    :param values: what stands in it for ``{name}``
    :raises InvalidValueError: the command cannot be filled in
    :raises NoAnswerError: in one sentence
    """
    words = words_of(command, **values)
    line = shlex.join(words)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise NoAnswerError(f"not done after {timeout_s:g} s: {line}") from error
    except OSError as error:
        raise NoAnswerError(f"{line}: {error}") from error
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[-400:]
        raise NoAnswerError(f"{line}: exit status {done.returncode}: {output}")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise NoAnswerError(f"{line} did not print JSON: {error}") from error
