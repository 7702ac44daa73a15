# SPDX-License-Identifier: Apache-2.0
"""Elastic groups with engines that are processes, killed at each step of a member, and hooks that are programs."""

import signal
import time
from contextlib import ExitStack

import pytest
from sqlalchemy import select

from nova_numa_ext.orchestrator.store import tables
from tests.support.compute_over_http import served
from tests.support.elastic_world import ElasticWorld
from tests.support.engine_process import started

TERM_S = 3.0
SCALED_S = 120.0
STEPS = ("asked", "building", "adding", "joining", "draining", "deleting")
HIGH, LOW = 450.0, 90.0  # reads per second: five members, and three
LIFE = ["add", "ready", "drain", "delete"]
# Not done at the first calls, so that each step lasts for some rounds.
HOOK = """#!/bin/sh
echo "$1 $2" >> "{log}"
[ "$(grep -c "^$1 $2\\$" "{log}")" -ge 3 ] || exit 75
"""


class ElasticProcesses:
    """An elastic group, and engines as processes of which each is started again under another name::

        engine process 1 … n ──► jobs.db (SQLite)
                │    └─────────► web.csv, hooks/hook
                └──────────────► HTTP ──► ComputeApi of ElasticWorld, which checks each write

    :ivar killed: steps at which an engine was killed
    """

    def __init__(self, folder, stack):
        self.world = ElasticWorld(folder)
        self.folder, self.killed, self.engines = folder, [], {}
        self.log = folder / "hook.log"
        self.log.touch()
        (folder / "hooks").mkdir()
        hook = folder / "hooks" / "hook"
        hook.write_text(HOOK.format(log=self.log))
        hook.chmod(0o755)
        self.url = stack.enter_context(served(self.world.api, lambda _asked: None))
        self._stack = stack
        for _ in range(2):
            self.start()

    def start(self):
        name = f"engine{len(self.engines)}"
        url = f"sqlite:///{self.folder}/jobs.db"
        process = started(url, self.url, name, TERM_S, str(self.folder))
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.engines[f"{name}-1"] = process

    def kill(self):
        """SIGKILL for the engine that leads, and another one is started; False where it is dead already."""
        with self.world.database.transaction() as connection:
            holder = connection.execute(select(tables.leader.c.holder)).scalar_one()
        process = self.engines[holder]
        if process.poll() is not None:
            return False
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        self.start()
        return True

    def events(self, server):
        """What a hook was called for, in order, calls that came again left out."""
        calls = [line.split() for line in self.log.read_text().splitlines()]
        return list(dict.fromkeys(event for event, about in calls if about == server))

    def under(self, total, added):
        """Have a load until so many members were added, with a kill where a step is seen first."""
        world, measured_at = self.world, 0.0
        deadline = time.monotonic() + SCALED_S
        while len(world.ours()) != added or world.steps() != ["joined"] * added:
            assert time.monotonic() < deadline, (world.steps(), world.log(), world.group.trouble)
            if time.monotonic() > measured_at + 1.0:
                world.tell(total / len(world.there()))
                measured_at = time.monotonic()
            new = next((each for each in STEPS if each in world.steps()), None)
            if new is not None and new not in self.killed and self.kill():
                self.killed.append(new)
            time.sleep(0.01)


@pytest.mark.long
def test_engines_killed_at_each_step_lose_double_and_leave_no_server(tmp_path):
    """Issue 21, point 6, over a nova of the tests: SIGKILL, another engine goes on when the term is over."""
    with ExitStack() as stack:
        group = ElasticProcesses(tmp_path, stack)
        world = group.world
        group.under(HIGH, 2)
        kept = world.ours()
        tagged = {each for each, shown in world.api.there().items() if shown["tags"]}
        assert tagged == kept, "no duplicate, no orphan"
        for server in kept:
            assert group.events(server) == ["add", "ready"]
        group.under(LOW, 0)
        assert world.there() == set(world.users)
        assert world.foreign in world.api.there()
        for server in kept:
            assert group.events(server) == LIFE
        assert sorted(group.killed) == sorted(STEPS)
        assert world.broken == []
