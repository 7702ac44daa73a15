# SPDX-License-Identifier: Apache-2.0
"""Leases of remote GPUs: their life, and the fence around the one client that may use a GPU."""

import random
from dataclasses import dataclass, field

import pytest

from nova_numa_ext.policy.remote_gpu import leases
from nova_numa_ext.policy.remote_gpu.gateway import Gateway
from nova_numa_ext.policy.remote_gpu.leases import (
    TRANSITIONS,
    Lease,
    LeaseError,
    LeaseState,
    UnfencedError,
)

INTERLEAVINGS = 10_000
STEPS = 150
DIES = 0.05  # chance of a supervisor, at each of its steps
GPU_HOSTS = ("g1", "g2")
CLIENTS = ("c1", "c2", "c3")


def served(lease):
    """The GPU's host has heard of the lease and acknowledged."""
    return leases.acknowledge(lease, lease.gpu_host, lease.epoch)


def attached(client="c1"):
    return leases.attach(served(leases.start(Lease("l", "g1"))), client)


def test_a_lease_is_attached_when_its_gpus_host_has_acknowledged():
    reserved = Lease("l", "g1")
    assert reserved.epoch_at("g1") is None
    starting = leases.start(reserved)
    assert (starting.epoch_at("g1"), starting.epoch_at("g2")) == (1, None)
    with pytest.raises(LeaseError, match="is starting and cannot become attached"):
        leases.attach(starting, "c1")
    ready = served(starting)
    assert ready.state is LeaseState.READY
    there = leases.attach(ready, "c1")
    assert [there.may_connect(host) for host in ("c1", "c2", "")] == [1, None, None]


def test_an_operators_word_ends_a_lease_whose_host_cannot_acknowledge():
    lost = leases.lose(attached())
    for lease in (lost, leases.release(lost)):
        assert not lease.fenced
        with pytest.raises(UnfencedError):
            leases.end(leases.release(lost))
        written_off = leases.write_off(lease)
        assert [written_off.may_connect(host) for host in CLIENTS] == [None, None, None]
        assert (written_off.epoch_at("g1"), leases.end(written_off).state.final) == (None, True)


def test_a_client_after_another_waits_for_the_hosts_acknowledgement():
    """Live migration, evacuation, hard reboot: the old epoch is cut first."""
    moved = leases.restart(attached())
    assert (moved.epoch, moved.epoch_at("g1")) == (2, 2)
    assert [moved.may_connect(host) for host in CLIENTS] == [None, None, None]
    assert leases.acknowledge(moved, "g1", 1) == moved
    assert leases.attach(served(moved), "c2").may_connect("c2") == 2


def test_a_stopped_server_keeps_its_lease_and_connects_with_a_new_epoch():
    stopped = leases.detach(attached())
    assert (stopped.state, stopped.epoch, stopped.client_host) == (LeaseState.DETACHED, 2, "")
    again = leases.attach(served(leases.restart(stopped)), "c1")
    assert again.may_connect("c1") == 3


def test_a_lease_leaves_a_host_that_has_cut_its_client():
    moving = leases.move(attached())
    assert (moving.epoch_at("g1"), moving.ends_at("g1"), moving.ends_at("g2")) == (None, 2, None)
    with pytest.raises(UnfencedError, match="cannot leave host g1"):
        leases.arrive(moving, "g2")
    there = leases.arrive(served(moving), "g2")
    assert (there.epoch_at("g1"), there.epoch_at("g2")) == (None, 3)
    assert leases.acknowledge(there, "g1", 3) == there, "the host that it left"
    assert leases.attach(served(there), "c1").may_connect("c1") == 3


def test_a_silent_host_is_told_a_new_epoch_when_it_is_back():
    lost = leases.lose(attached())
    assert lost.may_connect("c1") is None
    assert leases.restart(lost).epoch_at("g1") == 3
    gone = leases.to(leases.release(lost), LeaseState.GONE)
    assert gone.epoch_at("g1") is None
    with pytest.raises(LeaseError, match="allowed: nothing, it has ended"):
        leases.start(gone)


def test_a_lease_ends_when_its_host_serves_it_no_more():
    """Its claim is released then, and never while the host may still serve it."""
    ending = leases.release(attached())
    assert (ending.epoch_at("g1"), ending.ends_at("g1")) == (None, 2)
    with pytest.raises(UnfencedError, match="cannot leave host g1"):
        leases.end(ending)
    assert leases.end(served(ending)).state is LeaseState.GONE
    with pytest.raises(LeaseError):
        leases.end(attached())


def test_a_lease_of_which_no_host_was_told_ends_at_once():
    assert leases.end(leases.release(Lease("l", "g1"))).state is LeaseState.GONE
    with pytest.raises(UnfencedError):
        leases.end(leases.release(leases.start(Lease("l", "g1"))))


