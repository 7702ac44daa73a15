# SPDX-License-Identifier: Apache-2.0
"""The link of remote GPUs: its own tests, and its frames against the codec in Python."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from numa_lab import link_build

from tests.support.built_link import built_link, cached_link, settings
from tests.support.link_frames import random_frame, verdict

FRAMES = 10_000


def run_tests(program: Path, *words: str, **environment: str) -> str:
    """Run the link's tests; return what they print."""
    ran = subprocess.run(
        [program, "-test.timeout=200s", *words],
        env=os.environ | environment,
        cwd=program.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    return ran.stdout


def test_the_program_needs_no_library_and_says_its_commands() -> None:
    program = cached_link() / link_build.PROGRAM
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.split()[2]) == (2, "guest|doorman|gateway|hold|send|receive")
    assert b"/ld-linux" not in program.read_bytes()


def test_the_link_passes_its_own_tests() -> None:
    run_tests(cached_link() / "link.test", "-test.short")


def test_both_codecs_say_the_same_of_random_frames(tmp_path: Path) -> None:
    program = cached_link() / "link.test"
    draw = random.Random(19)
    ours, theirs = tmp_path / "python.jsonl", tmp_path / "go.jsonl"
    lines = [verdict(random_frame(draw)) for _ in range(FRAMES)]
    accepted = sum(line["fields"] is not None for line in lines)
    assert FRAMES // 10 < accepted < FRAMES  # both answers are compared
    ours.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {"LINK_FRAMES_READ": str(ours), "LINK_FRAMES_WRITE": str(theirs)}
    run_tests(program, "-test.run=TestBothCodecsAgree", **files)
    for line in theirs.read_text().splitlines():
        found = json.loads(line)
        assert verdict(bytes.fromhex(found["bytes"])) == found


@pytest.mark.long
@pytest.mark.parametrize(
    "tests", ["^TestAMillion", "^(Fuzz|Test([^A]|A[^M]|AM[^i]))"], ids=["frames", "others"]
)
def test_the_link_passes_all_its_tests_with_the_race_detector(tests: str) -> None:
    """A million random frames, as many by real connections; streams that are cut as they come up, and all else."""
    built_link()
    go("test", "-race", "-timeout=270s", f"-run={tests}", ".")


@pytest.mark.long
@pytest.mark.parametrize("target", ["FuzzFrame", "FuzzSession", "FuzzHandover", "FuzzImages"])
def test_what_a_peer_may_send_is_obeyed_or_refused(target: str) -> None:
    """Go's fuzzer for half a minute each."""
    built_link()
    # Without a limit, most of that time goes into making what was found shorter.
    short = "-fuzzminimizetime=1x"
    go("test", "-run=^$", f"-fuzz=^{target}$", "-fuzztime=30s", short, ".")


def go(*words: str) -> None:
    """Run the compiler's program; the race detector needs C."""
    lab = settings()
    ran = subprocess.run(
        [link_build.GO, *words],
        env=link_build.environment(lab) | {"CGO_ENABLED": "1"},
        cwd=link_build.source(lab),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
