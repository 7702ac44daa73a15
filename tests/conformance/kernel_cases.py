# SPDX-License-Identifier: Apache-2.0
"""How the kernel's resctrl interface itself behaves: texts, error numbers, sentences, limits.

Source: Linux Documentation/filesystems/resctrl.rst and what kernels 6.1 and 6.12 answered.
"""

from host_agent.model.rdt import (
    UINT32_MAX,
    BandwidthControl,
    BandwidthUnit,
    CacheControl,
    parse_mask,
)
from tests.conformance.bench import OK, Bench, Case, NotApplicableError, expect


def _cache(bench: Bench) -> CacheControl:
    cache = bench.capabilities.cache("L3")
    if cache is None:
        raise NotApplicableError("mounted with CDP, or without L3 allocation")
    return cache


def _only_l3(bench: Bench) -> CacheControl:
    if bench.capabilities.l2:
        raise NotApplicableError("exclusive looks at the L2, too")
    return _cache(bench)


def _mba(bench: Bench, *units: BandwidthUnit) -> BandwidthControl:
    """Return the bandwidth control; skip the case without one, or in another unit than these."""
    bandwidth = bench.capabilities.bandwidth
    if bandwidth is None:
        raise NotApplicableError("no memory bandwidth allocation")
    if units and bandwidth.unit not in units:
        raise NotApplicableError(f"bandwidth in {bandwidth.unit}")
    return bandwidth


def info_is_readable_and_not_writable(bench: Bench) -> None:
    cache = _cache(bench)
    full = parse_mask(bench.read("info/L3/cbm_mask"))
    expect(full & (full + 1), 0, "cbm_mask is a run from bit 0")
    expect(bench.read("info/L3/num_closids"), f"{cache.num_closids}\n", "num_closids")
    has_sparse = "sparse_masks" in bench.files.listdir("info/L3")
    expect(has_sparse, bench.profile.sparse_masks_file, "info/L3/sparse_masks exists")
    expect(bench.write("info/L3/num_closids", "4\n"), "EACCES", "write to info")


def root_has_everything_after_mount(bench: Bench) -> None:
    cache = _cache(bench)
    expect(bench.values("", "L3"), dict.fromkeys(bench.domains, cache.cbm_mask), "root's masks")
    expect(bench.read("mode"), "shareable\n", "root's mode")
    expect(bench.status(), OK, "status")


def new_group_shares_everything(bench: Bench) -> None:
    cache = _cache(bench)
    bench.make("a")
    expect(bench.values("a", "L3"), dict.fromkeys(bench.domains, cache.cbm_mask), "default masks")
    expect(bench.read("a/mode"), "shareable\n", "default mode")
    expect(bench.read("a/tasks"), "", "threads of a new group")
    bandwidth = bench.capabilities.bandwidth
    if bandwidth:
        everything = {bandwidth.max_bandwidth}
        expect(set(bench.values("a", "MB").values()), everything, "default bandwidth")


def new_group_keeps_out_of_exclusive_ways(bench: Bench) -> None:
    cache = _only_l3(bench)
    low = 0b1111
    rest = cache.cbm_mask & ~low
    first = bench.domains[0]
    everywhere = ";".join(f"{d}={rest:x}" for d in bench.domains)
    bench.make("a")
    bench.accepted("schemata", f"L3:{everywhere}\n")
    bench.accepted("a/schemata", "L3:" + ";".join(f"{d}={low:x}" for d in bench.domains) + "\n")
    bench.accepted("a/mode", "exclusive\n")
    bench.make("b")
    expect(bench.values("b", "L3")[first], rest, "default mask beside an exclusive group")


def schemata_forms_that_are_taken(bench: Bench) -> None:
    _cache(bench)
    bench.make("a")
    first, last = bench.domains[0], bench.domains[-1]
    for text, mask in (("ff", 0xFF), ("0xf", 0xF), ("0XF0", 0xF0), (" 7", 0x7)):
        bench.accepted("a/schemata", f"L3:{first}={text}\n")
        expect(bench.values("a", "L3")[first], mask, f"mask after {text!r}")
    if first != last:
        bench.accepted("a/schemata", f"L3:{first}=3;{last}=f0\n")
        expect(bench.values("a", "L3")[last], 0xF0, "mask of the second domain")
    bench.accepted("a/schemata", f"L3:{first}=7;\n")


