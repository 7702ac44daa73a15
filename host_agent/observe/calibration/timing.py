# SPDX-License-Identifier: Apache-2.0
"""Bandwidths by timing: a random traversal in one process per CPU, batch by batch, each batch on one node.

The processes of all workers run at the same time and visit all nodes equally often in random order, so the memory
system is loaded as by evenly spread data; the time that each batch took shows how fast *its* node serves *this* CPU
meanwhile. That needs no hardware counters, which many machines and all virtual ones lack (where they are there,
:mod:`.counters` watches the readers). The traversal is numpy's gather of independent addresses (a
compiled loop without the interpreter), one per cache line: nothing has to be built on a compute host.

Processes instead of threads: the interpreter's lock would be measured, too. They only read what the parent has filled,
so the pages stay where it put them. Their own CPU time counts: waiting for memory is in it, waiting for a CPU is not.
"""

import ctypes
import mmap
import multiprocessing
import os
import platform
import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from host_agent.machine.privileged.syscalls import PAGE, Syscalls
from host_agent.model.traffic import NodeBandwidth
from placement_traits.errors import CapabilityMissingError

_MBIND: Final = {"x86_64": 237, "aarch64": 235}
_MPOL_BIND: Final = 2
_MASK_BITS: Final = 1024
_LINE: Final = 64
_WORDS: Final = _LINE // 8
_LEAST_PLACED: Final = 0.95
_CHECKED_PAGES: Final = 256

Memory = npt.NDArray[np.uint64]

Watch = Callable[[Sequence[int], float], None]
"""Called with the pids of all readers once they read, and how many seconds they go on."""


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """How long and how much.

    :param megabytes: memory per node, MiB
    :param seconds: per measurement
    :param cpus_per_node: CPUs of each worker that take part, 0 for all
    :param batch_lines: cache lines per timed batch
    """

    megabytes: int = 256
    seconds: float = 2.0
    cpus_per_node: int = 0
    batch_lines: int = 65536


class TimingProfiler:
    """A :class:`~host_agent.control.calibration.Profiler` by timing.

    :param cpus_of_node: node -> its CPUs
    :param settings: how long and how much
    """

    def __init__(self, cpus_of_node: Mapping[int, Sequence[int]], settings: TimingSettings) -> None:
        self._cpus_of_node = cpus_of_node
        self._settings = settings

    method = "timing"

    def profile(
        self,
        workers: Collection[int],
        nodes: Collection[int],
        watch: Watch = lambda _readers, _seconds: None,
    ) -> NodeBandwidth:
        """Measure; see :class:`~host_agent.control.calibration.Profiler`.

        :raises CapabilityMissingError: memory or CPUs are not where they were asked for
        """
        settings = self._settings
        most = settings.cpus_per_node or None
        worker_of = {cpu: node for node in workers for cpu in self._cpus_of_node[node][:most]}
        rates: dict[int, dict[int, float]] = {node: defaultdict(float) for node in nodes}
        with ExitStack() as stack:
            memory = {
                node: stack.enter_context(memory_on(node, settings.megabytes << 20))
                for node in nodes
            }
            for cpu, speeds in _all_at_once(sorted(worker_of), memory, settings, watch).items():
                for node, mbps in speeds.items():
                    rates[node][worker_of[cpu]] += mbps
        return {node: dict(to_worker) for node, to_worker in rates.items()}


@contextmanager
def memory_on(node: int, size: int) -> Iterator[Memory]:
    """Yield filled memory on one node, in huge pages where there are some.

    :raises CapabilityMissingError: the kernel put it elsewhere
    """
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    words: Memory | None = np.frombuffer(area, dtype=np.uint64)
    try:
        assert words is not None
        _bind(words.ctypes.data, size, node)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            _advise(area)
        words[:] = 1
        _check_placed(words, node)
        yield words
    finally:
        words = None  # the area cannot be closed while an array looks into it
        _close(area)


def _advise(area: mmap.mmap) -> None:
    try:
        area.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return  # the kernel has none: small pages do as well


def _close(area: mmap.mmap) -> None:
    try:
        area.close()
    except BufferError:
        return  # an array is still held: freed with it


def _bind(address: int, size: int, node: int) -> None:
    mask = (ctypes.c_ulong * (_MASK_BITS // 64))()
    mask[node // 64] = 1 << (node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(
        _MBIND[platform.machine()],
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_int(_MPOL_BIND),
        mask,
        ctypes.c_ulong(_MASK_BITS),
        ctypes.c_uint(0),
    )
    if failed:
        reason = os.strerror(ctypes.get_errno())
        raise CapabilityMissingError(f"memory cannot be bound to node {node}: {reason}")


def _check_placed(words: Memory, node: int) -> None:
    step = max(PAGE, words.nbytes // _CHECKED_PAGES // PAGE * PAGE)
    start = words.ctypes.data
    pages = array("Q", range(start, start + words.nbytes, step))
    there = sum(found == node for found in Syscalls().locate(os.getpid(), pages))
    if there < _LEAST_PLACED * len(pages):
        raise CapabilityMissingError(
            f"only {there} of {len(pages)} sampled pages are on node {node}: is the memory cgroup or cpuset limited?"
        )


# -- traversal ---------------------------------------------------------------------------------------------------------


def _all_at_once(
    cpus: Sequence[int], memory: Mapping[int, Memory], settings: TimingSettings, watch: Watch
) -> dict[int, dict[int, float]]:
    """Let one process per CPU traverse all memory at the same time; return CPU -> node -> MB/s."""
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(len(cpus))
    running = []
    for cpu in cpus:
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(
            target=_traverse, args=(cpu, memory, settings, start, theirs), daemon=True
        )
        process.start()
        theirs.close()
        running.append((cpu, process, ours))
    readers = [_answer(cpu, ours) for cpu, _, ours in running]
    watch(readers, settings.seconds)
    speeds = {}
    for cpu, process, ours in running:
        speeds[cpu] = _answer(cpu, ours)
        process.join()
    return speeds


def _answer(cpu: int, reader: Connection) -> Any:
    try:
        return reader.recv()
    except EOFError as error:
        raise CapabilityMissingError(f"nothing was measured on CPU {cpu}") from error


def _traverse(
    cpu: int, memory: Mapping[int, Memory], settings: TimingSettings, start: Any, answer: Connection
) -> None:
    """Run in a process of its own: send the pid, time batches until the time is over, send node -> MB/s."""
    os.sched_setaffinity(0, {cpu})
    chance = random.Random(cpu)
    half = min(words.size for words in memory.values()) // _WORDS // 2
    # Half of the memory from a random line on: other lines in every batch, though the addresses are drawn once.
    chosen = np.random.default_rng(cpu).integers(0, half, settings.batch_lines) * _WORDS
    into = np.empty(settings.batch_lines, dtype=np.uint64)
    spent_ns, batches = dict.fromkeys(memory, 0), dict.fromkeys(memory, 0)
    start.wait()
    answer.send(os.getpid())
    end_ns = time.perf_counter_ns() + int(settings.seconds * 1e9)
    while time.perf_counter_ns() < end_ns or not all(batches.values()):
        for node in chance.sample(sorted(memory), len(memory)):
            first = chance.randrange(half) * _WORDS
            began_ns = time.thread_time_ns()
            np.take(memory[node][first:], chosen, out=into, mode="wrap")
            spent_ns[node] += time.thread_time_ns() - began_ns
            batches[node] += 1
    bytes_per_batch = settings.batch_lines * _LINE
    answer.send({node: batches[node] * bytes_per_batch / spent_ns[node] * 1000 for node in memory})
