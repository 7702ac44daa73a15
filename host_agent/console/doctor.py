# SPDX-License-Identifier: Apache-2.0
"""What the agent needs on this host and what disturbs it: each finding says what is, and what to do."""

import http.client
import pwd
import socket
import stat
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from host_agent.conf import configuration
from host_agent.conf.configuration import Configuration
from host_agent.conf.paths import HostPaths
from host_agent.console import masking
from host_agent.control import rollout_store, slo_store
from host_agent.control.assembly.observer import topology_reader
from host_agent.control.calibration_store import CalibrationFile
from host_agent.machine import dcb
from host_agent.machine.libvirt import LibvirtSource
from host_agent.machine.privileged import client, edition
from host_agent.machine.rdt.backend import foreign_groups, tree
from host_agent.machine.rdt.errors import ResctrlUnavailableError
from host_agent.model import cpus
from host_agent.model.rdt import BandwidthUnit
from host_agent.model.workload import parse
from host_agent.observe import cables, foreign_balancers
from host_agent.observe.denied import DenyList
from host_agent.report import published_host
from nova_numa_ext.policy.modes import Mode
from placement_traits import oslo_options
from placement_traits.errors import CapabilityMissingError, NumaExtError
from placement_traits.findings import Finding, Level, verdict
from placement_traits.oslo_options import ConfigurationError
from placement_traits.regular_file import open_regular
from placement_traits.words import counted

if TYPE_CHECKING:
    from placement_traits.client import PlacementClient

_ANSWER_S: Final = 2.0
_HELPER_S: Final = 10.0  # it may have to be started
HOST_ROLE: Final = "numa_ext_host"  # as etc/placement/policy.yaml spells it
_AGENT_COMMANDS: Final = ("numa-host-agent", "host_agent.cmd.agent")
_COMMAND_WORDS: Final = 4  # python3 -P -m host_agent.cmd.agent
_PID_DIGITS: Final = 16


def check(conf: Configuration) -> list[Finding]:
    """Check everything."""
    paths = conf.paths
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _configuration(conf),
        lambda: _secrets(conf),
        lambda: _agent(paths),
        lambda: _mode(paths),
        lambda: _metrics(conf),
        lambda: _denied(conf),
        lambda: _libvirt(conf, paths),
        lambda: _helper(conf),
        lambda: _rdt(paths),
        lambda: _offline_cpus(conf),
        lambda: _unwatched(paths),
        lambda: _bandwidth(conf),
        lambda: _numa_balancing(paths),
        lambda: _numad(paths),
        lambda: _same_pages(conf, paths),
        lambda: _huge_pages(paths),
        lambda: _adapters(conf),
        lambda: _nova_conf(conf),
        lambda: _vsock(conf),
        lambda: _placement(conf),
    )
    return [finding for one in checks for finding in one()]


def _configuration(conf: Configuration) -> Iterator[Finding]:
    try:
        unread = configuration.unknown_keys(conf)
        renamed = configuration.renamed_keys(conf)
    except ConfigurationError as error:
        yield Finding("configuration", Level.BROKEN, str(error))
        return
    files = ", ".join(oslo_options.files(conf.oslo)) or "no file, defaults only"
    found = {"unknown": unread, "renamed": renamed}
    bad = "; ".join(f"{word}: {', '.join(keys)}" for word, keys in found.items() if keys)
    yield verdict("configuration", not bad, files, bad)


def _secrets(conf: Configuration) -> Iterator[Finding]:
    """Find configuration files with passwords that every user of this host can read."""
    names = configuration.secret_options(conf)
    exposed = [
        file
        for file in map(Path, oslo_options.files(conf.oslo))
        if file.stat().st_mode & stat.S_IROTH and masking.secrets([file.read_text()], names)
    ]
    files = " ".join(map(str, exposed))
    yield verdict(
        "secrets",
        not exposed,
        "no other user of this host can read them",
        f"{files}: holds passwords, and every user of this host can read it; chmod 0640 {files}; chgrp "
        f"{conf.helper.agent_user} {files}",
    )