def masks_that_are_refused(bench: Bench) -> None:
    cache = _cache(bench)
    if cache.sparse_masks:
        raise NotApplicableError("masks may have holes here")
    bench.make("a")
    d = bench.domains[0]
    before = bench.read("a/schemata")
    too_long = cache.cbm_mask << 1
    for text, status in (
        ("505", "The mask 505 has non-consecutive 1-bits"),
        ("0", "Mask out of range"),
        (f"{too_long:x}", "Mask out of range"),
        ("zz", "Non-hex character in the mask zz"),
    ):
        bench.refused("a/schemata", f"L3:{d}={text}\n", "EINVAL", status)
    if cache.min_cbm_bits > 1:
        text = f"Need at least {cache.min_cbm_bits} bits in the mask"
        bench.refused("a/schemata", f"L3:{d}=1\n", "EINVAL", text)
    expect(bench.read("a/schemata"), before, "schemata after refused writes")


def schemata_forms_that_are_refused(bench: Bench) -> None:
    _cache(bench)
    bench.make("a")
    d = bench.domains[0]
    not_a_domain = "Missing '=' or non-numeric domain"
    for text, status in (
        ("L3:x=f\n", not_a_domain),
        (f" L3 : {d} = 7\n", not_a_domain),
        (f"L3 {d}=f\n", "Missing ':'"),
        ("L3:\n", "Missing 'L3' value"),
        ("\n", "Missing ':'"),
        (f"L9:{d}=f\n", "Unknown or unsupported resource name 'L9'"),
        (f"L3:{d}=f;{d}=ff\n", f"Duplicate domain {d}"),
    ):
        bench.refused("a/schemata", text, "EINVAL", status)


def unknown_domain_gets_no_reason(bench: Bench) -> None:
    _cache(bench)
    bench.make("a")
    bench.refused("a/schemata", f"L3:{max(bench.domains) + 7}=f\n", "EINVAL", OK)


def unterminated_schemata_leave_the_status(bench: Bench) -> None:
    _cache(bench)
    bench.make("a")
    bench.refused("a/schemata", "L3:\n", "EINVAL", "Missing 'L3' value")
    bench.refused("a/schemata", f"L3:{bench.domains[0]}=f", "EINVAL", "Missing 'L3' value")


def bandwidth_is_rounded_up_and_bounded(bench: Bench) -> None:
    _mba(bench, BandwidthUnit.PERCENT)
    bench.make("a")
    d = bench.domains[0]
    for text, value in (("50", 50), ("55", 60), ("10", 10), ("91", 100)):
        bench.accepted("a/schemata", f"MB:{d}={text}\n")
        expect(bench.values("a", "MB")[d], value, f"bandwidth after {text}")
    for text in ("5", "0", "110"):
        status = f"MB value {text} out of range [10,100]"
        bench.refused("a/schemata", f"MB:{d}={text}\n", "EINVAL", status)
    bench.refused("a/schemata", f"MB:{d}=abc\n", "EINVAL", "Invalid MB value abc")


def absolute_bandwidth_is_bounded_and_not_rounded(bench: Bench) -> None:
    """AMD: steps of 1/8 GB/s from nothing to the limit."""
    most = _mba(bench, BandwidthUnit.EIGHTH_GBPS).max_bandwidth
    bench.make("a")
    d = bench.domains[0]
    for value in (0, 1, 17, most):
        bench.accepted("a/schemata", f"MB:{d}={value}\n")
        expect(bench.values("a", "MB")[d], value, f"bandwidth after {value}")
    status = f"MB value {most + 1} out of range [0,{most}]"
    bench.refused("a/schemata", f"MB:{d}={most + 1}\n", "EINVAL", status)


def the_kernels_loop_takes_any_number(bench: Bench) -> None:
    """``mba_MBps``: a limit in MiB/s that the kernel tries to keep; nothing is rounded or out of range."""
    _mba(bench, BandwidthUnit.MBPS)
    bench.make("a")
    d = bench.domains[0]
    for value in (0, 1, 12_345, UINT32_MAX):
        bench.accepted("a/schemata", f"MB:{d}={value}\n")
        expect(bench.values("a", "MB")[d], value, f"bandwidth after {value}")
    text = str(UINT32_MAX + 1)
    bench.refused("a/schemata", f"MB:{d}={text}\n", "EINVAL", f"Invalid MB value {text}")


