# SPDX-License-Identifier: Apache-2.0
"""One real NVIDIA GPU under a lease's server: OpenCL, slices, MPS and a checkpoint of CUDA

For a machine with a GPU, without a network, in less than ten minutes. Without a GPU it says so and measures nothing.
Each part that cannot be measured there is named with its reason, and the others go on:

``opencl``      the GPU's own OpenCL: round trips and copies, in the process, and through ``pocld`` on 127.0.0.1 with
                the layer of slices; a slice holds; a killed server is an error
``mps``         what a CUDA process gets under ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``: a slice that MPS enforces
``checkpoint``  two processes with CUDA memory each, suspended and resumed by ``cuda-checkpoint``: how long each takes,
                and whether their memory is what it was

Processes that use CUDA do so by ``libcuda`` itself. This has not been run on a GPU: no such machine was to be had. A
test runs ``mps`` and ``checkpoint`` with stand-ins for driver and tools.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks import report
from benchmarks.bench_rgpu import ENDS_S, VENDORS, Pocl, computing, pocl_server

MIB: Final = 1 << 20
HELD_MIB: Final = 256
LIMIT_MIB: Final = 1024
LIBRARY: Final = "nvidia"
FIRST: Final = "0"
CHECKPOINT: Final = "cuda-checkpoint"
MPS: Final = "nvidia-cuda-mps-control"
PATTERN: Final = 0x5A17C0DE


class CannotMeasureError(Exception):
    """Why a part is left out here."""


class Cuda:
    """A context of the first device, by the driver's own library.

    :raises CannotMeasureError: there is no driver, or no device
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CannotMeasureError(f"CUDA's driver is not here: {error}") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
        self._device = device

    def name(self) -> str:
        """Return what the GPU and its driver are."""
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self._call("cuDeviceGetName", name, len(name), self._device)
        self._call("cuDriverGetVersion", ctypes.byref(version))
        major, minor = divmod(version.value, 1000)
        return f"{name.value.decode()}, CUDA {major}.{minor // 10}"

    def take(self, size: int) -> int | None:
        """Return the address of memory of the device, None where it gives none."""
        address = ctypes.c_uint64()
        status = self._library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        return None if status else address.value

    def fill(self, address: int, words: int) -> None:
        """Fill memory with the pattern."""
        self._call("cuMemsetD32_v2", ctypes.c_uint64(address), PATTERN, ctypes.c_size_t(words))
        self._call("cuCtxSynchronize")

    def is_filled(self, address: int, words: int) -> bool:
        """Return whether memory holds the pattern, all of it."""
        found = (ctypes.c_uint32 * words)()
        self._call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(address), ctypes.c_size_t(words * 4))
        return bytes(found) == PATTERN.to_bytes(4, "little") * words

    def _call(self, name: str, *words: object) -> None:
        status = getattr(self._library, name)(*words)
        if status:
            raise CannotMeasureError(f"{name} fails with {status}")


def hold() -> None:
    """Hold memory of the device; a line asks whether it is what it was."""
    cuda, words = Cuda(), HELD_MIB * MIB // 4
    address = cuda.take(words * 4)
    if address is None:
        raise CannotMeasureError(f"the GPU has no {HELD_MIB} MiB left")
    cuda.fill(address, words)
    print("held", flush=True)
    for _line in sys.stdin:
        print("right" if cuda.is_filled(address, words) else "WRONG", flush=True)


def show() -> None:
    """Print which GPU it is."""
    print(Cuda().name(), flush=True)


def take_all() -> None:
    """Print how many MiB of the device a process gets."""
    cuda, taken = Cuda(), 0
    while taken < 4 * LIMIT_MIB and cuda.take(MIB) is not None:
        taken += 1
    print(taken, flush=True)