def _agent(paths: HostPaths) -> Iterator[Finding]:
    if paths.paused.exists():
        text = f"paused ({paths.paused} exists): numa-host-agent-ctl resume"
        yield Finding("agent", Level.DEGRADED, text)
        return
    try:
        with open_regular(paths.lock) as lock:
            pid = int(lock.read(_PID_DIGITS))
        words = (paths.proc / str(pid) / "cmdline").read_text().split("\0")[:_COMMAND_WORDS]
        running = any(Path(word).name in _AGENT_COMMANDS for word in words)
    except (OSError, ValueError):
        running = False
    advice = "does not run: systemctl start numa-host-agent"
    yield verdict("agent", running, "runs", advice)


def _mode(paths: HostPaths) -> Iterator[Finding]:
    """What the agent has found last; one that has never run has found nothing."""
    kept = rollout_store.store(paths.rollout).load()
    if kept is None:
        return
    if kept.text != Mode.ENFORCE:
        why = "so says its configuration, by [agent]mode or the mode of a feature"
        if kept.placement_mode is not Mode.ENFORCE:
            why = f"the mode in Placement says {kept.placement_mode or 'nothing yet'}"
        yield Finding("mode", Level.DEGRADED, f"{kept.text}: nothing of that is enforced; {why}")
    elif kept.waiting:
        yield Finding(
            "mode", Level.GOOD, f"enforce; waiting: {counted(len(kept.waiting), 'server')}"
        )
    else:
        yield Finding("mode", Level.GOOD, "enforce")


def _denied(conf: Configuration) -> Iterator[Finding]:
    listed = DenyList(conf.agent.deny_servers)
    try:
        listed.check()
    except ConfigurationError as error:
        yield Finding("deny list", Level.BROKEN, str(error))
        return
    number = len(listed.servers())
    yield Finding(
        "deny list", Level.GOOD, f"{counted(number, 'server')} in {conf.agent.deny_servers}"
    )


def _metrics(conf: Configuration) -> Iterator[Finding]:
    """The port is the agent's, or free for it."""
    agent, check = conf.agent, "metrics port"
    if not agent.metrics_port:
        yield Finding(check, Level.DEGRADED, "no metrics: [agent]metrics_port is 0")
        return
    address = str(agent.metrics_address)
    where = f"{f'[{address}]' if ':' in address else address}:{agent.metrics_port}"
    try:
        with socket.create_connection((agent.metrics_address, agent.metrics_port), _ANSWER_S):
            pass
    except OSError:
        yield Finding(check, Level.GOOD, f"{where} is free for the agent, which serves nothing yet")
        return
    yield verdict(
        check,
        _serves_ours(where),
        f"the agent's metrics are on {where}",
        f"{where} is in use by another program: give [agent]metrics_port another one",
    )


def _serves_ours(where: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=_ANSWER_S) as answer:
            return any(line.startswith(b"# HELP numa_ext_") for line in answer)
    except (OSError, http.client.HTTPException):
        return False


def _libvirt(conf: Configuration, paths: HostPaths) -> Iterator[Finding]:
    try:
        with _connected(conf) as source:
            number = len(source.domains())
            yield Finding(
                "libvirt", Level.GOOD, f"{source.hostname()}, {counted(number, 'domain')}"
            )
    except NumaExtError as error:
        yield Finding("libvirt", Level.BROKEN, str(error))
        return
    if not paths.pid_dir.is_dir():
        text = f"{paths.pid_dir} does not exist: set [libvirt_host]pid_dir"
        yield Finding("libvirt state files", Level.BROKEN, text)


def _connected(conf: Configuration) -> closing[LibvirtSource]:
    return closing(LibvirtSource(conf.libvirt_host.uri, conf.libvirt_host.timeout_s))


