# SPDX-License-Identifier: Apache-2.0
"""What README.md tells to type works."""

import re
import subprocess
import warnings

from numa_lab.show import MADE_AGAIN

from tests.integration.cloud import CHECKOUT, LabCloud

README = (CHECKOUT / "README.md").read_text()

# What an answer speaks of, by the last word of the question.
ANSWERS = {"list": "h1", "lc1": "lc.small", "lc.small": "ok", "status": "rdt_group"}


def commands() -> list[str]:
    """The lines of the block that README.md offers to start with."""
    _, _, rest = README.partition("Some commands to start with")
    block = re.search(r"```\n(.*?)```", rest, re.DOTALL)
    assert block is not None
    return block[1].strip().splitlines()


def test_the_commands_to_start_with_work(cloud: LabCloud) -> None:
    """After the show, each command answers and speaks of what it was asked for."""
    shown = subprocess.run(
        [cloud.settings.command, "show"],
        cwd=CHECKOUT,
        check=False,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert shown.returncode == 0, f"show: {shown.stdout}{shown.stderr}"
    for line in shown.stdout.splitlines():
        if MADE_AGAIN in line:
            warnings.warn(line, stacklevel=1)
    heads = re.findall(r"^server .*$", README, re.MULTILINE)
    assert heads and heads[0].split() == next(
        line.split() for line in shown.stdout.splitlines() if line.startswith("server ")
    ), "the table in README.md has other columns than the show's"
    credentials, *rest = commands()
    credentials = credentials.replace(".lab/openrc", f"{cloud.settings.lab}/openrc")
    for command in rest:
        done = subprocess.run(
            ["bash", "-c", f"{credentials} && {command}"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        word = ANSWERS[command.split()[-1]]
        assert word in done.stdout, f"{command} says nothing of {word}: {done.stdout}"


def test_the_make_targets_exist() -> None:
    """Each ``make TARGET`` that README.md names is one that ``make help`` lists."""
    listed = subprocess.run(
        ["make", "help"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    ).stdout
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"make {target}\s", listed), f"make {target} is not in make help"
