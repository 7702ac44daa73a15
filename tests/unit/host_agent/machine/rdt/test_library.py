# SPDX-License-Identifier: Apache-2.0
"""The library and the executor where conformance cannot go: odd hardware, faults, limbo, crashes of other software."""

import errno
import pickle
from pathlib import Path

import pytest

from emulation.kernel.profiles import LINUX_6_1
from emulation.kernel.resctrl import ResctrlModel
from emulation.kernel.shape import AMD, INTEL, Shape
from emulation.kernel.threads import ThreadTable, Traffic
from host_agent.apply.partitions import Partitions
from host_agent.conf.paths import HostPaths
from host_agent.conf.rdt import RdtOptions
from host_agent.decide.partitions.changes import changes
from host_agent.decide.partitions.plan import PartitionPlan, lc_group, plan
from host_agent.machine.privileged import partitions as privileged
from host_agent.machine.privileged.operations import HostOperations
from host_agent.machine.rdt.errors import (
    ResctrlBusyError,
    ResctrlError,
    ResctrlExhaustedError,
    ResctrlGoneError,
    ResctrlRefusedError,
    ResctrlUnavailableError,
)
from host_agent.machine.rdt.files import OsFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.partition import PartitionPlace, PartitionRequest, RdtChange, WriteKind
from host_agent.model.rdt import BandwidthUnit, Unknown
from host_agent.observe.bandwidth import BandwidthReader
from placement_traits.errors import ConflictError, InvalidValueError
from placement_traits.names import Tier
from tests.support.booted import boot

LC = "11111111-aaaa-4000-8000-000000000001"
BE = "33333333-bbbb-4000-8000-000000000003"


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wanted_plan(model: ResctrlModel) -> PartitionPlan:
    resctrl = Resctrl(model)
    lc = PartitionRequest(LC, Tier.LC, (0,), ways={0: 4})
    be = PartitionRequest(BE, Tier.BE, (0,), mba_percent={0: 30})
    return plan(resctrl.capabilities(), resctrl.actual(), [lc, be])


def change_to(model: ResctrlModel, decided: PartitionPlan) -> RdtChange:
    actual = Resctrl(model).actual()
    return RdtChange(actual, changes(actual, decided), (), decided.found)


# -- detection --


def test_amd_has_holes_and_absolute_bandwidth() -> None:
    found = Resctrl(ResctrlModel(AMD, LINUX_6_1)).capabilities()

    assert found.l3[0].sparse_masks
    assert found.bandwidth is not None
    assert found.bandwidth.unit is BandwidthUnit.EIGHTH_GBPS
    assert (found.bandwidth.max_bandwidth, found.bandwidth.thread_throttle_mode) == (2048, None)


def test_code_and_data_are_two_resources_with_half_the_classes() -> None:
    model = ResctrlModel(Shape(cdp=True, closids=16))
    resctrl = Resctrl(model)
    found = resctrl.capabilities()

    assert [cache.name for cache in found.l3] == ["L3CODE", "L3DATA"]
    assert found.num_closids == 8
    GroupWriter(resctrl).carry_out(change_to(model, wanted_plan(model)))
    own = resctrl.actual().get(lc_group(LC))
    assert own is not None
    assert own.schemata["L3CODE"] == own.schemata["L3DATA"] == {0: 0xF}


def test_a_host_that_only_monitors_has_groups_but_no_masks() -> None:
    resctrl = Resctrl(ResctrlModel(Shape(l3=False, mba=False)))

    assert resctrl.capabilities().num_closids == 0
    assert resctrl.capabilities().monitoring is not None
    assert resctrl.actual().root.schemata == {}


