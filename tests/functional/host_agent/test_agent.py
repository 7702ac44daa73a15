# SPDX-License-Identifier: Apache-2.0
"""Stories of the agent on a real libvirt with real QEMU processes: what it does is read back from the kernel."""

import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from emulation.servers import BE_SPECS, LC_SPECS, Server
from tests.functional.host_agent.conftest import ComputeHost, wait_for
from tests.support.ports import free_port

pytestmark = pytest.mark.root

BE_GROUP = "numa_ext-be-0"
BE_LEVEL = "50"


def threads(pid: int) -> dict[int, tuple[str, str]]:
    """Thread -> (name, CPUs it may run on)."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(
            line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line
        )
        found[int(task.name)] = (status["Name"].strip(), status["Cpus_allowed_list"].strip())
    return found


def vcpu_cpus(pid: int) -> list[str]:
    """CPUs of the vCPU threads."""
    return [allowed for name, allowed in threads(pid).values() if name.startswith("CPU ")]


def lc_group(server: Server) -> str:
    """Name of an LC's group."""
    return f"numa_ext-lc-{server.uuid[:13]}"


def journal(host: ComputeHost) -> list[dict[str, Any]]:
    """All entries."""
    file = host.state / "journal.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def fingerprint(host: ComputeHost, *pids: int) -> dict[str, Any]:
    """Everything the agent may write: affinities, RDT groups and members, its own files."""
    return {
        "threads": {pid: threads(pid) for pid in pids},
        "schemata": {group: host.schemata(group) for group in ("", *sorted(host.groups()))},
        "tasks": {group: host.tasks(group) & _all_threads(pids) for group in sorted(host.groups())},
        "state": sorted(path.name for path in host.state.glob("*")),
    }


def _all_threads(pids: tuple[int, ...]) -> set[int]:
    return {tid for pid in pids for tid in threads(pid)}


def partitioned(host: ComputeHost, lc: Server, be: Server) -> None:
    """Assert the end state of one LC on CPU 1 and one floating BE."""
    lc_pid, be_pid = host.pid(lc), host.pid(be)
    lc_mask = int(host.schemata(lc_group(lc))["L3"][0], 16)
    assert lc_mask.bit_count() == 4
    assert not lc_mask & 0xC00, "the LC has shareable ways"
    for group in ("", BE_GROUP):
        assert not int(host.schemata(group)["L3"][0], 16) & lc_mask, f"{group} overlaps the LC"
    assert host.schemata(BE_GROUP)["MB"][0] == BE_LEVEL
    assert host.schemata(lc_group(lc))["MB"][0] == "100"
    assert set(threads(lc_pid)) <= host.tasks(lc_group(lc))
    assert set(threads(be_pid)) <= host.tasks(BE_GROUP)
    monitor = f"{BE_GROUP}/mon_groups/numa_ext-vm-{be.uuid[:13]}"
    assert set(threads(be_pid)) <= host.tasks(monitor)
    assert vcpu_cpus(lc_pid) == ["1"]
    assert vcpu_cpus(be_pid) == ["0"], "the BE left the LC's core"


def controls(host: ComputeHost) -> dict[str, str]:
    """What status says of the agent's control, by server."""
    return {row["uuid"]: row["control"] for row in json.loads(host.ctl("status", "--format=json"))}


