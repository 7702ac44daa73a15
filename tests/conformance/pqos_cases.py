# SPDX-License-Identifier: Apache-2.0
"""What only the pqos backend has to do."""

import tempfile
from pathlib import Path

from host_agent.machine.rdt.pqos import PqosFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.model.rdt import GROUP_PREFIX
from placement_traits.errors import CapabilityMissingError, ConflictError
from tests.conformance.bench import Bench, Case, NotApplicableError, expect


def _backend(bench: Bench) -> PqosFiles:
    if not isinstance(bench.files, PqosFiles):
        raise NotApplicableError("not the pqos backend")
    return bench.files


def it_refuses_to_start_beside_groups_of_others(bench: Bench) -> None:
    files = _backend(bench)
    files.mkdir(GROUP_PREFIX + "a")  # it has started
    files.rmdir(GROUP_PREFIX + "a")
    tree = files._tree
    tree.rmdir("COS2")  # make room, for libpqos leaves none
    tree.mkdir("qemu-1-foreign")
    before = tree.directories("")
    with tempfile.TemporaryDirectory(prefix="numa-ext-pqos-") as state:
        fresh = PqosFiles(Path(state), Path("/proc"), files._start, tree)
        try:
            Resctrl(fresh).create_group(GROUP_PREFIX + "a")
        except ConflictError as error:
            expect("qemu-1-foreign" in str(error), True, str(error))
        else:
            raise AssertionError("it started beside a foreign group")
    expect(tree.directories(""), before, "groups")
    tree.rmdir("qemu-1-foreign")
    tree.mkdir("COS2")


def it_refuses_to_start_where_it_knows_other_domains(bench: Bench) -> None:
    """On Intel it takes a socket for one domain; emulated hosts of the lab have two in each."""
    files = _backend(bench)
    files.give_up()
    tree = files._tree

    class Blind:
        """Knows the first domain only."""

        def domains(self, _resource: str) -> frozenset[int]:
            return frozenset({min(bench.domains)} if len(bench.domains) > 1 else ())

    starts = []

    def start(_taken: bool) -> Blind:
        starts.append(1)
        tree.mkdir("COS1")
        return Blind()

    with tempfile.TemporaryDirectory(prefix="numa-ext-pqos-") as state:
        fresh = PqosFiles(Path(state), Path("/proc"), start, tree)  # type: ignore[arg-type]
        for _ in range(2):
            try:
                fresh.mkdir(GROUP_PREFIX + "a")
            except CapabilityMissingError as error:
                expect("set [rdt]backend = resctrl" in str(error), True, str(error))
            else:
                raise AssertionError("it started")
    expect(len(starts), 1, "starts of the library")
    expect("COS1" in tree.directories(""), False, "its classes are there")


def a_lost_file_of_names_costs_nothing_that_runs(bench: Bench) -> None:
    """Then no class is ours; what is in them is given back when they are used again."""
    files = _backend(bench)
    group, again = GROUP_PREFIX + "a", GROUP_PREFIX + "b"
    bench.resctrl.create_group(group)
    process = bench.process()
    bench.executor.move_process(group, "", process.pid)
    cache = bench.capabilities.l3[0]
    bench.resctrl.write_schemata(group, {cache.name: {bench.domains[0]: 0b11}})
    files._names.keep({})
    expect(bench.groups(), [], "our groups")
    bench.resctrl.create_group(again)
    expect(process.pid in bench.tasks(""), True, "the thread is in root")
    expect(bench.values(again, cache.name)[bench.domains[0]], cache.cbm_mask, "a new class's ways")


def given_up_classes_are_free_for_others_and_are_taken_again(bench: Bench) -> None:
    files = _backend(bench)
    group = GROUP_PREFIX + "a"
    bench.resctrl.create_group(group)
    files.give_up()
    expect(bench.resctrl.actual().get(group) is not None, True, "a class in use stays")
    bench.resctrl.remove_group(group)
    files.give_up()
    tree = files._tree
    tree.mkdir("foreign")
    tree.rmdir("foreign")
    bench.resctrl.create_group(group)
    process = bench.process()
    bench.executor.move_process(group, "", process.pid)
    expect(bench.tasks(group), {process.pid}, "threads in the group")


CASES: tuple[Case, ...] = (
    it_refuses_to_start_beside_groups_of_others,
    it_refuses_to_start_where_it_knows_other_domains,
    a_lost_file_of_names_costs_nothing_that_runs,
    given_up_classes_are_free_for_others_and_are_taken_again,
)