def code_and_data_have_masks_of_their_own(bench: Bench) -> None:
    """CDP, of the L3 or of the L2: two lines, half as many classes, no line for the cache as a whole."""
    pairs = [(c, bench.capabilities.cache(c[:2] + "DATA")) for c in ("L3CODE", "L2CODE")]
    found = [(code, data) for code, data in pairs if data is not None]
    if not found:
        raise NotApplicableError("not mounted with CDP")
    bench.make("a")
    for code, data in found:
        d = data.domains[-1]
        bench.accepted("a/schemata", f"{code}:{d}=1\n{data.name}:{d}=6\n")
        expect((bench.values("a", code)[d], bench.values("a", data.name)[d]), (1, 6), "masks")
        expect(bench.values("", code)[d], data.cbm_mask, "root's mask for code")
        whole = f"{code[:2]}:{d}=1\n"
        status = f"Unknown or unsupported resource name '{code[:2]}'"
        bench.refused("a/schemata", whole, "EINVAL", status)
    counts = {cache.num_closids for cache in bench.capabilities.caches}
    expect(bench.capabilities.num_closids, min(counts), "classes that groups may have")


def one_write_is_all_or_nothing(bench: Bench) -> None:
    _cache(bench)
    _mba(bench, BandwidthUnit.PERCENT)
    bench.make("a")
    d = bench.domains[0]
    bench.accepted("a/schemata", f"MB:{d}=20\nL3:{d}=f\n")
    before = bench.read("a/schemata")
    text = "MB value 5 out of range [10,100]"
    bench.refused("a/schemata", f"L3:{d}=3\nMB:{d}=5\n", "EINVAL", text)
    expect(bench.read("a/schemata"), before, "schemata after a half legal write")