def test_servers_land_as_their_flavors_say(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    partitioned(host, *pair)


def test_a_second_round_changes_nothing(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    before = len(journal(host))
    host.run_once()
    actions = [entry for entry in journal(host)[before:] if entry["action"] != "decide"]
    assert actions == []


def test_a_dry_run_writes_nothing(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    pids = [host.pid(server) for server in pair]
    before = fingerprint(host, *pids)
    output = [json.loads(line) for line in host.run_once("--dry-run").splitlines()]
    assert fingerprint(host, *pids) == before
    assert {entry["action"] for entry in output if entry["result"] == "would"} == {
        "pin",
        "partition",
        "join",
    }


def test_a_dry_run_prints_the_order_in_which_servers_would_be_taken_over(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    output = host.run_once("--dry-run", agent__takeover_interval_s=30).splitlines()
    entries = [json.loads(line) for line in output]
    order = [(e["title"], e["what"]) for e in entries if e["action"] == "takeover"]
    assert order == [("lc", {"after_s": 0.0}), ("be", {"after_s": 30.0})]


def test_the_first_start_takes_one_server_over_and_lets_the_other_wait(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    lc, be = pair
    agent = host.agent(agent__takeover_interval_s=3600)
    try:
        wait_for(lambda: host.groups() == {lc_group(lc)}, "the first one")
        assert vcpu_cpus(host.pid(be)) == ["0-1"]
        wait_for(lambda: controls(host)[be.uuid] == "waits", "the status")
    finally:
        agent.terminate()
        assert agent.wait(20) == 0
    host.run_once()
    partitioned(host, *pair)


def test_a_host_that_observes_says_what_it_would_do_and_then_does_it(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    pids = [host.pid(server) for server in pair]
    before = fingerprint(host, *pids)
    host.run_once(agent__mode="observe")
    after = fingerprint(host, *pids)
    assert after.pop("state") != before.pop("state"), "its own files are written: the journal"
    assert after == before
    would = [entry["action"] for entry in journal(host) if entry["result"] == "would"]
    assert {"pin", "partition", "join"} <= set(would)
    host.run_once()
    partitioned(host, *pair)


def test_features_are_switched_on_one_by_one(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    host.run_once(rdt__mode="observe")
    assert vcpu_cpus(host.pid(pair[1])) == ["0"], "pins are enforced"
    assert host.groups() == set()
    assert host.schemata()["L3"][0] == "fff"
    host.run_once()
    partitioned(host, *pair)


def test_a_server_on_the_deny_list_is_not_touched_and_status_shows_it(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    lc, be = pair
    where = vcpu_cpus(host.pid(be))
    denied = host.folder / "deny-servers"
    denied.write_text(f"{be.uuid}  # its owner has asked for it\n")
    try:
        host.run_once()
        assert vcpu_cpus(host.pid(be)) == where
        assert host.groups() == {lc_group(lc)}
        control = controls(host)
        assert (control[lc.uuid], control[be.uuid]) == ("enforce", "denied")
    finally:
        denied.unlink()


def test_deleting_a_server_releases_what_it_had(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    host.run_once()
    lc, be = pair
    host.destroy(lc)
    host.run_once()
    assert host.groups() == {BE_GROUP}
    assert host.schemata(BE_GROUP)["MB"][0] == "100", "no LC is left to be protected"
    assert host.schemata()["L3"][0] == "fff"
    host.destroy(be)
    host.run_once()
    assert host.groups() == set()


def test_the_running_agent_follows_events(empty_host: ComputeHost) -> None:
    host = empty_host
    agent = host.agent(agent__interval_s=30, agent__resync_s=300)
    try:
        wait_for((host.state / "journal.jsonl").exists, "the agent")
        lc, be = Server("lc", LC_SPECS, cpus=(1,)), Server("be", BE_SPECS)
        host.boot(lc)
        host.boot(be)
        wait_for(lambda: host.group_of(host.pid(be)) and host.group_of(host.pid(lc)), "groups")
        wait_for(lambda: vcpu_cpus(host.pid(be)) == ["0"], "pins")
        partitioned(host, lc, be)
        old = host.pid(lc)
        # nova's hard reboot: destroy, then create from fresh XML.
        host.destroy(lc)
        assert host.boot(lc) != old
        wait_for(lambda: host.group_of(host.pid(lc)) == lc_group(lc), "the LC's group")
        wait_for(lambda: set(threads(host.pid(lc))) <= host.tasks(lc_group(lc)), "its threads")
        wait_for(lambda: host.schemata(BE_GROUP)["MB"][0] == BE_LEVEL, "the BE's level")
        partitioned(host, lc, be)
        host.destroy(lc)
        wait_for(lambda: lc_group(lc) not in host.groups(), "the release")
    finally:
        agent.terminate()
        assert agent.wait(20) == 0


def test_stopping_the_agent_keeps_everything(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    agent = host.agent()
    wait_for(lambda: BE_GROUP in host.groups() and host.group_of(host.pid(pair[1])), "groups")
    agent.terminate()
    assert agent.wait(20) == 0
    partitioned(host, *pair)


def test_prometheus_reads_the_running_agent(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    port = free_port()
    agent = host.agent(agent__metrics_port=port)

    def text() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    label = f'server="{pair[0].uuid}"'
    try:
        wait_for(lambda: f'numa_ext_server_exclusive{{name="lc",{label}}} 1.0' in text(), "metrics")
        assert 'numa_ext_actions_total{action="join",result="done"} 2.0' in text()
    finally:
        agent.terminate()
        assert agent.wait(20) == 0


@pytest.mark.parametrize("after_ms", [400, 700, 1000])
def test_killed_at_any_moment_and_restarted_it_converges(
    host: ComputeHost, pair: tuple[Server, Server], after_ms: int
) -> None:
    agent = host.agent()
    try:
        agent.wait(after_ms / 1000)
    except subprocess.TimeoutExpired:
        agent.send_signal(signal.SIGKILL)
    assert agent.wait(10) == -signal.SIGKILL
    host.run_once()
    partitioned(host, *pair)
    for server in pair:
        assert host.domain(server).state()[0] == 1, "the server never stopped"


def test_new_threads_are_caught(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    lc, be = pair
    strayed = min(threads(host.pid(lc)))
    (host.resctrl / "tasks").write_text(f"{strayed}\n")
    os.sched_setaffinity(
        next(t for t, (n, _) in threads(host.pid(be)).items() if n[:3] == "CPU"), {1}
    )
    host.run_once()
    partitioned(host, lc, be)


def test_tampered_masks_are_put_right(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    (host.resctrl / "schemata").write_text("L3:0=fff\n")
    (host.resctrl / BE_GROUP / "schemata").write_text("MB:0=100\n")
    host.run_once()
    partitioned(host, *pair)


def test_foreign_groups_are_left_alone(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    foreign = host.resctrl / "somebody"
    foreign.mkdir()
    try:
        before = host.schemata("somebody")
        host.run_once()
        host.ctl("reset")
        assert host.groups() == {"somebody"}
        assert host.schemata("somebody") == before
    finally:
        foreign.rmdir()


def test_a_paused_server_is_left_alone_until_it_runs(empty_host: ComputeHost) -> None:
    host = empty_host
    be = Server("be", BE_SPECS, shared="0")
    pid = host.boot(be, paused=True)
    host.run_once()
    assert host.group_of(pid) == ""
    host.domain(be).resume()
    host.run_once()
    assert set(threads(pid)) <= host.tasks(BE_GROUP)


def test_bad_metadata_leaves_one_server_alone_and_serves_the_others(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    bad = [
        Server("typo", {"numa_ext:tier": "LC", "numa_ext:colour": "blue"}),
        Server("opted-out", {**BE_SPECS, "numa_ext:managed": "false"}),
        Server("untagged", {}),
        Server(
            "no-flavor",
            {},
            metadata="<metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'/></metadata>",
        ),
        Server("foreign", {}, metadata=""),
    ]
    pids = [host.boot(server) for server in bad]
    before = [threads(pid) for pid in pids]
    agent = host.agent()
    wait_for(lambda: host.group_of(host.pid(pair[0])), "groups")
    wait_for(lambda: vcpu_cpus(host.pid(pair[1])) == ["0"], "pins")
    wait_for(lambda: set(threads(host.pid(pair[1]))) <= host.tasks(BE_GROUP), "threads")
    agent.terminate()
    agent.wait(20)
    partitioned(host, *pair)
    assert [threads(pid) for pid in pids] == before
    assert {host.group_of(pid) for pid in pids} == {""}
    rows = {row["server"]: row for row in json.loads(host.ctl("status", "-f", "json"))}
    assert (
        "did you mean" in rows["typo"]["problem"] or "not an extra spec" in rows["typo"]["problem"]
    )
    assert rows["opted-out"]["why"] == "its flavor says numa_ext:managed=false"
    assert rows[f"instance-{bad[4].uuid[:8]}"]["why"] == "it has no nova metadata"
    log = (host.folder / "agent.log").read_text()
    assert log.count(f"server {bad[0].uuid} is left alone") == 1


def test_a_restarted_libvirtd_is_found_again(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    lc, be = pair
    agent = host.agent()
    try:
        wait_for(lambda: host.group_of(host.pid(lc)) and host.group_of(host.pid(be)), "groups")
        host.stop_libvirtd()
        # It goes on with what it knows: a tampered mask is put right without libvirt.
        (host.resctrl / BE_GROUP / "schemata").write_text("MB:0=100\n")
        wait_for(lambda: host.schemata(BE_GROUP)["MB"][0] == BE_LEVEL, "control without libvirt")
        host.start_libvirtd()
        late = Server("late", BE_SPECS)
        host.boot(late)
        wait_for(lambda: host.group_of(host.pid(late)), "the server that came after the restart")
    finally:
        agent.terminate()
        assert agent.wait(20) == 0


def test_status_reads_the_host_back(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    lc, be = pair
    rows = {row["uuid"]: row for row in json.loads(host.ctl("status", "-f", "json"))}
    shown = rows[lc.uuid]
    assert (shown["server"], shown["tier"], shown["nodes"], shown["cpus"]) == (
        "lc",
        "LC",
        [0],
        {"0": "1"},
    )
    assert shown["memory"] == {"0": 1.0}
    assert shown["rdt_group"] == lc_group(lc)
    assert shown["l3_mask"] == {"0": host.schemata(lc_group(lc))["L3"][0].lstrip("0")}
    assert shown["threads"] == {lc_group(lc): len(threads(host.pid(lc)))}
    assert rows[be.uuid]["mba"] == {"0": int(BE_LEVEL)}
    assert "an LC lives there" in rows[be.uuid]["why"]
    # The truth is the kernel's, not the agent's: what somebody changes is shown.
    (host.resctrl / BE_GROUP / "schemata").write_text("MB:0=70\n")
    rows = {row["uuid"]: row for row in json.loads(host.ctl("status", "-f", "json"))}
    assert rows[be.uuid]["mba"] == {"0": 70}
    assert host.ctl("status").splitlines()[0].split()[:4] == ["server", "flavor", "tier", "state"]


def test_explain_tells_why_and_what(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    story = json.loads(host.ctl("explain", "be", "-f", "json"))
    assert story["decision"]["what"]["vcpus"] == {"0": "0"}
    assert [entry["action"] for entry in story["actions"]] == ["pin", "join"]
    reported = host.ctl("explain", pair[0].uuid)
    assert "because" in reported
    assert "nova_pins=" in reported
    assert host.ctl("journal", "-n", "1").count("\n") == 1


def test_a_paused_agent_only_looks(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.ctl("pause")
    before = fingerprint(host, *(host.pid(server) for server in pair))
    host.run_once()
    after = fingerprint(host, *(host.pid(server) for server in pair))
    assert after["threads"] == before["threads"]
    assert after["tasks"] == before["tasks"] == {}
    host.ctl("resume")
    host.run_once()
    partitioned(host, *pair)


def test_reset_takes_everything_back(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    pids = [host.pid(server) for server in pair]
    before = fingerprint(host, *pids)
    host.run_once()
    rows = json.loads(host.ctl("reset", "--dry-run", "-f", "json"))
    assert {row["result"] for row in rows} == {"would"}
    partitioned(host, *pair)
    host.ctl("reset")
    after = fingerprint(host, *pids)
    assert (after["threads"], after["schemata"]) == (before["threads"], before["schemata"])


def test_the_doctor_says_what_is_there(host: ComputeHost) -> None:
    agent = host.agent()
    rows = json.loads(host.ctl("doctor", "-f", "json"))
    agent.terminate()
    agent.wait(20)
    levels = {row["check"]: row["level"] for row in rows}
    assert (levels["libvirt"], levels["rdt"], levels["helper"]) == ("good", "good", "good")


def test_without_rdt_pins_work_and_the_lack_is_told_once(empty_host: ComputeHost) -> None:
    host = empty_host
    be = Server("be", BE_SPECS, shared="0")
    host.boot(be)
    agent = host.agent(host__resctrl=host.folder / "nothing", rdt__verify_s=0.1)
    wait_for(lambda: vcpu_cpus(host.pid(be)) == ["0"], "pins")
    wait_for(lambda: any(e["action"] == "partition" for e in journal(host)), "the lack")
    agent.terminate()
    agent.wait(20)
    reported = [entry for entry in journal(host) if entry["action"] == "partition"]
    assert len(reported) == 1
    assert "no resctrl file system is mounted" in reported[0]["problem"]


def test_an_operators_own_pin_is_reported_and_not_fought_over(empty_host: ComputeHost) -> None:
    host = empty_host
    be = Server("be", BE_SPECS)
    lc = Server("lc", LC_SPECS, cpus=(1,))
    host.boot(lc)
    pid = host.boot(be)
    host.domain(be).pinVcpu(0, (False, True))
    host.run_once()
    assert vcpu_cpus(pid) == ["1"]
    refused = [entry for entry in journal(host) if entry["action"] == "refuse"]
    assert [entry["server"] for entry in refused] == [be.uuid]
    assert "pin of vCPU 0" in refused[0]["problem"]


def be_level(host: ComputeHost) -> str:
    return host.schemata(BE_GROUP)["MB"][0] if BE_GROUP in host.groups() else ""


def test_a_killed_agent_leaves_no_server_throttled(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    """Masks stay, for they hurt nobody; bandwidth returns though nobody starts the agent again."""
    agent = host.agent(rdt__release_after_s=1)
    wait_for(lambda: be_level(host) == BE_LEVEL, "the throttle")
    mask = host.schemata(lc_group(pair[0]))["L3"]
    agent.send_signal(signal.SIGKILL)
    agent.wait(10)
    wait_for(lambda: be_level(host) == "100", "the release")
    assert host.schemata(lc_group(pair[0]))["L3"] == mask


def test_a_hanging_agent_leaves_no_server_throttled_and_throttles_again_when_it_goes_on(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    agent = host.agent(rdt__release_after_s=1)
    try:
        wait_for(lambda: be_level(host) == BE_LEVEL, "the throttle")
        agent.send_signal(signal.SIGSTOP)
        wait_for(lambda: be_level(host) == "100", "the release")
        agent.send_signal(signal.SIGCONT)
        wait_for(lambda: be_level(host) == BE_LEVEL, "the throttle again")
    finally:
        agent.send_signal(signal.SIGCONT)
        agent.terminate()
        assert agent.wait(20) == 0


def test_bandwidth_can_be_released_by_hand(host: ComputeHost, pair: tuple[Server, Server]) -> None:
    host.run_once()
    partitioned(host, *pair)
    rows = json.loads(host.ctl("release-bandwidth", "-f", "json"))
    assert [row["result"] for row in rows] == ["done"]
    assert be_level(host) == "100"
    assert json.loads(host.ctl("release-bandwidth", "-f", "json")) == []


def quotas(pid: int) -> set[str]:
    """Quota of each vCPU's control group, by the kernel (version 1 or 2)."""
    found = set()
    for tid, (name, _) in threads(pid).items():
        if not name.startswith("CPU "):
            continue
        for line in Path(f"/proc/{pid}/task/{tid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            folder = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
            for file in ("cpu.cfs_quota_us", "cpu.max"):
                if (folder / file).exists():
                    found.add((folder / file).read_text().split()[0])
    return found


def test_without_bandwidth_allocation_cpu_time_is_the_throttle(empty_host: ComputeHost) -> None:
    host = empty_host
    be, lc = Server("be", BE_SPECS), Server("lc", {**LC_SPECS}, cpus=(1,))
    host.boot(lc)
    pid = host.boot(be)
    unlimited = quotas(pid)
    if not unlimited:
        pytest.skip("libvirt uses no cpu controller here")
    options = {"host__resctrl": host.folder / "nothing", "rdt__cpu_time_fallback": True}
    host.run_once(**options)
    assert quotas(pid) == {"50000"}
    assert quotas(host.pid(lc)) == unlimited, "the latency-critical server is not limited"
    host.run_once(**options)
    throttled = [entry for entry in journal(host) if entry["action"] == "throttle"]
    assert len(throttled) == 1, "a second round writes nothing"
    host.ctl("reset")
    assert quotas(pid) == unlimited

    host.run_once(**options)
    assert quotas(pid) == {"50000"}
    host.run_once(**{**options, "rdt__cpu_time_fallback": False})
    assert quotas(pid) == unlimited, "the operator has turned it off"

    agent = host.agent(rdt__release_after_s=1, **options)
    wait_for(lambda: quotas(pid) == {"50000"}, "the throttle")
    agent.send_signal(signal.SIGKILL)
    agent.wait(10)
    wait_for(lambda: quotas(pid) == unlimited, "the release")


def test_resctrl_that_is_unmounted_and_mounted_again_is_survived(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    """The kernel's tree is as new then: groups are made and threads are moved again, and pins stay all the while."""
    agent = host.agent(agent__resync_s=1)
    try:
        wait_for(lambda: be_level(host) == BE_LEVEL, "the partitions")
        host.stop_resctrl()
        wait_for(
            lambda: any(
                e["action"] == "partition" and "no resctrl file system" in e.get("problem", "")
                for e in journal(host)
            ),
            "the sentence",
        )
        assert agent.poll() is None
        host.start_resctrl()
        wait_for(lambda: be_level(host) == BE_LEVEL, "the partitions again")
        wait_for(lambda: host.group_of(host.pid(pair[1])) == BE_GROUP, "the threads")
    finally:
        agent.terminate()
        assert agent.wait(20) == 0
    partitioned(host, *pair)


def test_a_foreign_group_that_holds_all_classes_is_told_and_waited_for(
    host: ComputeHost, pair: tuple[Server, Server]
) -> None:
    closids = int((host.resctrl / "info/L3/num_closids").read_text())
    foreign = [host.resctrl / f"foreign{number}" for number in range(closids - 1)]
    for folder in foreign:
        folder.mkdir()
    agent = host.agent()
    try:
        lc, be = pair
        wait_for(
            lambda: (
                {e["server"] for e in journal(host) if e["action"] == "join"} >= {lc.uuid, be.uuid}
            ),
            "the sentences",
        )
        assert host.groups() == {folder.name for folder in foreign}
        for folder in foreign:
            folder.rmdir()
        wait_for(lambda: host.group_of(host.pid(be)) == BE_GROUP, "the partitions")
    finally:
        for folder in foreign:
            if folder.is_dir():
                folder.rmdir()
        agent.terminate()
        assert agent.wait(20) == 0
    partitioned(host, *pair)