@pytest.mark.parametrize(("host", "epoch"), [("g2", 2), ("g1", 3), ("g1", 1), ("g1", 0)], ids=str)
def test_what_does_not_count_acknowledges_nothing(host, epoch):
    lease = leases.restart(attached())
    assert leases.acknowledge(lease, host, epoch) == lease


@pytest.mark.parametrize(
    ("state", "steps", "after"),
    [
        ("starting", (), "starting"),
        ("ready", (served,), "starting"),
        ("attached", (served, lambda lease: leases.attach(lease, "c1")), "starting"),
        ("detached", (served, lambda lease: leases.attach(lease, "c1"), leases.detach), "detached"),
        ("lost", (leases.lose,), "lost"),
    ],
)
def test_another_process_serves_a_newer_epoch(state, steps, after):
    """A client of the epoch before would find the memory of the GPU empty."""
    lease = leases.start(Lease("l", "g1"))
    for step in steps:
        lease = step(lease)
    assert lease.state == state
    found = leases.fail(lease, "g1", lease.epoch)
    assert (found.state, found.epoch, found.client_host) == (after, lease.epoch + 1, "")
    assert not found.fenced
    assert leases.fail(found, "g1", lease.epoch) == found, "it is reported twice"


@pytest.mark.parametrize(("host", "epoch"), [("g2", 1), ("g1", 2), ("g1", 0)], ids=str)
def test_a_process_that_does_not_count_fails_nothing(host, epoch):
    assert leases.fail(attached(), host, epoch) == attached()


def test_a_process_that_ends_as_it_is_to_fails_nothing():
    for lease in (Lease("l", "g1"), leases.release(attached()), leases.move(attached())):
        assert leases.fail(lease, "g1", lease.epoch) == lease


def test_every_state_but_the_last_can_end():
    for state, following in TRANSITIONS.items():
        ends = state in {LeaseState.RELEASING, LeaseState.GONE}
        assert (LeaseState.RELEASING in following) is not ends
        assert state.final is (not following)


# The fence ------------------------------------------------------------------------------------------------------------


@dataclass
class GpuHost:
    """A GPU's host: what it remembers, kept over restarts, its process, and who is connected.

    :param ends: epoch that it acknowledges when no process runs, None where it is to end none
    :param process: what that has learned, None where none runs
    :param number: of the process
    :param rises: no process follows another one at its epoch
    """

    chance: random.Random
    rises: bool = True
    gateway: Gateway = field(default_factory=Gateway)
    ends: int | None = None
    process: Gateway | None = None
    number: int = 0
    connected: tuple[str, int] | None = None

    def hears(self, epoch, ends):
        """Take an answer of the service; the supervisor may die before it acts on it, or after any step."""
        self.gateway, self.ends = self.gateway.learn(epoch), ends
        self.acts()

    def acts(self):
        gateway = self.gateway
        if self.chance.random() < DIES:
            return
        if not gateway.serves:
            self.dies()
            return
        if self.process is None and not (gateway.is_given and self.rises):
            self.process, self.number = Gateway(), self.number + 1
        if self.chance.random() < DIES:
            return
        self.gateway = gateway.give(gateway.epoch)
        if self.process is None or self.chance.random() < DIES:
            return
        found = self.process.learn(gateway.epoch)
        if found != self.process:
            self.connected = None
        self.process = found

    def dies(self):
        """The process is gone, and its clients with it."""
        self.process = self.connected = None

    def reports(self):
        """Return the epoch that is served, and the one since which none is: ended, or its process is gone."""
        gateway, process = self.gateway, self.process
        served = process.epoch if process is not None and process.serves else None
        gone = self.rises and gateway.serves and gateway.is_given and process is None
        ended = self.ends if not gateway.serves and process is None else None
        return served, gateway.epoch if gone else ended


