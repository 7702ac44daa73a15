# SPDX-License-Identifier: Apache-2.0
"""What our library and executor do on a tree, told from the files, not from their own memory."""

from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

from host_agent.decide.partitions.changes import changes
from host_agent.decide.partitions.plan import (
    PartitionPlan,
    lc_group,
    plan,
    vm_monitor,
)
from host_agent.machine.rdt.errors import NoSuchTaskError, ResctrlError, ResctrlExhaustedError
from host_agent.machine.rdt.files import ResctrlFiles
from host_agent.machine.rdt.resctrl import Resctrl
from host_agent.machine.rdt.writer import GroupWriter
from host_agent.model.partition import PartitionRequest, RdtChange, Write
from host_agent.model.process import GroupLevel
from host_agent.model.rdt import GROUP_PREFIX, BandwidthUnit, CacheControl
from placement_traits.errors import NumaExtError
from placement_traits.names import Tier
from tests.conformance.bench import OK, Bench, Case, NotApplicableError, expect

_LC_1 = "11111111-aaaa-4000-8000-000000000001"
_LC_2 = "22222222-aaaa-4000-8000-000000000002"
_BE_1 = "33333333-bbbb-4000-8000-000000000003"
_BE_2 = "44444444-bbbb-4000-8000-000000000004"


def _lc(bench: Bench, uuid: str, ways: int, domain: int = 0) -> PartitionRequest:
    number = bench.domains[domain]
    return PartitionRequest(uuid, Tier.LC, (number,), ways={number: ways})


def _be(bench: Bench, uuid: str, percent: int) -> PartitionRequest:
    levels = dict.fromkeys(bench.domains, percent)
    return PartitionRequest(uuid, Tier.BE, tuple(bench.domains), mba_percent=levels)


def _plan(bench: Bench, *wanted: PartitionRequest) -> PartitionPlan:
    return plan(bench.capabilities, bench.resctrl.actual(), wanted)


def _apply(bench: Bench, *wanted: PartitionRequest) -> tuple[Write, ...]:
    return _carry_out(bench.executor, _change(bench, _plan(bench, *wanted)))


def _change(bench: Bench, decided: PartitionPlan) -> RdtChange:
    """Return the change that leads from what is there now to a plan."""
    actual = bench.resctrl.actual()
    return RdtChange(actual, changes(actual, decided), (), decided.found)


def _carry_out(writer: GroupWriter, change: RdtChange) -> tuple[Write, ...]:
    writer.carry_out(change)
    return change.writes


def _percent(bench: Bench, *levels: int) -> list[int]:
    """Return what levels in per cent are in this tree's unit; where the kernel's loop rules they are not written."""
    bandwidth = bench.capabilities.bandwidth
    if bandwidth is None or bandwidth.unit is BandwidthUnit.MBPS:
        raise NotApplicableError("no bandwidth that is ours to allocate")
    return [bandwidth.from_percent(level) for level in levels]


def _illegal_mask(cache: CacheControl) -> int:
    """Return a mask out of range: beyond the cache where an empty one is legal."""
    return cache.cbm_mask + 1 if cache.sparse_masks else 0


def capabilities_come_from_info(bench: Bench) -> None:
    found = bench.capabilities
    expect(bool(found.l3), True, "L3 allocation is detected")
    names = [name for name in bench.files.directories("info") if name.startswith(("L3", "MB"))]
    seen = [cache.name for cache in found.l3]
    seen += ["MB"] if found.bandwidth else []
    seen += ["L3_MON"] if found.monitoring else []
    expect(sorted(seen), sorted(names), "resources")
    expect(set(bench.resctrl.actual().root.schemata) >= {c.name for c in found.l3}, True, "lines")


def errors_carry_the_kernels_sentence(bench: Bench) -> None:
    name = GROUP_PREFIX + "a"
    bench.resctrl.create_group(name)
    try:
        cache = bench.capabilities.l3[0]
        bench.resctrl.write_schemata(name, {cache.name: {bench.domains[0]: _illegal_mask(cache)}})
    except ResctrlError as error:
        if bench.world.kernel_speaks:
            expect(error.status, "Mask out of range", "the kernel's sentence")
            expect("Mask out of range" in str(error), True, str(error))
        expect(error.path, f"{name}/schemata", "the file")
        expect("EINVAL" in str(error), True, str(error))
    else:
        raise AssertionError("an illegal mask was taken")