def test_the_kernels_bandwidth_loop_is_seen_in_the_mount_options(tmp_path: Path) -> None:
    root = tmp_path / "resctrl"
    files = {
        "schemata": "MB:0=100\n",
        "mode": "shareable\n",
        "info/MB/min_bandwidth": "10\n",
        "info/MB/bandwidth_gran": "10\n",
        "info/MB/delay_linear": "1\n",
        "info/MB/num_closids": "8\n",
        "info/MB/thread_throttle_mode": "per-thread\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"resctrl {root} resctrl rw,mba_MBps 0 0\n")

    found = Resctrl(OsFiles(str(root), str(mounts))).capabilities()

    assert found.bandwidth is not None
    assert found.bandwidth.unit is BandwidthUnit.MBPS
    assert found.bandwidth.thread_throttle_mode == "per-thread"


def test_nothing_mounted_is_said(tmp_path: Path) -> None:
    resctrl = Resctrl(OsFiles(str(tmp_path / "nothing")))

    assert not resctrl.available()
    with pytest.raises(ResctrlUnavailableError, match="mount -t resctrl"):
        resctrl.capabilities()


# -- errors --


class Says(ResctrlModel):
    """A kernel whose files say what they never should."""

    def __init__(self, **said: str) -> None:
        super().__init__()
        self.said = {path.replace("__", "/"): text for path, text in said.items()}

    def read(self, path: str) -> str:
        return self.said.get(path) or super().read(path)


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "9" * 5000])
@pytest.mark.parametrize(
    "path",
    [
        "info/L3/min_cbm_bits",
        "info/L3/num_closids",
        "info/L3/cbm_mask",
        "info/MB/min_bandwidth",
        "info/MB/bandwidth_gran",
        "info/L3_MON/num_rmids",
    ],
)
def test_a_file_that_makes_no_sense_is_an_error_of_ours(path: str, text: str) -> None:
    model = Says(**{path.replace("/", "__"): f"{text}\n"})
    with pytest.raises(InvalidValueError) as caught:
        Resctrl(model).capabilities()
    assert len(str(caught.value)) < 400


def test_threads_without_a_number_are_an_error_of_ours() -> None:
    with pytest.raises(InvalidValueError, match="resctrl tasks: 'first' is not allowed"):
        Resctrl(Says(tasks="1\nfirst\n")).tasks("")


def test_a_bandwidth_step_of_0_is_none() -> None:
    control = Resctrl(Says(info__MB__bandwidth_gran="0\n")).bandwidth()
    assert control is not None
    assert [control.from_percent(percent) for percent in (5, 33, 100)] == [10, 33, 100]


def test_a_cache_without_ways_has_nothing_to_allocate() -> None:
    resctrl = Resctrl(Says(info__L3__cbm_mask="0\n"))
    capabilities = resctrl.capabilities()
    assert capabilities.l3 == ()
    lc = PartitionRequest(LC, Tier.LC, (0,), ways={0: 4})
    found = plan(capabilities, resctrl.actual(), [lc])
    assert [str(reason) for reason in found.refused[0].reasons] == [
        "no_l3_cat=requested (against absent)"
    ]


def test_errors_survive_the_way_through_the_privileged_helper() -> None:
    error = ResctrlRefusedError("writing 'x'", "a/schemata", "x", errno.EINVAL, "Mask out of range")

    again = type(error)(*error.args)

    assert str(again) == str(error) == str(pickle.loads(pickle.dumps(error)))
    assert str(error) == (
        "resctrl: writing 'x' at /a/schemata failed: Invalid argument (EINVAL); "
        "the kernel says: Mask out of range"
    )


def test_the_sentence_of_an_older_command_is_not_taken_for_this_ones() -> None:
    model = ResctrlModel(INTEL, LINUX_6_1)
    resctrl = Resctrl(model)
    with pytest.raises(OSError, match="Invalid"):
        model.write("schemata", "L3:0=zz\n")
    with pytest.raises(ResctrlGoneError) as caught:
        resctrl.remove_group("numa_ext-none")
    assert caught.value.status == ""


# -- counters --


def test_where_the_kernels_sentence_found_no_room_none_is_given() -> None:
    """Sentences about other groups fill the buffer; the one about ours is dropped, and theirs is not ours."""
    model = ResctrlModel(INTEL)
    resctrl = Resctrl(model)
    for number in range(resctrl.capabilities().num_closids - 1):
        model.mkdir(f"foreign{number}")
    with pytest.raises(ResctrlExhaustedError) as first:
        resctrl.create_group("numa_ext-a")
    assert first.value.status == "Out of CLOSIDs"
    for _ in range(40):
        with pytest.raises(OSError, match="No space"):
            model.mkdir("foreign")
    with pytest.raises(ResctrlExhaustedError) as last:
        resctrl.create_group("numa_ext-a")
    assert last.value.status == ""