def size_follows_the_mask(bench: Bench) -> None:
    cache = _cache(bench)
    bench.make("a")
    d = bench.domains[0]

    def size() -> int:
        lines = (line.strip() for line in bench.read("a/size").split("\n"))
        line = next(line for line in lines if line.startswith("L3:"))
        return int(dict(pair.split("=") for pair in line[3:].split(";"))[str(d)])

    whole = size()
    bench.accepted("a/schemata", f"L3:{d}=f\n")
    expect(size(), whole // cache.ways * 4, "bytes of four ways")


def numbers_at_the_edge(bench: Bench) -> None:
    _cache(bench)
    _mba(bench)
    bench.make("a")
    d = bench.domains[0]
    for text in (
        f"L3:{d}=+7",
        f"L3:+{d}=7",
        f"L3:0{d}=7",
        f"L3:{d}=7;",
        f"L3:{d}=7\0zz",
        f"MB:{d}=+20",
    ):
        bench.accepted("a/schemata", text + "\n")
    long_mask, long_number = "f" * 17, "99999999999"
    for text, status in (
        (f"L3:{d}=7;;{d}=7", "Missing '=' or non-numeric domain"),
        (f"L3:-{d}=7", "Missing '=' or non-numeric domain"),
        (f"L3:{d}={long_mask}", f"Non-hex character in the mask {long_mask}"),
        (f"MB:{d}={long_number}", f"Invalid MB value {long_number}"),
        (f"MB:{d}=0x20", "Invalid MB value 0x20"),
    ):
        bench.refused("a/schemata", text + "\n", "EINVAL", status)


def exclusive_mode(bench: Bench) -> None:
    cache = _only_l3(bench)
    if cache.shareable_bits & 0xFF:
        raise NotApplicableError("the low ways are shareable")
    bench.make("a", "b")

    def everywhere(mask: int) -> str:
        return "L3:" + ";".join(f"{d}={mask:x}" for d in bench.domains) + "\n"

    bench.refused("a/mode", "exclusive\n", "EINVAL", "Schemata overlaps")
    bench.accepted("schemata", everywhere(cache.cbm_mask & ~0xF))
    bench.accepted("b/schemata", everywhere(cache.cbm_mask & ~0xF))
    bench.accepted("a/schemata", everywhere(0xF))
    bench.accepted("a/mode", "exclusive\n")
    expect(bench.read("a/mode"), "exclusive\n", "mode")
    bench.refused("b/schemata", everywhere(0xFF), "EINVAL", "Overlaps with exclusive group")
    bench.refused("a/schemata", everywhere(0x1F), "EINVAL", "Overlaps with other group")
    usage = bench.read("info/L3/bit_usage").strip().split(";")[0].split("=")[1]
    expect(usage[-4:], "EEEE", "usage of the exclusive ways")
    expect(set(usage[:-4]) <= {"S", "X"}, True, "usage of the other ways")
    bench.accepted("a/mode", "shareable\n")


def modes_that_are_refused(bench: Bench) -> None:
    _cache(bench)
    bench.make("a")
    bench.refused("a/mode", "bogus\n", "EINVAL", "Unknown or unsupported mode")
    bench.refused("a/mode", "pseudo-locksetup\n", "EINVAL", "Pseudo-locking not supported")
    expect(bench.read("a/mode"), "shareable\n", "mode after refused writes")


def a_thread_is_in_one_control_group(bench: Bench) -> None:
    bench.make("a", "b")
    pid = bench.process().pid
    expect(pid in bench.tasks(""), True, "a new process is in root")
    for group in ("a", "b", ""):
        bench.accepted(f"{group}/tasks" if group else "tasks", f"{pid}\n")
        found = [name for name in ("", "a", "b") if pid in bench.tasks(name)]
        expect(found, [group], "groups of the thread")


def task_ids_that_are_refused(bench: Bench) -> None:
    bench.make("a")
    pid = bench.process().pid
    missing = 4194000  # below the kernel's largest pid, above any that runs here
    no_task = f"No task {missing}"
    if bench.profile.task_lists:
        no_task += f"\nError while processing task {missing}"
    bench.refused("a/tasks", f"{missing}\n", "ESRCH", no_task)
    after_bad = "Task list parsing error pid abc" if bench.profile.task_lists else no_task
    bench.refused("a/tasks", "abc\n", "EINVAL", after_bad)
    after_negative = "Invalid pid -1" if bench.profile.task_lists else no_task
    bench.refused("a/tasks", "-1\n", "EINVAL", after_negative)
    if bench.profile.task_lists:
        bench.accepted("a/tasks", f"{pid},{pid},\n")
        expect(bench.tasks("a"), {pid}, "threads after a list")
    else:
        expect(bench.write("a/tasks", f"{pid},{pid}\n"), "EINVAL", "a list of ids")
        expect(bench.tasks("a"), set(), "threads after a refused list")


def zero_means_the_writer(bench: Bench) -> None:
    if bench.world.own_tid is None:
        raise NotApplicableError("nobody writes to the in-process model")
    bench.make("a")
    bench.accepted("a/tasks", "0\n")
    expect(bench.world.own_tid in bench.tasks("a"), True, "the writer is in the group")
    bench.accepted("tasks", "0\n")


def moving_a_process_id_moves_one_thread(bench: Bench) -> None:
    bench.make("a")
    process = bench.process()
    process.add_thread()
    process.add_thread()
    bench.accepted("a/tasks", f"{process.pid}\n")
    expect(bench.tasks("a"), {process.pid}, "threads in the group")


def threads_and_children_inherit(bench: Bench) -> None:
    bench.needs_monitoring()
    bench.make("a", "a/mon_groups/m")
    process = bench.process()
    bench.accepted("a/tasks", f"{process.pid}\n")
    bench.accepted("a/mon_groups/m/tasks", f"{process.pid}\n")
    born = {process.pid, process.add_thread(), process.fork()}
    expect(bench.tasks("a"), born, "threads in the control group")
    expect(bench.tasks("a/mon_groups/m"), born, "threads in the monitoring group")


def an_ended_thread_is_unknown(bench: Bench) -> None:
    bench.make("a")
    process = bench.process()
    process.add_thread()
    ended = process.end_thread()
    expect(bench.write("a/tasks", f"{ended}\n"), "ESRCH", "moving a thread that has ended")


def monitoring_groups_take_only_their_own(bench: Bench) -> None:
    bench.needs_monitoring()
    bench.make("a", "b", "a/mon_groups/m")
    inside, outside = bench.process().pid, bench.process().pid
    bench.accepted("a/tasks", f"{inside}\n")
    bench.accepted("b/tasks", f"{outside}\n")
    bench.accepted("a/mon_groups/m/tasks", f"{inside}\n")
    expect(inside in bench.tasks("a"), True, "a monitored thread stays in its control group")
    status = "Can't move task to different control group"
    if bench.profile.task_lists:
        status += f"\nError while processing task {outside}"
    bench.refused("a/mon_groups/m/tasks", f"{outside}\n", "EINVAL", status)
    bench.accepted("b/tasks", f"{inside}\n")
    expect(bench.tasks("a/mon_groups/m"), set(), "threads left in the monitoring group")


def removed_groups_give_threads_back(bench: Bench) -> None:
    bench.needs_monitoring()
    bench.make("a", "a/mon_groups/m")
    process = bench.process()
    bench.accepted("a/tasks", f"{process.pid}\n")
    bench.accepted("a/mon_groups/m/tasks", f"{process.pid}\n")
    expect(bench.rmdir("a/mon_groups/m"), OK, "rmdir of the monitoring group")
    expect(bench.tasks("a"), {process.pid}, "threads of the control group")
    bench.make("a/mon_groups/n")
    expect(bench.rmdir("a"), OK, "rmdir of a control group with a monitoring group")
    expect(process.pid in bench.tasks(""), True, "the thread is in root")
    expect(bench.rmdir("a"), "ENOENT", "rmdir of what is gone")


def groups_only_where_they_belong(bench: Bench) -> None:
    bench.needs_monitoring()
    bench.make("a", "mon_groups/m")
    for path in ("a/sub", "info/x", "a/mon_groups/mon_groups"):
        expect(bench.mkdir(path), "EPERM", f"mkdir {path}")
    expect(bench.mkdir("bad\nname"), "EINVAL", "mkdir of a name with a newline")
    expect(bench.mkdir("a"), "EEXIST", "mkdir of what is there")
    for path in ("info", "mon_data", "a/mon_groups"):
        expect(bench.rmdir(path), "EPERM", f"rmdir {path}")
    expect(bench.rmdir("mon_groups/m"), OK, "rmdir of root's monitoring group")


def cpus_belong_to_one_group(bench: Bench) -> None:
    bench.make("a")
    everything = bench.read("cpus_list").strip()
    if everything in ("0", ""):
        raise NotApplicableError("one CPU only")
    expect(bench.write("a/cpus_list", "1\n"), OK, "give CPU 1 to a group")
    expect(bench.read("a/cpus_list"), "1\n", "its CPUs")
    expect(bench.read("cpus_list").strip() != everything, True, "root has lost it")
    expect(bench.write("a/cpus", "zz\n"), "EINVAL", "no mask")
    expect(bench.status().split("\n")[-1], "Bad CPU list/mask", "status")
    for text, error in (("3-2", "EINVAL"), ("x", "EINVAL"), ("9000", "ERANGE")):
        expect(bench.write("a/cpus_list", f"{text}\n"), error, f"CPU list {text}")
    expect(bench.write("cpus_list", f"{everything}\n"), OK, "root takes all")
    expect(bench.read("a/cpus_list"), "\n", "CPUs left in the group")
    expect(bench.write("cpus_list", "0\n"), "EINVAL", "root gives CPUs away to nobody")
    expect(bench.status().split("\n")[-1], "Can't drop CPUs from default group", "status")


def status_of_cpus_and_mkdir(bench: Bench) -> None:
    bench.make("a")
    expect(bench.write("a/schemata", "\n"), "EINVAL", "no schemata")
    for _ in range(2):
        expect(bench.write("a/cpus", "zz\n"), "EINVAL", "no mask")
    bad = "Bad CPU list/mask"
    appended = f"Missing ':'\n{bad}\n{bad}"
    expect(
        bench.status(), bad if bench.profile.cpus_clears_status else appended, "status after cpus"
    )
    before = bench.status()
    bench.make("b")
    expect(
        bench.status(), OK if bench.profile.mkdir_clears_status else before, "status after mkdir"
    )


def classes_run_out(bench: Bench) -> None:
    wanted = bench.capabilities.num_closids - 1
    bench.make(*(f"g{n}" for n in range(wanted)))
    expect(bench.mkdir("one_more"), "ENOSPC", "one group too many")
    expect(bench.status().split("\n")[-1], "Out of CLOSIDs", "status")
    expect("one_more" in bench.groups(), False, "the group exists")
    expect(bench.rmdir("g0"), OK, "rmdir")
    bench.make("one_more")


def the_status_has_room_for_511_characters(bench: Bench) -> None:
    if not bench.profile.closid_before_rmid:
        raise NotApplicableError("each try puts an RMID into limbo")
    bench.make(*(f"g{n}" for n in range(bench.capabilities.num_closids - 1)))
    bench.clear_status()
    for _ in range(40):
        expect(bench.mkdir("one_more"), "ENOSPC", "one group too many")
    line = bench.status().split("\n")[0] + "\n"
    expect(len(bench.status()) + 1, 511 // len(line) * len(line), "characters in the status")


def monitoring_ids_run_out(bench: Bench) -> None:
    if bench.capabilities.monitoring is None:
        raise NotApplicableError("no monitoring")
    wanted = bench.capabilities.monitoring.num_rmids - 1
    if wanted > 64:
        raise NotApplicableError("too many RMIDs to try")
    bench.make(*(f"mon_groups/m{n}" for n in range(wanted)))
    expect(bench.mkdir("mon_groups/one_more"), "ENOSPC", "one group too many")
    expect(bench.status().split("\n")[-1], "Out of RMIDs", "status")
    expect(bench.mkdir("a"), "ENOSPC", "a control group without an RMID")


def both_ids_run_out(bench: Bench) -> None:
    monitoring = bench.capabilities.monitoring
    if monitoring is None or monitoring.num_rmids > 64:
        raise NotApplicableError("no monitoring, or too many RMIDs to try")
    groups = bench.capabilities.num_closids - 1
    bench.make(*(f"g{n}" for n in range(groups)))
    bench.make(*(f"mon_groups/m{n}" for n in range(monitoring.num_rmids - 1 - groups)))
    expect(bench.mkdir("one_more"), "ENOSPC", "one group too many")
    first = "CLOSIDs" if bench.profile.closid_before_rmid else "RMIDs"
    expect(bench.status().split("\n")[-1], f"Out of {first}", "what is missed first")


def counters_are_numbers_by_domain(bench: Bench) -> None:
    monitoring = bench.needs_monitoring()
    bench.make("a", "a/mon_groups/m")
    for group in ("", "a/", "a/mon_groups/m/"):
        domains = bench.files.listdir(f"{group}mon_data")
        expect(domains, [f"mon_L3_{d:02d}" for d in bench.domains], "domains that are counted")
        for event in monitoring.features:
            text = bench.read(f"{group}mon_data/{domains[0]}/{event}").strip()
            expect(
                text.isdecimal(), True, f"{event} of {group or 'root'} is a number, it is {text}"
            )


def occupancy_threshold_is_bounded(bench: Bench) -> None:
    bench.needs_monitoring()
    path = "info/L3_MON/max_threshold_occupancy"
    before = bench.read(path)
    expect(bench.write(path, "0\n"), OK, "a threshold of nothing")
    expect(bench.write(path, "999999999999\n"), "ERANGE", "a threshold beyond 32 bits")
    expect(bench.write(path, "4294967295\n"), "EINVAL", "a threshold beyond the cache")
    expect(bench.write(path, before), OK, "the old threshold")


CASES: tuple[Case, ...] = (
    info_is_readable_and_not_writable,
    root_has_everything_after_mount,
    new_group_shares_everything,
    new_group_keeps_out_of_exclusive_ways,
    schemata_forms_that_are_taken,
    masks_that_are_refused,
    schemata_forms_that_are_refused,
    unknown_domain_gets_no_reason,
    unterminated_schemata_leave_the_status,
    bandwidth_is_rounded_up_and_bounded,
    absolute_bandwidth_is_bounded_and_not_rounded,
    the_kernels_loop_takes_any_number,
    code_and_data_have_masks_of_their_own,
    one_write_is_all_or_nothing,
    size_follows_the_mask,
    numbers_at_the_edge,
    exclusive_mode,
    modes_that_are_refused,
    a_thread_is_in_one_control_group,
    task_ids_that_are_refused,
    zero_means_the_writer,
    moving_a_process_id_moves_one_thread,
    threads_and_children_inherit,
    an_ended_thread_is_unknown,
    monitoring_groups_take_only_their_own,
    removed_groups_give_threads_back,
    groups_only_where_they_belong,
    cpus_belong_to_one_group,
    status_of_cpus_and_mkdir,
    classes_run_out,
    the_status_has_room_for_511_characters,
    monitoring_ids_run_out,
    both_ids_run_out,
    counters_are_numbers_by_domain,
    occupancy_threshold_is_bounded,
)