def only_our_groups_can_be_changed(bench: Bench) -> None:
    bench.make("foreign")
    before = bench.dump()
    for change in (
        lambda: bench.resctrl.remove_group("foreign"),
        lambda: bench.resctrl.create_group("other"),
        lambda: bench.resctrl.create_monitor("foreign", GROUP_PREFIX + "m"),
        lambda: bench.resctrl.write_schemata("foreign", {"MB": {0: 50}}),
        lambda: bench.resctrl.move_tasks("foreign", "", lambda: [1]),
    ):
        with suppress(ResctrlError):
            change()
            raise AssertionError("a foreign group was changed")
    expect(bench.dump(), before, "the tree")


def running_out_is_told(bench: Bench) -> None:
    names = [f"{GROUP_PREFIX}{n}" for n in range(bench.capabilities.num_closids - 1)]
    bench.make(*names)
    try:
        bench.resctrl.create_group(GROUP_PREFIX + "more")
    except ResctrlExhaustedError as error:
        expect(error.status, "Out of CLOSIDs", "the kernel's sentence")
    else:
        raise AssertionError("a group without a CLOSID was made")


def all_threads_are_moved_and_stay(bench: Bench) -> None:
    bench.needs_monitoring()
    group, monitor = GROUP_PREFIX + "a", GROUP_PREFIX + "vm"
    bench.make(group)
    bench.resctrl.create_monitor(group, monitor)
    process = bench.process()
    process.add_thread()
    process.add_thread()
    result = bench.executor.move_process(group, monitor, process.pid)
    expect(set(result.moved), process.threads(), "threads that were moved")
    process.add_thread()  # inherits
    expect(bench.tasks(f"{group}/mon_groups/{monitor}"), process.threads(), "threads in the group")
    again = bench.executor.move_process(group, monitor, process.pid)
    expect((again.moved, again.already), ((), 4), "a second move")
    bench.executor.move_process("", "", process.pid)
    expect(bench.tasks(group), set(), "threads left after the release to root")


def a_removed_group_gives_all_threads_back(bench: Bench) -> None:
    group = GROUP_PREFIX + "a"
    bench.make(group)
    process = bench.process()
    process.add_thread()
    process.add_thread()
    bench.executor.move_process(group, "", process.pid)
    bench.resctrl.remove_group(group)
    expect(process.threads() <= bench.tasks(""), True, "all threads are in root")


def threads_born_while_moving_are_caught(bench: Bench) -> None:
    group = GROUP_PREFIX + "a"
    bench.make(group)
    process = bench.process()
    first = process.pid
    looks = 0

    def threads() -> set[int]:
        nonlocal looks
        looks += 1
        seen = process.threads()
        if looks == 1:
            process.add_thread()  # after the look, before its parent is moved
        return seen

    result = bench.resctrl.move_tasks(group, "", threads)
    expect(bench.tasks(group), process.threads(), "threads in the group")
    expect(first in result.moved and len(result.moved) == 2, True, "both were moved")


def an_ended_thread_is_passed_over(bench: Bench) -> None:
    group = GROUP_PREFIX + "a"
    bench.make(group)
    process = bench.process()
    process.add_thread()
    ended = process.end_thread()
    result = bench.resctrl.move_tasks(group, "", lambda: {process.pid, ended})
    expect((result.moved, result.ended), ((process.pid,), 1), "moved and ended")
    try:
        bench.resctrl._write(f"{group}/tasks", f"{ended}\n")
    except NoSuchTaskError:
        return
    raise AssertionError("a thread that has ended was moved")


def counters_are_typed(bench: Bench) -> None:
    monitoring = bench.needs_monitoring()
    readings = bench.resctrl.counters("")
    expect(tuple(reading.domain for reading in readings), bench.domains, "domains")
    expect(set(readings[0].events), set(monitoring.features), "events")


def a_group_made_again_is_another_one(bench: Bench) -> None:
    bench.needs_monitoring()
    group, monitor = GROUP_PREFIX + "a", GROUP_PREFIX + "vm"
    lives = []
    for _life in range(2):
        bench.make(group)
        bench.resctrl.create_monitor(group, monitor)
        readings = [*bench.resctrl.counters(group), *bench.resctrl.counters(group, monitor)]
        lives.append({reading.generation for reading in readings})
        same = [*bench.resctrl.counters(group), *bench.resctrl.counters(group, monitor)]
        expect({reading.generation for reading in same}, lives[-1], "the same life")
        expect(len(lives[-1]), 2, "numbers of two groups")
        bench.resctrl.remove_group(group)
    expect(lives[0] & lives[1], set(), "numbers of both lives")