def _helper(conf: Configuration) -> Iterator[Finding]:
    path = conf.helper.socket
    try:
        client.Helper(path, edition.of(conf), _HELPER_S).greet()
        problem = _unserved(conf)
    except NumaExtError as error:
        problem = f"{error}. Without the helper the agent pins, partitions and moves nothing"
    bad = Level.BROKEN if conf.rdt.enabled else Level.DEGRADED
    yield verdict("helper", not problem, f"answers on {path}", problem, bad)


def _unserved(conf: Configuration) -> str:
    """Say why the helper would refuse the agent, whose user is the owner of its folder; "" where it does not."""
    name = conf.helper.agent_user
    try:
        owner = conf.paths.state.stat().st_uid
    except OSError:
        return ""  # no agent was here
    if owner == 0:
        return ""
    try:
        served = pwd.getpwnam(name).pw_uid
    except KeyError:
        return (
            f"it serves root alone, there is no user {name} ([helper]agent_user): systemd-sysusers"
        )
    if owner == served:
        return ""
    return f"it serves root and {name} ([helper]agent_user), the agent's folder belongs to user {owner}"


def _rdt(paths: HostPaths) -> Iterator[Finding]:
    resctrl = tree(paths)
    try:
        found = resctrl.capabilities()
    except ResctrlUnavailableError as error:
        yield Finding("rdt", Level.DEGRADED, f"no partitions: {error}")
        return
    except (NumaExtError, OSError) as error:
        yield Finding("rdt", Level.BROKEN, str(error))
        return
    words = [f"{cache.name} {cache.ways} ways" for cache in found.caches]
    words += [f"MB in {found.bandwidth.unit}"] if found.bandwidth else []
    words += [f"{found.monitoring.num_rmids} RMIDs"] if found.monitoring else []
    yield Finding("rdt", Level.GOOD, f"{', '.join(words)}, {found.num_closids} classes")
    if found.bandwidth and found.bandwidth.unit is BandwidthUnit.EIGHTH_GBPS:
        yield verdict(
            "rdt MB levels",
            found.bandwidth.levels_known,
            "calibrated",
            "absolute and not calibrated, so nothing is throttled: numa-host-agent-ctl calibrate levels",
        )
    if not found.l3:
        yield Finding("rdt L3 CAT", Level.DEGRADED, "latency-critical servers cannot have ways")
    foreign = foreign_groups(resctrl)
    if foreign:
        text = (
            f"{', '.join(foreign)}: made by other software, left alone; each holds a class of service, and where its "
            "ways overlap an LC server is not exclusive. Remove them if they are not needed"
        )
        yield Finding("rdt foreign groups", Level.DEGRADED, text)


def _unwatched(paths: HostPaths) -> Iterator[Finding]:
    lcs = slo_store.load(paths.slo).report.get("lcs", {}).values()
    titles = sorted(str(lc.get("name")) for lc in lcs if lc.get("state") == slo_store.UNWATCHED)
    yield verdict(
        "latency objectives",
        not titles,
        "all that there are are watched",
        f"nothing tells the latency of {', '.join(titles)}: their objectives are not watched; plug a port "
        "(hw_qemu_guest_agent=yes) and report through it, or set [slo]prometheus_url",
    )


def _offline_cpus(conf: Configuration) -> Iterator[Finding]:
    try:
        topology = topology_reader(conf)()
    except NumaExtError as error:
        yield Finding("offline CPUs", Level.BROKEN, str(error))
        return
    offline = {cpu for node in topology.nodes for cpu in node.offline_cpus}
    unknown = offline - {cpu for core in topology.cores for cpu in core.offline}
    if not unknown:
        known = f"{cpus.text(offline)}, their L3 domains stay published" if offline else "none"
        yield Finding("offline CPUs", Level.GOOD, known)
        return
    text = (
        f"{cpus.text(unknown)}: never seen online, so that their L3 domains are not known and not published; bring "
        "them online once while the agent runs (echo 1 > /sys/devices/system/cpu/cpuN/online)"
    )
    yield Finding("offline CPUs", Level.DEGRADED, text)


