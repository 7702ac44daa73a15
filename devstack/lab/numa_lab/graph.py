# SPDX-License-Identifier: Apache-2.0
"""Run steps side by side as soon as what they need is done."""

import graphlib
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One step: what to call and the names of the tasks that must be done before."""

    action: Callable[[], None]
    after: tuple[str, ...] = ()


def run(tasks: Mapping[str, Task], workers: int = 8) -> None:
    """Run all tasks, each after those it names, others at the same time.

    When one fails, no further one is begun; those under way are waited for, then the first error is raised.

    :raises graphlib.CycleError: tasks wait for each other.
    """
    sorter = graphlib.TopologicalSorter({name: task.after for name, task in tasks.items()})
    sorter.prepare()
    running: dict[Future[None], str] = {}
    errors: list[BaseException] = []
    with ThreadPoolExecutor(workers) as pool:
        while True:
            if not errors:
                for name in sorter.get_ready():
                    running[pool.submit(tasks[name].action)] = name
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                name = running.pop(future)
                error = future.exception()
                if error is None:
                    sorter.done(name)
                else:
                    errors.append(error)
    if errors:
        raise errors[0]