def lcs_own_their_ways(bench: Bench) -> None:
    _apply(
        bench,
        _lc(bench, _LC_1, 4),
        _lc(bench, _LC_2, 2),
        _be(bench, _BE_1, 40),
        _be(bench, _BE_2, 70),
    )
    cache, domain = bench.capabilities.l3[0], bench.domains[0]
    masks = {name: bench.values(name, cache.name)[domain] for name in ("", *bench.groups())}
    ours = {name: masks.pop(name) for name in (lc_group(_LC_1), lc_group(_LC_2))}
    expect([mask.bit_count() for mask in ours.values()], [4, 2], "ways of the LCs")
    first, second = ours.values()
    expect(first & second, 0, "ways that both LCs have")
    for name, mask in masks.items():
        expect(mask & (first | second), 0, f"LC ways that {name or 'root'} has too")
    expect((first | second) & cache.shareable_bits, 0, "shareable ways of an LC")
    if len(bench.domains) > 1:
        other = bench.values("", cache.name)[bench.domains[1]]
        expect(other, cache.cbm_mask, "root's ways in a domain without an LC")
    with suppress(NotApplicableError):
        wanted = _percent(bench, 40, 70)
        levels = sorted(bench.values(name, "MB")[domain] for name in masks if name)
        expect(levels, wanted, "bandwidth of the BE classes")


def every_class_has_all_of_the_second_level_cache(bench: Bench) -> None:
    if not bench.capabilities.l2:
        raise NotApplicableError("no L2 allocation")
    wanted = (_lc(bench, _LC_1, 3), _be(bench, _BE_1, 50))
    _apply(bench, *wanted)
    for cache in bench.capabilities.l2:
        whole = dict.fromkeys(cache.domains, cache.cbm_mask)
        for name in bench.groups():
            expect(bench.values(name, cache.name), whole, f"{cache.name} of {name}")
        tampered = f"{cache.name}:{cache.domains[-1]}=1\n"
        bench.accepted(f"{lc_group(_LC_1)}/schemata", tampered)
        expect(len(_apply(bench, *wanted)), 1, "repairs")
        expect(bench.values(lc_group(_LC_1), cache.name), whole, "the LC's, repaired")


def a_plan_applied_twice_changes_nothing(bench: Bench) -> None:
    wanted = (_lc(bench, _LC_1, 3), _be(bench, _BE_1, 50))
    expect(bool(_apply(bench, *wanted)), True, "the first time writes")
    before = bench.dump()
    expect(_apply(bench, *wanted), (), "the second time")
    expect(bench.dump(), before, "the tree")


def tampering_is_repaired(bench: Bench) -> None:
    wanted = (_lc(bench, _LC_1, 3), _be(bench, _BE_1, 50))
    _apply(bench, *wanted)
    good = bench.dump()
    line, full = bench.capabilities.l3[0].name, bench.capabilities.l3[0].cbm_mask
    bench.accepted("schemata", f"{line}:{bench.domains[0]}={full:x}\n")
    bench.accepted(f"{lc_group(_LC_1)}/schemata", f"{line}:{bench.domains[0]}={full:x}\n")
    writes = _apply(bench, *wanted)
    expect({write.group for write in writes}, {"", lc_group(_LC_1)}, "groups that were written")
    expect(bench.dump(), good, "the tree")


def departure_gives_the_ways_back(bench: Bench) -> None:
    cache, domain = bench.capabilities.l3[0], bench.domains[0]
    _apply(bench, _lc(bench, _LC_1, 4), _be(bench, _BE_1, 40))
    _apply(bench, _be(bench, _BE_1, 40))
    expect(bench.values("", cache.name)[domain], cache.cbm_mask, "root's ways")
    be_group = bench.groups()[0]
    expect(bench.values(be_group, cache.name)[domain], cache.cbm_mask, "ways of the BE class")
    expect(len(bench.groups()), 1, "groups left")