def test_counters_grow_with_traffic_and_bandwidth_level() -> None:
    table = ThreadTable([10])
    moved: dict[int, float] = {10: 0.0}
    model = ResctrlModel(threads=table, demand=lambda tid, _d: Traffic(moved[tid], moved[tid] / 4))
    resctrl = Resctrl(model)
    resctrl.create_group("numa_ext-a")
    resctrl.move_tasks("numa_ext-a", "", lambda: [10])
    moved[10] = 1000.0
    assert resctrl.counters("numa_ext-a")[0].events["mbm_total_bytes"] == 1000
    resctrl.write_schemata("numa_ext-a", {"MB": {0: 50}})
    moved[10] = 2000.0
    events = resctrl.counters("numa_ext-a")[0].events
    assert (events["mbm_total_bytes"], events["mbm_local_bytes"]) == (1500, 375)
    assert resctrl.counters("")[0].events["mbm_total_bytes"] == 0


def test_occupancy_is_bounded_by_the_mask() -> None:
    table = ThreadTable([10])
    moved = [0.0]
    model = ResctrlModel(threads=table, demand=lambda _t, _d: Traffic(moved[0], 0))
    resctrl = Resctrl(model)
    resctrl.create_group("numa_ext-a")
    resctrl.write_schemata("numa_ext-a", {"L3": {0: 0x7}})
    resctrl.move_tasks("numa_ext-a", "", lambda: [10])
    moved[0] = 1e12
    assert resctrl.counters("numa_ext-a")[0].events["llc_occupancy"] == (16 << 20) * 3 // 12


def test_a_counter_that_cannot_be_read_is_unknown_and_the_group_sums_the_others() -> None:
    model = ResctrlModel()
    resctrl = Resctrl(model)
    resctrl.create_group("numa_ext-a")
    resctrl.create_monitor("numa_ext-a", "numa_ext-vm")
    model.set_fault("numa_ext-a", "numa_ext-vm", "Error")
    events = resctrl.counters("numa_ext-a", "numa_ext-vm")[0].events
    assert set(events.values()) == {Unknown.ERROR}
    assert resctrl.counters("numa_ext-a")[0].events["llc_occupancy"] == 0
    model.set_fault("numa_ext-a", fault="Unavailable")
    model.set_fault("numa_ext-a", "numa_ext-vm", "Unavailable")
    events = resctrl.counters("numa_ext-a")[0].events
    assert set(events.values()) == {Unknown.UNAVAILABLE}
    model.set_fault("numa_ext-a", fault="")
    assert resctrl.counters("numa_ext-a")[0].events["llc_occupancy"] == 0


def test_monitors_of_packages_are_none_of_l3_domains(tmp_path: Path) -> None:
    """Linux 7.0: energy and activity of a package, as fractions, beside the counters of its caches."""
    for name, text in {
        "mon_L3_00/llc_occupancy": "77",
        "mon_L3_00/mbm_local_bytes": "100",
        "mon_L3_00/mbm_total_bytes": "400",
        "mon_PERF_PKG_00/core_energy": "12.503",
        "mon_PERF_PKG_00/activity": "3.1",
    }.items():
        file = tmp_path / "mon_data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    (reading,) = Resctrl(OsFiles(str(tmp_path))).counters("")
    assert (reading.domain, reading.events["mbm_total_bytes"]) == (0, 400)


def test_only_the_counters_that_are_asked_for_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read on a CPU of its domain, by an interrupt of who runs there."""
    model = ResctrlModel()
    model.mkdir("numa_ext-a")
    read: list[str] = []
    really = model.read

    def counting(path: str) -> str:
        read.append(path.rpartition("/")[2])
        return really(path)

    monkeypatch.setattr(model, "read", counting)
    place = PartitionPlace("a", "numa_ext-a")
    BandwidthReader(Resctrl(model)).servers([place])
    assert set(read) == {"mbm_local_bytes", "mbm_total_bytes"}


# -- the executor --


def limbo(clock: Clock, seconds: float) -> ResctrlModel:
    """All RMIDs but root's have just been freed."""
    model = ResctrlModel(Shape(rmids=4), limbo_s=seconds, clock=clock)
    for name in "abc":
        model.mkdir(name)
    for name in "abc":
        model.rmdir(name)
    return model


