# SPDX-License-Identifier: Apache-2.0
"""Engine, supervisor, agent or a lease's process end in each state that a lease may be in.

The process of a lease is a real one, ended by SIGKILL. The others end as by that at a request or a write: by an error
that no guard catches, with their answers lost; engines are ended by the signal in
:mod:`.test_lease_engines`, and all of them, as processes, in :mod:`.test_lease_sigkill`.
"""

import os
import random
import signal

import pytest

from nova_numa_ext.orchestrator.store.jobs import Jobs
from nova_numa_ext.orchestrator.store.leases import LIVING
from nova_numa_ext.policy.jobs.states import JobState
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from placement_traits import pools
from placement_traits.names import LEASE_CONSUMER, MOVE_CONSUMER
from tests.functional.jobs.test_lease_processes import Hosts, hosts  # noqa: F401 - a fixture
from tests.support.lease_service import ASKED, ENGINE

SEEDS = 3
MOST_TURNS = 200
LENDERS, CLIENTS = ("g1", "g2"), ("c1", "c2")
WITHOUT_SERVER = (LeaseState.RESERVED, LeaseState.STARTING, LeaseState.READY)
VICTIMS = ("engine", "supervisor", "agent", "process")


class KilledError(BaseException):
    """The process is gone: no guard for errors may run after it."""


class Deaths:
    """Lets processes of one service and its hosts end at any of their requests and writes."""

    def __init__(self, hosts: Hosts, chance: random.Random) -> None:  # noqa: F811
        self.hosts, self.chance = hosts, chance

    def engine(self):
        """It ends at a random one of the writes of a round, before or after it; another one takes over."""
        service, left = self.hosts.service, self.chance.randrange(4)
        writers = [(service.claims, "write")]
        writers += [(service.leases, name) for name in ("choose", "hold", "change", "plan_move")]
        after = self.chance.random() < 0.5

        def mortal(real):
            def call(*given, **more):
                nonlocal left
                left -= 1
                if left >= 0:
                    return real(*given, **more)
                if after and left == -1:
                    real(*given, **more)
                raise KilledError

            return call

        for owner, name in writers:
            setattr(owner, name, mortal(getattr(owner, name)))
        try:
            service.round()
        except KilledError:
            pass
        finally:
            for owner, name in writers:
                delattr(owner, name)
        service.start()

    def host(self, name):
        """What runs there ends at a request, before the service has it or with its answer lost; it is started again."""
        answered, plain = self.chance.random() < 0.5, self.hosts.request

        def request(*given, **more):
            if answered:
                plain(*given, **more)
            raise KilledError

        self.hosts.request = request
        try:
            self.hosts.turns[name].turn()
        except KilledError:
            pass
        finally:
            del self.hosts.request
        self.hosts.start(name)

    def process(self):
        found = sorted(self.hosts.processes().values())
        if found:
            os.kill(self.chance.choice(found), signal.SIGKILL)

    def of(self, victim):
        match victim:
            case "engine":
                self.engine()
            case "supervisor":
                self.host(self.chance.choice(LENDERS))
            case "agent":
                self.host(self.chance.choice(CLIENTS))
            case "process":
                self.process()


def one_turn(hosts, chance):  # noqa: F811
    """One of the hosts, or the engine, goes on."""
    who = chance.choice((*hosts.turns, "engine"))
    if who == "engine":
        hosts.service.round()
    else:
        hosts.turns[who].turn()


def urge(hosts, stored, state):  # noqa: F811
    """What a user, an operator or nova does so that a lease gets from ATTACHED to another state."""
    service = hosts.service
    match state:
        case LeaseState.DETACHED:
            hosts.move(stored.server, "")
        case LeaseState.MOVING if stored.move is None:
            service.leases.ask_move(stored, other_lender(stored), ENGINE)
        case LeaseState.LOST:
            lost = stored.lease.gpu_host
            service.rounds._silence.is_lost = lambda host: host == lost
        case LeaseState.RELEASING:
            service.leases.change(stored, life.release, ENGINE)


def other_lender(stored):
    return next(each for each in LENDERS if each != stored.lease.gpu_host)


def reach(hosts, chance, lease, state):  # noqa: F811
    """Let hosts and engine go on, one at a time, until a lease is in a state."""
    for _ in range(MOST_TURNS):
        now = hosts.service.leases.read(lease.uuid)
        if now.state is state:
            return
        if now.state is LeaseState.ATTACHED:
            urge(hosts, now, state)
        one_turn(hosts, chance)
    raise AssertionError(f"lease {lease.uuid} does not become {state}: {now}")


def claimed(hosts):  # noqa: F811
    """Consumers of leases and of moves that hold something."""
    service = hosts.service
    found = service.claims.of_providers(sorted(pools.taken(service.lent())))
    return {each.consumer for each in found if each.type in (LEASE_CONSUMER, MOVE_CONSUMER)}


def assert_no_orphan(hosts):  # noqa: F811
    """No process and no claim is of no lease; a lease has more than one claim only while it moves."""
    living = {each.uuid: each for each in hosts.service.leases.find(states=LIVING)}
    seconds = {each.move.second for each in living.values() if each.move is not None}
    assert hosts.processes().keys() <= living.keys()
    assert claimed(hosts) <= living.keys() | seconds


def assert_agreement(hosts):  # noqa: F811
    """Processes, Placement and the database say the same, and jobs are where their leases are."""
    living = hosts.service.leases.find(states=LIVING)
    serving = {
        each.uuid
        for each in living
        if any(each.lease.epoch_at(host) is not None for host in LENDERS)
    }
    assert hosts.processes().keys() == serving
    assert claimed(hosts) == {each.uuid for each in living if each.claimed} == serving
    jobs = Jobs(hosts.service.database)
    for each in hosts.service.leases.find():
        state = jobs.read(each.job).state
        assert state is JobState.RUNNING if each.uuid in serving else state.final


@pytest.mark.long
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_is_killed_in_whichever_state_two_rounds_later_nothing_is_left_over(hosts, seed):  # noqa: F811
    """Each state that lives once, in a random order; one victim at least, while the server may stop or move."""
    chance = random.Random(seed)
    hosts.lend("g2")
    deaths, states = Deaths(hosts, chance), list(LIVING)
    chance.shuffle(states)
    for number, state in enumerate(states):
        server = f"{number:08x}-0000-0000-0000-000000000000"
        lease = hosts.service.leases.create("project-1", "user-1", ASKED, server)
        hosts.move(server, "" if state in WITHOUT_SERVER else "c1")
        reach(hosts, chance, lease, state)
        for victim in chance.choices(VICTIMS, k=chance.randrange(1, 5)):
            deaths.of(victim)
            if chance.random() < 0.3:
                hosts.move(server, chance.choice((*CLIENTS, "")))
        hosts.service.start()  # an engine to which no host is silent
        hosts.rounds(2)
        hosts.service.rounds.look(lambda: None, hosts.service.trouble)
        hosts.service.rounds.look(lambda: None, hosts.service.trouble)
        assert_no_orphan(hosts)
        hosts.rounds(6)
        assert_agreement(hosts)
        now = hosts.service.leases.read(lease.uuid)
        if LeaseState.RELEASING in life.TRANSITIONS[now.state]:
            hosts.service.leases.change(now, life.release, ENGINE)
        hosts.rounds(4)
        assert (hosts.processes(), claimed(hosts)) == ({}, set())
        assert_agreement(hosts)