@dataclass
class World:
    """The service, hosts that ask it, and messages that come late, twice and in any order.

    :param fence: clients are told of an epoch only when it was acknowledged
    :param rises: the epoch rises when its process is gone
    """

    chance: random.Random
    fence: bool = True
    rises: bool = True
    lease: Lease = field(default_factory=lambda: Lease("l", "g1"))
    hosts: dict = field(default_factory=dict)
    answers: list = field(default_factory=list)  # (host, epoch that it is to serve, or to end)
    reports: list = field(default_factory=list)  # (host, epoch that it serves, or that has ended)
    processes: dict = field(default_factory=dict)  # epoch -> the process that has served it
    tokens: list = field(default_factory=list)  # (client, epoch with which it may connect)
    newest: int = 0
    accepted: int = 0
    violations: int = 0
    killed: int = 0
    moves: int = 0

    def __post_init__(self):
        self.hosts = {host: GpuHost(self.chance, self.rises) for host in GPU_HOSTS}

    def step(self):
        """Let one thing happen; the service changes its mind less often than others talk."""
        often = self.ask, self.learn, self.report, self.hear, self.tell, self.connect
        self.chance.choice((self.service, self.kill, *often, *often))()

    def kill(self):
        """A process is killed, or its supervisor looks after it."""
        host = self.hosts[self.chance.choice(GPU_HOSTS)]
        if self.chance.random() < 0.25:
            self.killed += host.process is not None
            host.dies()
        else:
            host.acts()

    def service(self):
        """A nova event, or the engine's next step."""
        lease, chance = self.lease, self.chance
        after = {
            LeaseState.RESERVED: (leases.start,),
            LeaseState.STARTING: (leases.lose,),
            LeaseState.READY: (self.attach, self.attach, leases.restart),
            LeaseState.ATTACHED: (leases.restart, leases.detach, leases.move, leases.lose),
            LeaseState.DETACHED: (leases.restart,),
            LeaseState.MOVING: (self.arrive,),
            LeaseState.LOST: (leases.restart,),
        }[lease.state]
        self.lease = chance.choice(after)(lease)
        if not self.fence:
            self.lease = leases.acknowledge(self.lease, self.lease.gpu_host, self.lease.epoch)

    def attach(self, lease):
        return leases.attach(lease, self.chance.choice(CLIENTS))

    def arrive(self, lease):
        try:
            return leases.arrive(lease, self.chance.choice(GPU_HOSTS))
        except UnfencedError:
            return lease

    def ask(self):
        """A GPU's host asks; the answer is on its way."""
        host = self.chance.choice(GPU_HOSTS)
        self.answers.append((host, self.lease.epoch_at(host), self.lease.ends_at(host)))

    def learn(self):
        if self.answers:
            host, epoch, ends = self.taken(self.answers)
            self.hosts[host].hears(epoch, ends)

    def report(self):
        host = self.chance.choice(GPU_HOSTS)
        self.reports.append((host, *self.hosts[host].reports()))

    def hear(self):
        if self.reports:
            host, served, ended = self.taken(self.reports)
            if self.lease.ends_at(host) is not None:
                self.moves += ended == self.lease.epoch
                self.lease = leases.acknowledge(self.lease, host, ended or 0)
            elif served is not None:
                self.lease = leases.acknowledge(self.lease, host, served)
            elif ended is not None:
                self.lease = leases.fail(self.lease, host, ended)

    def tell(self):
        """A client's host asks; what it is told it may use for ever."""
        client = self.chance.choice(CLIENTS)
        epoch = self.lease.may_connect(client)
        if epoch is not None:
            self.violations += self.others_than(client)
            self.tokens.append((client, epoch))

    def connect(self):
        if not self.tokens:
            return
        client, epoch = self.chance.choice(self.tokens)
        host = self.chance.choice(GPU_HOSTS)
        there = self.hosts[host]
        if there.process is None or not there.process.accepts(epoch):
            return
        process = host, there.number
        another = self.processes.setdefault(epoch, process) != process
        self.violations += another or self.others_than(client) or epoch < self.newest
        self.newest = max(self.newest, epoch)
        self.accepted += 1
        there.connected = client, epoch

    def others_than(self, client):
        """Whether another client is connected anywhere."""
        connected = [each.connected for each in self.hosts.values() if each.connected]
        return any(other != client for other, _epoch in connected)

    def taken(self, messages):
        """A message in any order; of four one comes again."""
        at = self.chance.randrange(len(messages))
        return messages[at] if self.chance.random() < 0.25 else messages.pop(at)


def run(interleavings, fence=True, rises=True):
    """Return how many clients were accepted, how many wrongly, and how many processes were killed and moves went on.

    Wrong is one that is accepted, or learns that it may connect, while another one is connected, at an old epoch, or by
    another process than the one before it at that epoch.
    """
    accepted = violations = killed = moves = 0
    for seed in range(interleavings):
        world = World(random.Random(seed), fence, rises)
        for _ in range(STEPS):
            world.step()
        accepted += world.accepted
        violations += world.violations
        killed += world.killed
        moves += world.moves
    return accepted, violations, killed, moves


@pytest.mark.parametrize(
    "count", [INTERLEAVINGS // 4, pytest.param(INTERLEAVINGS, marks=pytest.mark.long)]
)
def test_no_second_client_is_accepted_at_an_old_epoch(count):
    accepted, violations, killed, moves = run(count)
    assert violations == 0
    assert accepted > count / 100, "else nothing was tried"
    assert killed > count / 10
    assert moves > count / 1000


def test_without_acknowledgements_there_would_be_second_clients():
    """The same world finds them where clients are told at once."""
    _accepted, violations, *_rest = run(INTERLEAVINGS // 10, fence=False)
    assert violations > 0


def test_at_one_epoch_there_would_be_clients_of_two_processes():
    """The same world finds them where a process that is gone is started again at its epoch."""
    _accepted, violations, *_rest = run(INTERLEAVINGS // 10, rises=False)
    assert violations > 0
