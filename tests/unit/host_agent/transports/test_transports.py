# SPDX-License-Identifier: Apache-2.0
"""Transports of remote GPUs: what each has to keep to, and how they are found by name."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from host_agent.transports import registry
from host_agent.transports.declared import read
from host_agent.transports.fake import FakeTransport
from host_agent.transports.pocl import PoclTransport
from host_agent.transports.registry import Transports
from host_agent.transports.transport import AttachedGpu, GpuServer, RemoteGpuTransport
from placement_traits import names
from placement_traits.errors import InvalidValueError
from placement_traits.names import RemoteGpuApi

SAMPLES = [
    each
    for each in sorted(
        (Path(__file__).parents[4] / "etc/numa-host-agent/transports").glob("*.sample")
    )
    if not each.name.startswith("pocl.")  # declares no transport
]
FOLDER = Path("/run/lease")
ALL: list[RemoteGpuTransport] = [
    FakeTransport(),
    PoclTransport(layer=Path("/not there")),
    PoclTransport(layer=Path(__file__)),
    *map(read, SAMPLES),
]
TWO = (AttachedGpu(31000), AttachedGpu(31002))


def lease(memory_mb: int = 512, port: int = 20000, gpu: str = "GPU-8f") -> GpuServer:
    """Make a lease's server's request."""
    return GpuServer("lease-9", gpu, memory_mb, port, FOLDER)


@pytest.mark.parametrize("transport", ALL, ids=lambda each: each.name)
class TestEveryTransport:
    """What the supervisor and a guest rely on."""

    def test_its_name_is_one_of_placements(self, transport: RemoteGpuTransport) -> None:
        assert names.transport(transport.name).endswith(transport.name.upper())
        assert transport.capabilities().apis <= set(RemoteGpuApi)

    def test_its_server_is_a_program_with_an_environment_of_its_own(
        self, transport: RemoteGpuTransport
    ) -> None:
        command = transport.server_command(lease())
        assert Path(command.argv[0]).is_absolute()
        assert command.environment["HOME"] == str(FOLDER)

    def test_it_serves_one_gpu_only(self, transport: RemoteGpuTransport) -> None:
        command = transport.server_command(lease(gpu="GPU-one"))
        assert "GPU-one" in [*command.argv, *command.environment.values()]

    def test_the_same_gpus_give_the_same_environment(self, transport: RemoteGpuTransport) -> None:
        assert transport.guest_environment(TWO) == transport.guest_environment(list(TWO))
        assert transport.guest_environment(TWO)

    @pytest.mark.parametrize(("gpus", "virtual"), [((), 1), (TWO, 0), (TWO, 97)])
    def test_no_gpu_and_too_many_are_refused(
        self, transport: RemoteGpuTransport, gpus: tuple[AttachedGpu, ...], virtual: int
    ) -> None:
        with pytest.raises(InvalidValueError, match="1 to 192 devices"):
            transport.guest_environment(gpus, virtual)

    def test_an_advisory_slice_is_said_to_be_one(self, transport: RemoteGpuTransport) -> None:
        command = transport.server_command(lease(memory_mb=777))
        given = " ".join([*command.argv, *command.environment.values()])
        assert transport.capabilities().enforced == ("777" in given or str(777 << 20) in given)


@pytest.mark.parametrize(
    ("memory_mb", "port", "gpu"),
    [(0, 1, "a"), (1, 0, "a"), (1, 65536, "a"), (1, 1, ""), (1, 1, "a b"), (1, 1, "a\n")],
)
def test_an_impossible_lease_is_refused(memory_mb: int, port: int, gpu: str) -> None:
    with pytest.raises(InvalidValueError):
        lease(memory_mb, port, gpu)


def test_a_transport_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "rcuda.toml").write_bytes(
        next(path for path in SAMPLES if "rcuda" in path.name).read_bytes()
    )
    transports = Transports(tmp_path)
    assert transports.named("fake").name == "fake"
    assert transports.named("rcuda").name == "rcuda"


def test_an_unknown_transport_is_refused_with_those_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-002-47."""
    point = EntryPoint("theirs", f"{__name__}:theirs", registry.GROUP)

    def points(group: str, name: str | None = None) -> EntryPoints:
        assert group == registry.GROUP
        return EntryPoints([point] if name in (None, "theirs") else [])

    monkeypatch.setattr(registry, "entry_points", points)
    transports = Transports(tmp_path / "not there")
    assert transports.named("theirs") is ALL[0]
    with pytest.raises(
        InvalidValueError, match=r"'verbs' is not allowed; allowed: fake, pocl, theirs"
    ):
        transports.named("verbs")


def theirs() -> RemoteGpuTransport:
    """Return what another distribution provides."""
    return ALL[0]


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    text = next(path for path in SAMPLES if "rcuda" in path.name).read_text()
    (tmp_path / "a.toml").write_text(text.replace('"rcuda"', '"fake"', 1))
    with pytest.raises(InvalidValueError, match="not taken"):
        Transports(tmp_path)
