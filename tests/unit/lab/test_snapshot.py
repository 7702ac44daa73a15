# SPDX-License-Identifier: Apache-2.0
"""Hosts go on with the saved state of a machine that was booted once, and only with one that fits."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from numa_lab import snapshot
from numa_lab.emulated_machine import Machine, Shape, Share, usual_shape
from numa_lab.qemu_build import Qemu
from numa_lab.terminal import Progress

# Stands for QEMU: says on its console what guest/init would, and answers on its monitor.
QEMU = """\
#!{python}
import json, pathlib, socket, subprocess, sys
server = socket.socket(socket.AF_UNIX)
server.bind("monitor.sock")
server.listen()
pathlib.Path("console.log").write_text("numa-lab: ready to be saved\\n")
connection, _ = server.accept()
stream = connection.makefile("rw")
def say(**words):
    print(json.dumps(words), file=stream, flush=True)
say(QMP={{}})
for line in stream:
    asked = json.loads(line)
    if asked["execute"] == {refused!r}:
        say(error={{"desc": "no"}})
        continue
    if asked["execute"] == "migrate":
        subprocess.run(asked["arguments"]["uri"].removeprefix("exec:"), shell=True, input=b"state")
    say(event="SOMETHING")
    say(**{{"return": {{"status": "completed"}}}})
"""


def machine_of(settings, index: int, refused: str = "") -> Machine:
    qemu = settings.lab / "qemu"
    qemu.write_text(QEMU.format(python=sys.executable, refused=refused))
    qemu.chmod(0o755)
    return Machine(
        name=f"h{index + 1}",
        qemu=Qemu(qemu, has_rdt=True),
        kernel=Path("/cache/vmlinuz"),
        initramfs=Path("/cache/initramfs"),
        shape=usual_shape(index),
        shares=(Share("share", settings.hosts / f"h{index + 1}", writable=True),),
        image=Path("/lab/venv.erofs"),
        ssh_port=21020 + index,
        peer_port=21021,
        tsc_khz=2_596_150,
    )


def provide(settings, machine: Machine) -> str:
    said = io.StringIO()
    (settings.lab / "images").mkdir(exist_ok=True)
    snapshot.provide(settings, Progress(said), machine)
    return said.getvalue()


def test_all_usual_hosts_go_on_with_one_saved_state(settings):
    first, second = machine_of(settings, 0), machine_of(settings, 1)
    assert snapshot.find(settings, first) is None
    provide(settings, first)
    state = snapshot.find(settings, second)
    assert state is not None and state.read_bytes() == b"state"
    assert snapshot.find(settings, first) == state
    assert not snapshot.process(settings).alive()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": Shape(sockets=4)},
        {"shape": Shape(cpus_per_node=2)},
        {"shape": Shape(node_memory_mb=1000)},
        {"shape": Shape(gpu_nodes=(0,) * 5)},
        {"kernel": Path("/cache/other")},
        {"initramfs": Path("/cache/other")},
        {"image": Path("/lab/other.erofs")},
        {"qemu": Qemu(Path("/usr/bin/qemu"), has_rdt=False)},
        {"threads": "single"},
        {"tsc_khz": 2_600_000},
        {"tsc_khz": None},
    ],
)
def test_a_host_that_is_otherwise_made_does_not(settings, change):
    machine = machine_of(settings, 0)
    provide(settings, machine)
    assert snapshot.find(settings, machine)
    assert snapshot.find(settings, replace(machine, **change)) is None


def test_a_frequency_that_was_measured_again_is_the_same(settings):
    machine = machine_of(settings, 0)
    provide(settings, machine)
    assert snapshot.find(settings, replace(machine, tsc_khz=2_596_149))


def test_it_is_made_once_and_takes_the_place_of_others(settings):
    machine = machine_of(settings, 0)
    provide(settings, machine)
    assert provide(settings, machine) == ""
    provide(settings, replace(machine, kernel=Path("/cache/other")))
    assert snapshot.find(settings, machine) is None


def test_without_it_hosts_boot_and_it_is_noted(settings):
    machine = machine_of(settings, 0, refused="migrate")
    assert "was not saved: QEMU refuses migrate: no" in provide(settings, machine)
    assert snapshot.find(settings, machine) is None
    assert not snapshot.process(settings).alive()


def test_what_is_saved_has_nothing_of_a_host(settings):
    machine = machine_of(settings, 1)
    words = " ".join(machine.nameless(Path("/empty")).command())
    assert "h2" not in words and "21021" in words and "21020" not in words
    assert str(settings.hosts) not in words
    assert words.count("pci-testdev") == 8 and "pvpanic" not in words


def test_what_init_waits_for_and_says_is_what_the_lab_does(settings):
    init = (settings.source / "guest" / "init").read_text()
    assert f'say "{snapshot._READY.removeprefix("numa-lab: ")}"' in init
    (name,) = [
        words for words in machine_of(settings, 0).nameless(Path("/")).command() if "opt/" in words
    ]
    assert name.partition("string=")[2].split() == ["-"] and '[ "$name" = - ]' in init