def _bandwidth(conf: Configuration) -> Iterator[Finding]:
    check, known = "memory bandwidth", conf.placement.bandwidth_mbps_per_node
    if known:
        yield Finding(check, Level.GOOD, f"{known} MB/s per node")
        return
    try:
        topology = topology_reader(conf)()
    except NumaExtError as error:
        yield Finding(check, Level.DEGRADED, str(error))
        return
    measured = CalibrationFile(conf.paths.calibration).local_bandwidth_mbps(topology)
    by_node = ", ".join(f"{mbps} MB/s on node {node}" for node, mbps in sorted(measured.items()))
    yield verdict(
        check,
        bool(measured),
        f"measured: {by_node}",
        "not known, so Placement cannot count it: run numa-host-agent-ctl calibrate, or set "
        "[placement]bandwidth_mbps_per_node",
    )


def _numa_balancing(paths: HostPaths) -> Iterator[Finding]:
    if foreign_balancers.numa_balancing(paths.proc):
        text = (
            "on: no memory is spread, and no pages are moved for objectives, the kernel would move them back; "
            "sysctl kernel.numa_balancing=0"
        )
        yield Finding("kernel.numa_balancing", Level.DEGRADED, text)
    else:
        yield Finding("kernel.numa_balancing", Level.GOOD, "off")


def _numad(paths: HostPaths) -> Iterator[Finding]:
    process = foreign_balancers.numad(paths.proc)
    if process is None:
        yield Finding("numad", Level.GOOD, "does not run")
    else:
        text = (
            f"process {process} moves servers and their pages: no memory is spread, and no pages are moved for "
            "objectives, it would move them back; stop it"
        )
        yield Finding("numad", Level.DEGRADED, text)


def _same_pages(conf: Configuration, paths: HostPaths) -> Iterator[Finding]:
    folder = paths.sys / "kernel/mm/ksm"
    try:
        merging = (folder / "run").read_text().strip() == "1"
    except OSError:
        yield Finding("kernel samepage merging", Level.GOOD, "not in this kernel")
        return
    if not merging:
        yield Finding("kernel samepage merging", Level.GOOD, "off")
        return
    open_to_it = _mergeable(conf)
    which = f" It may merge pages of {', '.join(open_to_it)}." if open_to_it else ""
    text = (
        "on: it joins pages of servers on different nodes, against placement and isolation."
        f"{which} systemctl disable --now ksmtuned ksm; echo 2 > {folder / 'run'}"
    )
    yield Finding("kernel samepage merging", Level.DEGRADED, text)


def _mergeable(conf: Configuration) -> list[str]:
    """Titles of managed servers whose memory KSM may merge; empty when libvirt does not answer."""
    try:
        with _connected(conf) as source:
            found = [
                parse(domain.xml, domain.activity, manage_untagged=conf.agent.manage_untagged)
                for domain in source.domains()
            ]
    except NumaExtError:
        return []  # reported by the check of libvirt
    return sorted(w.title for w in found if w.request is not None and w.domain.mergeable)


def _adapters(conf: Configuration) -> Iterator[Finding]:
    """Find what adapters of uplinks with lanes do by themselves: it is shown, and never changed."""
    for device in conf.lanes.uplinks:
        what = f"classes of {device}"
        try:
            found = dcb.read(conf.lanes.tc.with_name("dcb"), device)
        except CapabilityMissingError as error:
            yield Finding(what, Level.DEGRADED, f"not known: {error}")
            continue
        yield Finding(what, Level.GOOD, found.sentence if found else "the adapter does no DCB")


