# SPDX-License-Identifier: Apache-2.0
"""The script for one NVIDIA GPU: without one it says so; with stand-ins for driver and tools it comes to its end.

What the stand-ins do says nothing of a GPU: memory is the process's, a limit of MPS is kept by them, and a checkpoint
is a mark. Seen is that the script asks them as they want to be asked, and counts what they answer.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# The driver's functions that are used, by NVIDIA's "CUDA Driver API".
_DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static size_t left = (size_t)1 << 40;
int cuInit(unsigned flags)
{
  const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
  size_t mib;
  if (limit != NULL && getenv("CUDA_MPS_PIPE_DIRECTORY") != NULL && sscanf(limit, "0=%zuM", &mib) == 1)
    left = mib << 20;
  return flags != 0;
}
int cuDeviceGet(int *device, int number) { *device = number; return number != 0; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stand-in %d", device); return 0; }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { *context = &left; return flags != 0 || device != 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size)
{
  if (size > left)
    return 2;
  left -= size;
  *address = (uint64_t)(uintptr_t)malloc(size);
  return 0;
}
int cuMemsetD32_v2(uint64_t address, unsigned value, size_t words)
{
  for (size_t i = 0; i < words; i++)
    ((unsigned *)(uintptr_t)address)[i] = value;
  return 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
  char suspended[64];
  snprintf(suspended, sizeof suspended, "suspended-%d", (int)getpid());
  if (access(suspended, F_OK) == 0)
    return 999;
  memcpy(to, (void *)(uintptr_t)from, size);
  ((char *)to)[0] ^= getenv("SPOILS") != NULL;
  return 0;
}
"""
_CHECKPOINT = """#!/bin/sh
[ "$1 $2" = "--toggle --pid" ] && kill -0 "$3" || exit 1
echo "$3" >> toggled
if [ -e "suspended-$3" ]; then rm "suspended-$3"; else touch "suspended-$3"; fi
"""
_MPS = """#!/bin/sh
[ -n "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 1
case "$1" in -d) ;; "") read word; [ "$word" = quit ] && touch ended;; *) exit 1;; esac
"""

Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Runs it in a folder whose ``lib`` and ``bin`` come first."""

    def ran(**environment: str) -> subprocess.CompletedProcess[str]:
        paths = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{tmp_path}/lib",
            "PYTHONPATH": str(ROOT),
        }
        return subprocess.run(
            [sys.executable, "-m", "benchmarks.bench_rgpu_device"],
            env=os.environ | paths | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return ran


@pytest.fixture
def gpu(tmp_path: Path) -> None:
    """Stand-ins for NVIDIA's driver and tools."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    (tmp_path / "driver.c").write_text(_DRIVER)
    library = tmp_path / "lib/libcuda.so.1"
    words = ("-w", "-shared", "-fPIC", "-o", library, tmp_path / "driver.c")
    subprocess.run([compiler, *words], check=True)
    for name, text in (("cuda-checkpoint", _CHECKPOINT), ("nvidia-cuda-mps-control", _MPS)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)


def test_without_a_gpu_it_says_so_in_one_sentence(script: Script) -> None:
    ran = script()
    assert (ran.returncode, ran.stdout) == (1, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("no NVIDIA GPU here: CUDA's driver is not here: libcuda.so.1")


@pytest.mark.long
@pytest.mark.usefixtures("gpu")
def test_all_that_needs_no_opencl_comes_to_its_end(script: Script, tmp_path: Path) -> None:
    ran = script()
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["source"]["gpu"] == "stand-in 0, CUDA 12.4"
    assert set(found["source"]["left_out"]) == {"opencl"}
    figures = found["figures"]
    assert (figures["mps_taken_mib"], figures["mps_free_mib"]) == (1024, 4096)
    assert (tmp_path / "ended").exists(), "MPS is ended"
    first, second = dict.fromkeys((tmp_path / "toggled").read_text().split())
    assert (tmp_path / "toggled").read_text().split() == [first, second] * 2
    assert figures["checkpoint_wrong_results"] == 0
    assert {"checkpoint_suspend_1_s", "checkpoint_resume_2_s"} <= set(figures)


@pytest.mark.long
@pytest.mark.usefixtures("gpu")
def test_memory_that_is_not_what_it_was_is_counted(script: Script) -> None:
    found = json.loads(script(SPOILS="1").stdout.splitlines()[-1])
    assert found["figures"]["checkpoint_wrong_results"] == 2