def foreign_groups_stay_untouched(bench: Bench) -> None:
    bench.needs_monitoring()
    bench.make("foreign", "foreign/mon_groups/m", "mon_groups/theirs")
    line = bench.capabilities.l3[0].name
    theirs_now = f"{line}:{bench.domains[-1]}={bench.capabilities.l3[0].cbm_mask >> 1:x}\n"
    expect(bench.write("foreign/schemata", theirs_now), OK, "their mask")
    theirs = {
        path: text for path, text in bench.dump().items() if "foreign" in path or "theirs" in path
    }
    found = _plan(bench, _lc(bench, _LC_1, 4))
    bench.executor.carry_out(_change(bench, found))
    placed = found.get(_LC_1)
    expect(
        placed is not None and placed.exclusive,
        False,
        "exclusive beside a foreign group with all ways",
    )
    bench.executor.reset()
    now = {
        path: text for path, text in bench.dump().items() if "foreign" in path or "theirs" in path
    }
    expect(now, theirs, "the foreign groups")


def reset_leaves_the_tree_as_mounted(bench: Bench) -> None:
    before = bench.dump()
    process = bench.process()
    _apply(bench, _lc(bench, _LC_1, 4), _be(bench, _BE_1, 10))
    bench.executor.move_process(lc_group(_LC_1), "", process.pid)
    GroupWriter(Resctrl(bench.files)).reset()  # knows nothing of what was done
    expect(bench.dump(), before, "the tree")
    expect(process.pid in bench.tasks(""), True, "the thread is in root")


def monitored_threads_follow_a_merge_and_a_reset(bench: Bench) -> None:
    bench.needs_monitoring()
    foreign = [f"foreign{n}" for n in range(bench.capabilities.num_closids - 3)]
    bench.make(*foreign)
    bes = (_be(bench, _BE_1, 40), _be(bench, _BE_2, 60))
    _apply(bench, *bes)
    processes = {}
    for uuid in (_BE_1, _BE_2):
        place = _plan(bench, *bes).get(uuid)
        processes[uuid] = bench.process()
        processes[uuid].add_thread()
        if place:
            bench.executor.move_process(place.group, place.monitor, processes[uuid].pid)
    _apply(bench, *bes, _lc(bench, _LC_1, 2))
    for uuid, process in processes.items():
        place = _plan(bench, *bes, _lc(bench, _LC_1, 2)).get(uuid)
        group = place.group if place else ""
        expect(process.threads() <= bench.tasks(group), True, "threads in the shared class")
    for name in foreign:
        bench.files.rmdir(name)
    bench.executor.reset()
    expect((bench.groups(), bench.monitors("")), ([], []), "groups left")
    for process in processes.values():
        expect(process.threads() <= bench.tasks(""), True, "threads in root")


def a_dry_run_writes_nothing(bench: Bench) -> None:
    before = bench.dump()
    dry = GroupWriter(Resctrl(_NoWrites(bench.files)), proc=bench.world.proc)
    change = _change(bench, _plan(bench, _lc(bench, _LC_1, 4), _be(bench, _BE_1, 40)))
    dry.check(change)
    process = bench.process()
    moves = dry.move_process(lc_group(_LC_1), "", process.pid, write=False)
    expect(moves.moved, (process.pid,), "threads it would move")
    expect(bench.dump(), before, "the tree")
    bench.executor.carry_out(change)
    foretold = dry.reset(write=False)
    expect(bool(foretold), True, "what a reset would do is told")
    expect(bench.executor.reset(), foretold, "what was foretold and what was done")


def a_crash_at_any_write_is_made_good(bench: Bench) -> None:
    """Before: an LC and a BE. After: another LC of other size, two BE. Killed before each single command."""
    before = (_lc(bench, _LC_1, 3), _be(bench, _BE_1, 40))
    after = (
        _lc(bench, _LC_1, 2),
        _lc(bench, _LC_2, 3),
        _be(bench, _BE_1, 20),
        _be(bench, _BE_2, 70),
    )
    _apply(bench, *before)
    _apply(bench, *after)
    good = bench.dump()
    crashes = 0
    while True:
        bench.clean()
        _apply(bench, *before)
        failing = _DiesAt(bench.files, crashes)
        with suppress(_KilledError):
            found = _plan(bench, *after)
            GroupWriter(Resctrl(failing), limbo_wait_s=10.0).carry_out(_change(bench, found))
            break
        _apply(bench, *after)
        expect(bench.dump(), good, f"the tree after a crash before command {crashes + 1}")
        crashes += 1
    expect(crashes >= 5, True, "commands that could be the last")