def test_the_executor_waits_for_monitoring_ids_in_limbo() -> None:
    clock = Clock()
    model = limbo(clock, 2.0)
    executor = GroupWriter(Resctrl(model), clock=clock, sleep=clock.sleep)

    change = change_to(model, wanted_plan(model))
    executor.carry_out(change)
    written = change.writes

    assert 2.0 <= clock.now < 3.0
    assert [w.kind for w in written].count(WriteKind.CREATE_GROUP) == 2


def test_the_executor_does_not_wait_for_ever() -> None:
    clock = Clock()
    model = limbo(clock, 60.0)
    executor = GroupWriter(Resctrl(model), clock=clock, sleep=clock.sleep, limbo_wait_s=5.0)

    with pytest.raises(ResctrlBusyError, match="Out of RMIDs"):
        executor.carry_out(change_to(model, wanted_plan(model)))
    assert 5.0 <= clock.now < 6.0


class Meddled(ResctrlModel):
    """Somebody gives root its ways back after each of our writes to it."""

    def write(self, path: str, data: str, writer: int = 0) -> None:
        super().write(path, data, writer)
        if path == "schemata":
            super().write(path, "L3:0=fff\n")


def test_what_is_not_kept_is_told() -> None:
    model = Meddled()

    with pytest.raises(
        ConflictError, match=r"did not keep .*: group \(root\) has L3:0=fff, not ff0"
    ):
        GroupWriter(Resctrl(model)).carry_out(change_to(model, wanted_plan(model)))


def test_reset_spares_ways_that_a_foreign_group_holds_exclusively() -> None:
    model = ResctrlModel()
    model.write("schemata", "L3:0=ff0\n")
    model.mkdir("foreign")
    model.write("foreign/schemata", "L3:0=f\n")
    model.write("foreign/mode", "exclusive\n")
    GroupWriter(Resctrl(model)).carry_out(change_to(model, wanted_plan(model)))

    GroupWriter(Resctrl(model)).reset()

    assert model.listdir("").count("foreign") == 1
    assert Resctrl(model).actual().root.schemata["L3"] == {0: 0xFF0}
    assert Resctrl(model).actual().ours == ()


def test_reset_leaves_the_bandwidth_of_root_alone() -> None:
    """We never write it, so it is not ours to give back."""
    model = ResctrlModel()
    model.write("schemata", "MB:0=50\n")
    GroupWriter(Resctrl(model)).carry_out(change_to(model, wanted_plan(model)))

    GroupWriter(Resctrl(model)).reset()

    assert Resctrl(model).actual().root.schemata == {"L3": {0: 0xFFF}, "MB": {0: 50}}


@pytest.fixture
def operators_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[HostPaths, Resctrl]:
    """A host whose operator gave root eight of its twelve ways, and the agent's folder."""
    model = ResctrlModel()
    model.write("schemata", "L3:0=ff\n")
    resctrl = Resctrl(model)
    monkeypatch.setattr(privileged, "tree", lambda _paths: resctrl)
    boot(tmp_path / "proc", "first")
    return HostPaths(proc=tmp_path / "proc", helper_state=tmp_path / "state"), resctrl


def partitions(paths: HostPaths) -> Partitions:
    """Those of an agent that has just been started."""
    return Partitions(HostOperations(paths), RdtOptions())


LC_REQUEST = PartitionRequest(LC, Tier.LC, (0,), ways={0: 4}, running=False)
BE_REQUEST = PartitionRequest(BE, Tier.BE, (0,), mba_percent={0: 30}, running=False)


def test_root_is_given_back_as_found_whoever_remembers(
    operators_host: tuple[HostPaths, Resctrl],
) -> None:
    """Each call stands for an agent that has just been restarted."""
    paths, resctrl = operators_host
    for requests, root in (
        ([BE_REQUEST], 0xFF),
        ([LC_REQUEST, BE_REQUEST], 0xF0),
        ([BE_REQUEST], 0xFF),
    ):
        assert partitions(paths).partition(requests, write=True).problem == ""
        assert resctrl.actual().root.schemata["L3"] == {0: root}
    partitions(paths).partition([LC_REQUEST], write=True)
    HostOperations(paths).reset_partitions(True)

    assert resctrl.actual().root.schemata["L3"] == {0: 0xFF}
    assert resctrl.actual().ours == ()