def _huge_pages(paths: HostPaths) -> Iterator[Finding]:
    file = paths.sys / "kernel/mm/transparent_hugepage/enabled"
    try:
        text = file.read_text()
    except OSError:
        yield Finding("transparent huge pages", Level.DEGRADED, "not in this kernel")
        return
    value = text.partition("[")[2].partition("]")[0]
    yield verdict(
        "transparent huge pages",
        value != "never",
        value,
        "never: page tables of servers are larger and moves slower; "
        f"echo madvise > {file} is enough",
    )


def _nova_conf(conf: Configuration) -> Iterator[Finding]:
    from placement_traits import nova_conf

    files = [file for file in map(Path, conf.host.nova_conf) if file.exists()]
    if not files:
        text = f"none of {', '.join(conf.host.nova_conf)} is there: set [host]nova_conf"
        yield Finding("nova.conf", Level.DEGRADED, text)
        return
    try:
        novas = nova_conf.read(files)
        has_gpus = bool(topology_reader(conf)().gpus)
    except NumaExtError as error:
        yield Finding("nova.conf", Level.DEGRADED, str(error))
        return
    leads = conf.remote_gpus.guests
    yield from nova_conf.compute(novas, conf.placement.cell_packing, has_gpus, plugs_vsock=leads)


def _vsock(conf: Configuration) -> Iterator[Finding]:
    """Look whether guests can have the device by which they reach leases, where leases are led into them."""
    if conf.remote_gpus.guests:
        yield verdict(
            "vhost-vsock",
            (conf.paths.sys / "class/misc/vhost-vsock").exists(),
            "there",
            "this kernel has no vhost-vsock, so no server here reaches its leases: modprobe vhost_vsock, and name it "
            "in /etc/modules-load.d",
        )


def _placement(conf: Configuration) -> Iterator[Finding]:
    if not conf.placement.enabled:
        yield Finding("placement", Level.DEGRADED, "[placement]enabled is false")
        return
    from host_agent.report.clients import make_adapter
    from placement_traits.client import PlacementClient

    try:
        adapter = make_adapter(conf)
        PlacementClient(adapter).get("/resource_classes")
    except NumaExtError as error:
        yield Finding("placement", Level.BROKEN, str(error))
        return
    yield Finding("placement", Level.GOOD, "answers")
    yield from credentials(adapter)
    if conf.cables.lldp:
        yield _cabled(conf, PlacementClient(adapter))


def _cabled(conf: Configuration, client: "PlacementClient") -> Finding:
    """Compare this host's cables with its leaf, as the agent does at each pass."""
    from host_agent.report.cabling import compare
    from placement_traits.reporter import Reporter

    check = "cables"
    host = published_host.store(conf.paths.published).load()
    if host is None:
        return Finding(check, Level.DEGRADED, "not compared: the agent has published nothing yet")
    try:
        traits = Reporter(client).root_traits(host)
        found = compare(client, traits, cables.heard(conf.cables, conf.paths.sys))
    except NumaExtError as error:
        return Finding(check, Level.DEGRADED, f"not compared: {error}")
    if found is None:
        return Finding(check, Level.GOOD, f"{host} hangs on no leaf of a fabric")
    return verdict(check, found.own is not None, f"{host}: {found}", f"{host}: {found}")


def credentials(adapter: Any) -> Iterator[Finding]:
    """Look for roles of this host's Keystone user beside the host's: they are lost with the host.

    :param adapter: a keystoneauth1 adapter with the credentials
    """
    access = getattr(adapter.session.auth, "get_access", None)
    if access is None:  # no Keystone
        return
    more = sorted(set(access(adapter.session).role_names) - {HOST_ROLE})
    yield verdict(
        "credentials",
        not more,
        f"only the role {HOST_ROLE}",
        f"the user of [placement] has the role {', '.join(more)}, too: who takes over this host has it. Give the host "
        f"a Keystone user with the role {HOST_ROLE} alone, and Placement the policy file etc/placement/policy.yaml",
    )