def best_effort_lends_its_classes(bench: Bench) -> None:
    """Foreign groups leave three classes: two BE have one each, then an LC comes and they share."""
    foreign = [f"foreign{n}" for n in range(bench.capabilities.num_closids - 4)]
    bench.make(*foreign)
    bes = (_be(bench, _BE_1, 40), _be(bench, _BE_2, 60))
    _apply(bench, *bes)
    expect(len(bench.groups()) - len(foreign), 2, "classes of two BE")
    _apply(bench, *bes, _lc(bench, _LC_1, 2))
    _apply(bench, *bes, _lc(bench, _LC_1, 2), _lc(bench, _LC_2, 2))
    ours = [name for name in bench.groups() if name.startswith(GROUP_PREFIX)]
    shared = [name for name in ours if name not in (lc_group(_LC_1), lc_group(_LC_2))]
    expect(len(shared), 1, "classes of two BE beside two LCs")
    if bench.capabilities.monitoring:
        wanted = sorted([vm_monitor(_BE_1), vm_monitor(_BE_2)])
        expect(bench.monitors(shared[0]), wanted, "BE VMs in it")
    with suppress(NotApplicableError):
        lower = _percent(bench, 40)
        expect([bench.values(shared[0], "MB")[bench.domains[0]]], lower, "the lower of both levels")


def a_foreign_group_that_takes_all_classes_hurts_nobody_who_has_one(bench: Bench) -> None:
    wanted = (_lc(bench, _LC_1, 3), _be(bench, _BE_1, 40))
    _apply(bench, *wanted)
    before = {name: bench.values(name, bench.capabilities.l3[0].name) for name in bench.groups()}
    decided_too_late = _plan(bench, *wanted, _lc(bench, _LC_2, 2))
    seen_too_early = _change(bench, decided_too_late)
    taken = 0
    while bench.mkdir(f"foreign{taken}") == OK:
        taken += 1
    expect(bench.capabilities.num_closids - 1 - len(before), taken, "classes of the foreign group")
    for change, word in (
        (_change(bench, decided_too_late), "CLOSIDs"),
        (seen_too_early, "foreign0 has appeared"),
    ):
        try:
            bench.executor.carry_out(change)
        except NumaExtError as error:
            expect(word in str(error), True, str(error))
        else:
            raise AssertionError("a plan for more classes than there are was applied")
    found = _plan(bench, *wanted, _lc(bench, _LC_2, 2))
    expect([refusal.uuid for refusal in found.refused], [_LC_2], "who is refused")
    bench.executor.carry_out(_change(bench, found))
    for name, masks in before.items():
        expect(bench.values(name, bench.capabilities.l3[0].name), masks, f"masks of {name}")
    for number in range(taken):
        bench.files.rmdir(f"foreign{number}")
    expect(_plan(bench, *wanted, _lc(bench, _LC_2, 2)).refused, (), "refusals when it has gone")


def threads_that_die_while_being_moved_are_no_trouble(bench: Bench) -> None:
    group = GROUP_PREFIX + "a"
    bench.make(group)
    process = bench.process()
    for _thread in range(3):
        process.add_thread()
    looks = 0

    def threads() -> set[int]:
        nonlocal looks
        looks += 1
        seen = process.threads()
        if looks <= 3:
            process.end_thread()  # after the look, before the move
        return seen

    result = bench.resctrl.move_tasks(group, "", threads)
    expect(bench.tasks(group), process.threads(), "threads in the group")
    expect(result.ended >= 1, True, "ended threads are told")


def bandwidth_is_released_and_nothing_else(bench: Bench) -> None:
    (everything,) = _percent(bench, 100)
    wanted = (_lc(bench, _LC_1, 3), _be(bench, _BE_1, 40))
    _apply(bench, *wanted)
    masks = {name: bench.values(name, bench.capabilities.l3[0].name) for name in bench.groups()}
    released = bench.executor.release_bandwidth()
    expect(len(released), 1, "commands")
    for name, mask in masks.items():
        expect(set(bench.values(name, "MB").values()), {everything}, f"bandwidth of {name}")
        expect(bench.values(name, bench.capabilities.l3[0].name), mask, f"masks of {name}")
    expect(bench.executor.release_bandwidth(), (), "the second time")


