# SPDX-License-Identifier: Apache-2.0
"""Transports that a file declares: the templates become command lines and environments, and nothing else."""

from pathlib import Path

import pytest

from host_agent.transports.declared import DeclaredTransport, read
from host_agent.transports.transport import AttachedGpu, GpuServer
from placement_traits.errors import InvalidValueError

SAMPLES = [
    each
    for each in sorted(
        (Path(__file__).parents[4] / "etc/numa-host-agent/transports").glob("*.sample")
    )
    if not each.name.startswith("pocl.")  # declares no transport
]
LEASE = GpuServer("lease-7", "GPU-8f", 1000, 20000, Path("/run/lease"))
TWO = (AttachedGpu(31000), AttachedGpu(31002))
LEAST = """
name = "mine"
apis = ["cuda"]
slices = "advisory"
[server]
argv = ["/usr/bin/mine", "{port}"]
[guest.device]
"MINE_{j}" = "127.0.0.1:{port}"
"""


def declared(folder: Path, text: str = LEAST) -> DeclaredTransport:
    """Read a file with this text."""
    path = folder / "mine.toml"
    path.write_text(text)
    return read(path)


def sample(name: str) -> DeclaredTransport:
    """Read one of the samples."""
    return read(next(path for path in SAMPLES if path.name == f"{name}.toml.sample"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.split(".")[0])
def test_every_sample_declares_a_transport(path: Path) -> None:
    transport = read(path)
    assert transport.name == path.name.split(".")[0]
    command = transport.server_command(LEASE)
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "GPU-8f"
    assert transport.guest_environment(TWO)
    assert not any("{" in word for word in (*command.argv, *command.environment.values()))


def test_four_devices_of_two_gpus_take_turns() -> None:
    """F-002-41: two GPUs, each as two devices: four devices, device j on GPU j mod 2."""
    assert sample("rcuda").guest_environment(TWO, virtual_per_gpu=2) == {
        "RCUDA_DEVICE_COUNT": "4",
        "RCUDA_DEVICE_0": "127.0.0.1:0",
        "RCUDA_DEVICE_1": "127.0.0.1:1",
        "RCUDA_DEVICE_2": "127.0.0.1:0",
        "RCUDA_DEVICE_3": "127.0.0.1:1",
    }


def test_the_guest_sees_the_gpus_of_its_leases() -> None:
    """F-002-40: the variables match what is allocated."""
    assert sample("rcuda").guest_environment(TWO[:1]) == {
        "RCUDA_DEVICE_COUNT": "1",
        "RCUDA_DEVICE_0": "127.0.0.1:0",
    }
    servers = sample("lupine").guest_environment(TWO)["LUPINE_SERVER"]
    assert servers == "127.0.0.1:31000,127.0.0.1:31002"


def test_words_in_braces_become_the_leases_values(tmp_path: Path) -> None:
    text = LEAST.replace(
        '"{port}"', '"{port}", "{lease}/{gpu}", "{memory_mb}={memory_bytes}", "{folder}", "{{j}}"'
    )
    command = declared(tmp_path, text).server_command(LEASE)
    assert command.argv == (
        *("/usr/bin/mine", "20000", "lease-7/GPU-8f"),
        *("1000=1048576000", "/run/lease", "{j}"),
    )
    assert command.environment == {}


def test_a_value_that_looks_like_a_template_stays_as_it_is(tmp_path: Path) -> None:
    odd = GpuServer("lease-7", "{folder}", 1, 1, Path("/run/{port}"))
    text = LEAST.replace('"{port}"', '"{gpu}", "{folder}"')
    assert declared(tmp_path, text).server_command(odd).argv[1:] == ("{folder}", "/run/{port}")


def test_a_server_serves_when_its_ports_do_or_its_probe_says_so(tmp_path: Path) -> None:
    ports = declared(tmp_path, LEAST.replace("[server]", "ports = 3\n[server]"))
    assert ports.capabilities().ports == 3
    assert ports.server_command(LEASE).probe == ()
    probe = 'probe = ["/usr/bin/ask", "{port}"]\n[guest.device]'
    asked = declared(tmp_path, LEAST.replace("[guest.device]", probe))
    assert asked.server_command(LEASE).probe == ("/usr/bin/ask", "20000")


def test_a_server_that_is_not_installed_is_found(tmp_path: Path) -> None:
    assert "/usr/bin/mine is not there" in declared(tmp_path).findings()[0]
    assert not declared(tmp_path, LEAST.replace("/usr/bin/mine", "/bin/sh")).findings()


def test_a_server_reads_its_program_and_what_the_file_says(tmp_path: Path) -> None:
    assert declared(tmp_path, LEAST).paths() == (Path("/usr/bin/mine"),)
    text = LEAST.replace('"{port}"]', '"{port}"]\npaths = ["/opt/mine", "/sys/class/drm"]')
    reads = (Path("/usr/bin/mine"), Path("/opt/mine"), Path("/sys/class/drm"))
    assert declared(tmp_path, text).paths() == reads


@pytest.mark.parametrize(
    ("replaced", "by", "named"),
    [
        ('name = "mine"', 'name = "Mine!"', "name"),
        ('name = "mine"', "name = 3", "name"),
        ('name = "mine"', "", "name"),
        ('apis = ["cuda"]', 'apis = ["cuda", "vulkan"]', "apis"),
        ('apis = ["cuda"]', 'apis = [["cuda"]]', "apis"),
        ('apis = ["cuda"]', "apis = []", "apis"),
        ('slices = "advisory"', 'slices = "mps"', "slices"),
        ('slices = "advisory"', "", "slices"),
        ("[server]", "ports = true\n[server]", "ports"),
        ("[server]", "ports = 17\n[server]", "ports"),
        ("[server]", "colour = 1\n[server]", "colour"),
        ("[server]", "[server]\nuser = 0", "server.user"),
        ('"/usr/bin/mine"', '"mine"', "server.argv"),
        ('"/usr/bin/mine"', '"/{gpu}"', "server.argv"),
        ('["/usr/bin/mine", "{port}"]', "[]", "server.argv"),
        ('["/usr/bin/mine", "{port}"]', '"/usr/bin/mine"', "server.argv"),
        ('"{port}"]', '"{j}"]', "server.argv"),
        ('"{port}"]', '"{port.real}"]', "server.argv"),
        ('"{port}"]', '"{0}"]', "server.argv"),
        ('"{port}"]', '"{"]', "server.argv"),
        ('"{port}"]', "7]", "server.argv"),
        ('"{port}"]', '"\\u0000"]', "server.argv"),
        ('"{port}"]', '"{port}"]\npaths = "/opt"', "server.paths"),
        ('"{port}"]', '"{port}"]\npaths = ["opt"]', "server.paths"),
        ('"{port}"]', '"{port}"]\npaths = ["/"]', "server.paths"),
        ('"{port}"]', '"{port}"]\npaths = ["/opt/../etc"]', "server.paths"),
        ('"{port}"]', '"{port}"]\npaths = [3]', "server.paths"),
        ('"MINE_{j}"', '"MINE"', "guest.device.MINE"),
        ('"MINE_{j}"', '"MINE {j}"', "guest.device.MINE {j}"),
        ('"127.0.0.1:{port}"', '"{folder}"', "guest.device.MINE_{j}"),
        ('"MINE_{j}" = "127.0.0.1:{port}"', "", "guest"),
        ("[guest.device]", '[guest.environment]\nA = "{j}"\n[guest.device]', "guest.environment.A"),
        ("[guest.device]", '[guest.environment]\n"A B" = ""\n[guest.device]', "guest.environment"),
        (LEAST, "name = ", "mine.toml"),
        (LEAST, "x = " + "[" * 5000, "mine.toml"),
        (LEAST, "# " + "x" * 70_000, "mine.toml"),
    ],
)
def test_a_file_that_says_anything_else_is_refused(
    tmp_path: Path, replaced: str, by: str, named: str
) -> None:
    assert replaced in LEAST
    with pytest.raises(InvalidValueError) as refused:
        declared(tmp_path, LEAST.replace(replaced, by, 1))
    assert named in refused.value.where and str(tmp_path) in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="readable TOML"):
        read(tmp_path / "none.toml")