def test_a_dry_run_remembers_nothing(operators_host: tuple[HostPaths, Resctrl]) -> None:
    paths, _resctrl = operators_host
    partitions(paths).partition([LC_REQUEST], write=False)
    HostOperations(paths).reset_partitions(False)

    assert not paths.helper_state.exists()


def test_another_boot_of_the_host_knows_nothing(operators_host: tuple[HostPaths, Resctrl]) -> None:
    paths, resctrl = operators_host
    partitions(paths).partition([LC_REQUEST], write=True)
    boot(paths.proc, "second")
    HostOperations(paths).reset_partitions(True)

    assert resctrl.actual().root.schemata["L3"] == {0: 0xFFF}


def test_a_folder_that_cannot_be_written_costs_the_memory_only(
    operators_host: tuple[HostPaths, Resctrl], caplog: pytest.LogCaptureFixture
) -> None:
    paths, resctrl = operators_host
    paths.helper_state.write_text("not a folder")

    assert partitions(paths).partition([LC_REQUEST], write=True).problem == ""
    assert resctrl.actual().root.schemata["L3"] == {0: 0xF0}
    assert "cannot be written" in caplog.text


BES = tuple(f"{digit * 8}-bbbb-4000-8000-00000000000{digit}" for digit in "123")


def be_request(uuid: str) -> PartitionRequest:
    return PartitionRequest(uuid, Tier.BE, (0,), mba_percent={0: 30})


class Watched(ResctrlModel):
    """Notes whether a thread was ever in root after a command."""

    in_root: frozenset[int] = frozenset()

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        self.in_root |= Resctrl(self).tasks("")


def shared_class(closids: int) -> tuple[Watched, GroupWriter]:
    """Three BE VMs with one thread each (1, 2, 3), dealt to the classes of a host with so many CLOSIDs."""
    model = Watched(Shape(closids=closids), threads=ThreadTable([1, 2, 3]))
    resctrl = Resctrl(model)
    executor = GroupWriter(resctrl)
    decided = plan(resctrl.capabilities(), resctrl.actual(), [be_request(uuid) for uuid in BES])
    executor.carry_out(change_to(model, decided))
    for tid, place in enumerate(decided.places, start=1):
        resctrl.move_tasks(place.group, place.monitor, lambda tid=tid: [tid])  # type: ignore[misc]
    return model, executor


def test_threads_of_merged_classes_are_never_without_a_limit() -> None:
    model, executor = shared_class(closids=4)
    resctrl = Resctrl(model)
    lc = PartitionRequest(LC, Tier.LC, (0,), ways={0: 4})
    requests = [be_request(uuid) for uuid in BES]

    change = change_to(model, plan(resctrl.capabilities(), resctrl.actual(), [*requests, lc]))
    executor.carry_out(change)
    written = change.writes

    assert WriteKind.REMOVE_GROUP in [write.kind for write in written]
    assert model.in_root == frozenset()


def test_a_vm_that_is_no_longer_managed_leaves_the_class_it_shared() -> None:
    model, executor = shared_class(closids=2)
    resctrl = Resctrl(model)
    assert len(resctrl.actual().ours) == 1

    requests = [be_request(uuid) for uuid in BES[1:]]
    change = change_to(model, plan(resctrl.capabilities(), resctrl.actual(), requests))
    executor.carry_out(change)
    written = change.writes

    assert resctrl.tasks("") == {1}
    assert resctrl.tasks("numa_ext-be-0") == {2, 3}
    assert str(written[0]) == "move threads numa_ext-be-0/numa_ext-vm-11111111-bbbb to (root)"


def test_threads_of_a_process_that_is_gone_are_none(tmp_path: Path) -> None:
    model = ResctrlModel()
    resctrl = Resctrl(model)
    resctrl.create_group("numa_ext-a")

    assert GroupWriter(resctrl, proc=str(tmp_path)).move_process("numa_ext-a", "", 4711).moved == ()


def test_a_group_removed_meanwhile_is_an_error_of_ours() -> None:
    resctrl = Resctrl(ResctrlModel())

    with pytest.raises(ResctrlError, match="numa_ext-gone"):
        resctrl.move_tasks("numa_ext-gone", "", lambda: [1])