def a_level_takes_the_short_way(bench: Bench) -> None:
    """The short way writes the level of one domain of our group, and nothing else; each group answers for itself."""
    bandwidth = bench.capabilities.bandwidth
    group, domain = GROUP_PREFIX + "a", bench.domains[0]
    bench.make(group)
    if bandwidth is None or bandwidth.unit is BandwidthUnit.MBPS:
        before = bench.dump()
        (sentence,) = bench.resctrl.set_levels([GroupLevel(group, ((domain, 50),))])
        expect("not allocated" in sentence, True, sentence)
        expect(bench.dump(), before, "the tree")
        return
    step, before = bandwidth.bandwidth_gran, bench.dump()
    percent = bandwidth.min_bandwidth + step + 1
    level = bandwidth.from_percent(percent)
    if bandwidth.unit is BandwidthUnit.PERCENT:
        expect(level, bandwidth.min_bandwidth + 2 * step, "the higher of two levels")
    between = GroupLevel(group, ((domain, percent),))
    expect(bench.resctrl.set_levels([between]), ("",), "problems of a level between two")
    values = bench.values(group, "MB")
    expect(values[domain], level, "the level")
    others = {values[other] for other in bench.domains[1:]}
    expect(others <= {bandwidth.max_bandwidth}, True, f"other domains have {others}")
    changed = {file for file, text in bench.dump().items() if before[file] != text}
    expect(changed, {file for file in before if file == f"{group}/schemata"}, "files")
    gone = GroupLevel(GROUP_PREFIX + "gone", ((domain, level),))
    lost, kept = bench.resctrl.set_levels([gone, between])
    expect("gone" in lost, True, lost)
    expect(kept, "", "our group")


def an_illegal_plan_writes_nothing(bench: Bench) -> None:
    before = bench.dump()
    found = _plan(bench, _lc(bench, _LC_1, 4))
    name, cache = found.groups[0].name, bench.capabilities.l3[0]
    masks = {cache.name: {bench.domains[0]: _illegal_mask(cache)}}
    broken = replace(found, groups=(replace(found.groups[0], schemata=masks),))
    try:
        bench.executor.carry_out(_change(bench, broken))
    except NumaExtError as error:
        expect(name in str(error) and f"domain {bench.domains[0]}" in str(error), True, str(error))
    else:
        raise AssertionError("an illegal plan was applied")
    expect(bench.dump(), before, "the tree")


class _KilledError(Exception):
    """The agent died here."""


@dataclass(slots=True)
class _DiesAt:
    """A tree that kills its user before the n-th command."""

    files: ResctrlFiles
    left: int

    def _step(self) -> None:
        if self.left == 0:
            raise _KilledError
        self.left -= 1

    def read(self, path: str) -> str:
        return self.files.read(path)

    def write(self, path: str, data: str) -> None:
        self._step()
        self.files.write(path, data)

    def mkdir(self, path: str) -> None:
        self._step()
        self.files.mkdir(path)

    def rmdir(self, path: str) -> None:
        self._step()
        self.files.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        return self.files.listdir(path)

    def directories(self, path: str) -> list[str]:
        return self.files.directories(path)

    def identity(self, path: str) -> int:
        return self.files.identity(path)

    def lock(self, *, exclusive: bool) -> AbstractContextManager[None]:
        return self.files.lock(exclusive=exclusive)

    def options(self) -> frozenset[str]:
        return self.files.options()


class _NoWrites(_DiesAt):
    """A tree that may only be read."""

    def __init__(self, files: ResctrlFiles) -> None:
        super().__init__(files, 0)

    def _step(self) -> None:
        raise AssertionError("a dry run gave a command")


CASES: tuple[Case, ...] = (
    capabilities_come_from_info,
    errors_carry_the_kernels_sentence,
    only_our_groups_can_be_changed,
    running_out_is_told,
    all_threads_are_moved_and_stay,
    a_removed_group_gives_all_threads_back,
    threads_born_while_moving_are_caught,
    an_ended_thread_is_passed_over,
    counters_are_typed,
    a_group_made_again_is_another_one,
    lcs_own_their_ways,
    every_class_has_all_of_the_second_level_cache,
    a_plan_applied_twice_changes_nothing,
    tampering_is_repaired,
    departure_gives_the_ways_back,
    foreign_groups_stay_untouched,
    reset_leaves_the_tree_as_mounted,
    monitored_threads_follow_a_merge_and_a_reset,
    a_dry_run_writes_nothing,
    a_crash_at_any_write_is_made_good,
    best_effort_lends_its_classes,
    a_foreign_group_that_takes_all_classes_hurts_nobody_who_has_one,
    threads_that_die_while_being_moved_are_no_trouble,
    bandwidth_is_released_and_nothing_else,
    a_level_takes_the_short_way,
    an_illegal_plan_writes_nothing,
)
