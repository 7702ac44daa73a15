#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tell, as JSON, what kernel and libvirt of this host do with each running domain.

Runs on a compute host of the lab and shares no code with the host agent on purpose: the show and the integration
tests compare what the agent claims with what is read here. It starts no process, because under TCG each takes seconds:
what libvirt says of a domain is read from the status file that libvirtd keeps of it.

Output, one object:

* ``domains``: per running domain uuid, name, pid, server and flavor (of nova's metadata), state, hostdevs (PCI
  addresses), vcpus and other_threads (tid, comm, cpus), ram_kb, pages_kb (resident guest RAM per NUMA node),
  mem_policy, groups and monitors (resctrl control and monitoring groups that hold its vCPU threads)
* ``resctrl``: per control group, the root group being "": schemata ({resource: {domain: value}}), tasks, monitors
* ``shareable``: hexadecimal mask of the L3 ways that the hardware shares with devices
* ``node_cpus``, ``l3_cpus``: CPU list per NUMA node and per L3 cache
"""

import argparse
import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

RESCTRL = Path("/sys/fs/resctrl")
NOT_GROUPS = {"info", "mon_groups", "mon_data"}
STATUS = Path("/run/libvirt/qemu")


def running(uuids):
    """libvirt's status of each domain that has a process, or of those of ``uuids``."""
    found = []
    for path in sorted(STATUS.glob("*.xml")):
        try:
            status = ElementTree.fromstring(path.read_text())
        except FileNotFoundError:
            continue  # it ended while we looked
        if int(status.get("pid", "0")) > 0 and (
            not uuids or status.findtext("domain/uuid") in uuids
        ):
            found.append(status)
    return found


def guest_ram(pid, sizes_kb):
    """Resident kB per NUMA node and memory policy of the mappings that hold the guest's RAM.

    A mapping holds guest RAM when its size is one of ``sizes_kb``: QEMU maps each NUMA cell's memory (or all of it) in
    one piece with guard pages around.
    """
    left = list(sizes_kb)
    starts = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if permissions.startswith("rw") and (end - start) // 1024 in left:
            left.remove((end - start) // 1024)
            starts.add(start)
    pages, policies = {}, set()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        words = line.split()
        if int(words[0], 16) not in starts:
            continue
        policies.add(words[1])
        fields = dict(word.split("=", 1) for word in words[2:] if "=" in word)
        page_kb = int(fields.get("kernelpagesize_kB", "4"))
        for key, count in fields.items():
            if key[0] == "N" and key[1:].isdigit():
                pages[key[1:]] = pages.get(key[1:], 0) + int(count) * page_kb
    return pages, sorted(policies), len(starts) == len(list(sizes_kb))


def threads(pid):
    """(tid, comm, allowed CPU list) of each thread of a process."""
    found = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
        try:
            comm = (task / "comm").read_text().strip()
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread ended while we looked
        cpus = next(
            line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list")
        )
        found.append((int(task.name), comm, cpus))
    return found


def schemata(path):
    """Parse a schemata file into {resource: {domain: value}}, masks in hexadecimal as the kernel writes them."""
    parsed = {}
    for line in (path / "schemata").read_text().splitlines():
        resource, _, values = line.strip().partition(":")
        parsed[resource] = dict(pair.strip().split("=") for pair in values.split(";"))
    return parsed


def resctrl_groups():
    """Every control group: schemata, tids, and the tids of its monitoring groups."""
    if not (RESCTRL / "schemata").exists():
        return {}
    paths = {"": RESCTRL}
    paths.update(
        {
            path.name: path
            for path in RESCTRL.iterdir()
            if path.is_dir() and path.name not in NOT_GROUPS
        }
    )
    groups = {}
    for name, path in paths.items():
        monitors = {
            child.name: [int(tid) for tid in (child / "tasks").read_text().split()]
            for child in (path / "mon_groups").iterdir()
        }
        tids = [int(tid) for tid in (path / "tasks").read_text().split()]
        groups[name] = {"schemata": schemata(path), "tids": set(tids), "monitors": monitors}
    return groups


def domain(status, groups):
    """All facts about one running domain, of libvirt's ``status``."""
    xml = status.find("domain")
    pid = int(status.get("pid"))
    name = xml.findtext("name")
    nova = "{http://openstack.org/xmlns/libvirt/nova/1.1}"
    instance = xml.find(f"metadata/{nova}instance")
    flavor = None if instance is None else instance.find(f"{nova}flavor")
    cells = xml.findall("cpu/numa/cell")
    sizes = [int(cell.get("memory")) for cell in cells] or [int(xml.findtext("memory"))]
    pages, policies, complete = guest_ram(pid, sizes)
    vcpus, others = [], []
    for tid, comm, cpus in threads(pid):
        (vcpus if comm.startswith("CPU ") else others).append(
            {"tid": tid, "comm": comm, "cpus": cpus}
        )
    tids = {thread["tid"] for thread in vcpus}
    of_threads = {group for group, facts in groups.items() if tids & facts["tids"]}
    monitor = {
        monitor
        for facts in groups.values()
        for monitor, watched in facts["monitors"].items()
        if tids & set(watched)
    }
    return {
        "uuid": xml.findtext("uuid"),
        "name": name,
        "pid": pid,
        "server": None if instance is None else instance.findtext(f"{nova}name"),
        "flavor": None if flavor is None else flavor.get("name"),
        "state": status.get("state"),
        "hostdevs": [
            "{domain}:{bus}:{slot}.{function}".format(
                **{k: v[2:] for k, v in address.attrib.items() if k != "type"}
            )
            for address in xml.findall("devices/hostdev/source/address")
        ],
        "vcpus": vcpus,
        "other_threads": others,
        "ram_kb": sum(sizes),
        "ram_mappings_complete": complete,
        "pages_kb": pages,
        "mem_policy": policies,
        "groups": sorted(of_threads),
        "monitors": sorted(monitor),
    }


def cpu_lists(pattern, key):
    """{number in the path or file: CPU list} for a sysfs glob."""
    found = {}
    for path in sorted(Path("/sys/devices/system").glob(pattern)):
        found[key(path)] = path.read_text().strip()
    return found


def main():
    """Print the facts as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uuids", nargs="*", help="only these domains; default: all")
    arguments = parser.parse_args()
    groups = resctrl_groups()
    result = {
        "domains": [domain(status, groups) for status in running(arguments.uuids)],
        "resctrl": {
            name: {
                "schemata": facts["schemata"],
                "tasks": len(facts["tids"]),
                "monitors": sorted(facts["monitors"]),
            }
            for name, facts in groups.items()
        },
        "shareable": "0",
        "node_cpus": cpu_lists(
            "node/node[0-9]*/cpulist", lambda path: path.parent.name.removeprefix("node")
        ),
        "l3_cpus": cpu_lists(
            "cpu/cpu[0-9]*/cache/index3/shared_cpu_list",
            lambda path: (path.parent / "id").read_text().strip(),
        ),
        "uptime_s": float(Path("/proc/uptime").read_text().split()[0]),
        "host": os.uname().nodename,
    }
    shareable = RESCTRL / "info/L3/shareable_bits"
    if shareable.exists():
        result["shareable"] = shareable.read_text().strip()
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