def as_process(part: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a part of this program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "--as", part],
        env=os.environ | (environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(part: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a part of this program to its end; return what it says.

    :raises CannotMeasureError: it fails, as it says itself
    """
    with as_process(part, environment) as process:
        try:
            said, why = process.communicate(timeout=ENDS_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise CannotMeasureError(f"{part} does not end in {ENDS_S:.0f} s") from error
    if process.returncode != 0:
        lines = why.strip().splitlines() or [f"{part} ended with {process.returncode}"]
        raise CannotMeasureError(lines[-1])
    return said.strip()


def asked(process: subprocess.Popen[str], line: str = "") -> str:
    """Return the next line of a process, after it was sent one."""
    if line:
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


def opencl(pocl: Pocl | None) -> dict[str, float]:
    """Measure the GPU's OpenCL in the process and through ``pocld``."""
    if pocl is None:
        raise CannotMeasureError("--pocl is not given: what lab pocl prints")
    named = [each for each in VENDORS.glob("*.icd") if LIBRARY in each.read_text()]
    if not named:
        raise CannotMeasureError(f"{VENDORS} does not name NVIDIA's OpenCL")
    with tempfile.TemporaryDirectory() as name, ExitStack() as open_:
        vendors = Path(name, "vendors")
        vendors.mkdir()
        shutil.copy(named[0], vendors)
        own = subprocess.run(
            [pocl.bench],
            env=os.environ | {"OCL_ICD_VENDORS": str(vendors)},
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            check=True,
        )
        # The first of NVIDIA's devices; its driver gives none of another name.
        server, port = open_.enter_context(
            pocl_server(pocl, Path(name, "pocld"), vendors, gpu=FIRST)
        )
        remote = json.loads(computing(pocl, port).communicate(timeout=ENDS_S)[0])
        took = json.loads(
            computing(pocl, port, "-a", 64 * MIB, "-n", 16).communicate(timeout=ENDS_S)[0]
        )
        works = computing(pocl, port, "-t", 60)
        asked(works)
        server.send_signal(signal.SIGKILL)
        works.communicate(timeout=ENDS_S)
    local = json.loads(own.stdout)
    names = [each for each in local if each != "device"]
    return {
        **{f"opencl_{each}": local[each] for each in names},
        **{f"pocl_{each}": remote[each] for each in names},
        "pocl_slice_mib_of_512": took["taken"] * 64,
        "pocl_status_when_killed": works.returncode,
    }


def mps() -> dict[str, float]:
    """Measure what a CUDA process gets under a limit of MPS."""
    control = shutil.which(MPS)
    if control is None:
        raise CannotMeasureError(f"{MPS} is not here")
    with tempfile.TemporaryDirectory() as folder:
        environment = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], env=os.environ | environment, check=True)
        try:
            limit = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT_MIB}M"}
            bound = ended("take_all", environment | limit)
            free = ended("take_all", environment)
        finally:
            subprocess.run(
                [control], input="quit\n", text=True, env=os.environ | environment, check=False
            )
    return {"mps_limit_mib": LIMIT_MIB, "mps_taken_mib": int(bound), "mps_free_mib": int(free)}


def checkpoint() -> dict[str, float]:
    """Measure how long CUDA of two processes takes to be suspended and resumed."""
    program = shutil.which(CHECKPOINT)
    if program is None:
        raise CannotMeasureError(f"{CHECKPOINT} is not here")
    figures: dict[str, float] = {"checkpoint_mib": HELD_MIB, "checkpoint_wrong_results": 0}
    holders = [as_process("hold") for _ in range(2)]
    try:
        if [asked(each) for each in holders] != ["held", "held"]:
            why = [each.stderr.read().strip() for each in holders if each.poll() is not None]
            raise CannotMeasureError(f"the GPU is not used by two processes at once: {why}")
        for step in ("suspend", "resume"):
            for number, each in enumerate(holders, 1):
                begun_s = time.monotonic()
                subprocess.run([program, "--toggle", "--pid", str(each.pid)], check=True)
                figures[f"checkpoint_{step}_{number}_s"] = time.monotonic() - begun_s
        answers = [asked(each, "right?") for each in holders]
        figures["checkpoint_wrong_results"] = sum(answer != "right" for answer in answers)
    finally:
        for each in holders:
            each.kill()
            each.wait()
    return figures


def main() -> None:
    """Measure each part that can be measured here."""
    parser = report.parser(__doc__)
    parser.add_argument(
        "--pocl",
        type=Path,
        nargs=4,
        metavar=("SERVER", "VENDORS", "LAYER", "BENCH"),
        help="what lab pocl prints",
    )
    own = {"hold": hold, "show": show, "take_all": take_all}
    parser.add_argument("--as", dest="part", choices=tuple(own), help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        if args.part:
            own[args.part]()
            return
        gpu = ended("show")
    except CannotMeasureError as error:
        raise SystemExit(str(error) if args.part else f"no NVIDIA GPU here: {error}") from error
    report.progress(gpu)
    pocl = Pocl(*args.pocl) if args.pocl else None
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "opencl": lambda: opencl(pocl),
        "mps": mps,
        "checkpoint": checkpoint,
    }
    figures: dict[str, float] = {}
    left_out = {}
    for name, part in parts.items():
        report.progress(name)
        try:
            figures |= part()
        except (
            CannotMeasureError,
            OSError,
            SystemExit,  # of pocl_server
            ValueError,
            subprocess.SubprocessError,
        ) as error:
            left_out[name] = str(error)
            report.progress(f"  left out: {error}")
    report.finish("rgpu_device", "measured", figures, {"gpu": gpu, "left_out": left_out}, args.json)


if __name__ == "__main__":
    main()
