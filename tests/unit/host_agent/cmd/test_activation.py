# SPDX-License-Identifier: Apache-2.0
"""Who holds the helper's socket starts the helper: again at once when it has failed, but not with the same mistake."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import pytest

from host_agent.cmd.activation import RESTART_S, Activation
from host_agent.machine.privileged import client
from placement_traits.errors import InvalidValueError

PATIENCE_S = 30.0

Make = Callable[..., Activation]


@pytest.fixture
def activate(tmp_path: Path) -> Iterator[Make]:
    made: list[Activation] = []

    def make(*command: str) -> Activation:
        made.append(Activation(command, tmp_path / "socket"))
        return made[-1]

    yield make
    for one in made:
        one.stop(graceful=True)


def ended(activation: Activation, now: float) -> None:
    """Wait until it has taken note of the helper's end."""
    end = time.monotonic() + PATIENCE_S
    while activation._process is not None:
        assert time.monotonic() < end
        activation.turn(now, [])
        time.sleep(0.01)


@pytest.mark.parametrize(("status", "due"), [(0, inf), (1, 100.0 + RESTART_S), (os.EX_CONFIG, inf)])
def test_only_a_helper_that_could_do_better_is_started_again_by_itself(
    activate: Make, tmp_path: Path, status: int, due: float
) -> None:
    """One with a mistake in its configuration was started each second for ever, with an error line each."""
    activation = activate("/bin/sh", "-c", f"exit {status}")
    (descriptor,) = activation.watched()
    activation.turn(100.0, [descriptor])
    assert activation.watched() == []
    ended(activation, 100.0)
    assert activation.due == due
    assert activation.watched() == ([descriptor] if due == inf else [])


def test_a_helper_that_cannot_use_its_configuration_says_so_to_its_clients(
    activate: Make, tmp_path: Path
) -> None:
    """They neither wait for it nor start it again and again."""
    (tmp_path / "helper").mkdir(mode=0o700)
    (tmp_path / "helper").chmod(0o777)
    config = tmp_path / "agent.conf"
    config.write_text(f"[helper]\nstate_dir = {tmp_path}/helper\n")
    command = (sys.executable, "-m", "host_agent.cmd.helper", f"--config-file={config}")
    activation = activate(*command)
    activation.turn(0.0, activation.watched())
    way = client.over_socket(tmp_path / "socket")
    for _again in range(3):
        with pytest.raises(InvalidValueError, match=r"\[helper\]state_dir"):
            way.in_control()
    with socket.socket(socket.AF_UNIX) as silent:  # keeps the others waiting for a moment only
        silent.connect(str(tmp_path / "socket"))
        with pytest.raises(InvalidValueError, match=r"\[helper\]state_dir"):
            way.in_control()
    activation.turn(1.0, [])
    assert activation.watched() == [], "one helper has answered all"
