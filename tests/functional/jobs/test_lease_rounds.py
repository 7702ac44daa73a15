# SPDX-License-Identifier: Apache-2.0
"""Leases in the engine's rounds, over a real Placement: rows and claims agree, whenever a process dies."""

import random
import uuid
from dataclasses import replace

import pytest
from sqlalchemy import update

from nova_numa_ext.orchestrator.lease_rounds import LeaseRounds
from nova_numa_ext.orchestrator.store import tables
from nova_numa_ext.orchestrator.store.actor import Actor
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.leader import NotLeaderError
from nova_numa_ext.orchestrator.store.leases import LIVING, Leases
from nova_numa_ext.orchestrator.store.stored_lease import LeaseChoice, LeaseSpec, LeaseTransfer
from nova_numa_ext.policy.remote_gpu import leases as life
from nova_numa_ext.policy.remote_gpu.choosing import Unmet, choose
from nova_numa_ext.policy.remote_gpu.leases import LeaseState
from nova_numa_ext.policy.remote_gpu.making_room import RebalanceRules, Rebalancing, UsePolicy
from placement_traits import pool_reader
from placement_traits.claim_store import ClaimStore, ForeignConsumerError
from placement_traits.claims import Claim, emptied
from placement_traits.client import PlacementError
from placement_traits.errors import NumaExtError, ServiceUnavailableError
from placement_traits.names import (
    LEASE_CONSUMER,
    MOVE_CONSUMER,
    REMOTE_GPU_MEMORY_MB,
    RemoteGpuApi,
    ServiceLevel,
)
from placement_traits.pool_reporter import PoolReporter
from tests.support.jobs_database import with_tables
from tests.support.jobs_world import World
from tests.support.pools import pool as lent_pool

USER = Actor("user-1")
SEEDS = 3


class Rounds:
    """A database, two pools, and one process after the other.

    g1 lends GPUs a and b, g2 lends GPU a, each of 8000 MiB.
    """

    def __init__(self, placement, url):
        self.client = placement.client
        self.leases = Leases(Database(url, sqlite_synchronous=False))
        self.claims = ClaimStore(placement.client)
        self.process = self.start(self.leases, self.claims)
        self.troubles = {}

    def start(self, leases, claims):
        return LeaseRounds(leases, claims, self.pools)

    def pools(self):
        return pool_reader.read(self.client)

    def round(self, may=lambda: None):
        return self.process.round(USER, may, self.trouble)

    def look(self, may=lambda: None):
        return self.process.look(may, self.trouble)

    def trouble(self, uuid, error):
        self.troubles[uuid] = error

    def spoil(self, lease, **what):
        """Store it in a form of another release."""
        with self.leases._database.transaction() as connection:
            mine = tables.lease.c.uuid == lease.uuid
            connection.execute(update(tables.lease).where(mine).values(**what))

    def ask(self, memory_mb=3000, level=ServiceLevel.SILVER, **more):
        spec = LeaseSpec(memory_mb, level, RemoteGpuApi.OPENCL, **more)
        return self.leases.create("project-1", "user-1", spec)

    def now(self, lease):
        return self.leases.read(lease.uuid)

    def release(self, lease):
        return self.leases.change(self.now(lease), life.release, USER)

    def running(self):
        """A lease that a server uses."""
        lease = self.ask(1000)
        self.round()
        found = self.now(lease)
        for step in (life.start, served, lambda lease: life.attach(lease, "c1")):
            found = self.leases.change(found, step, USER)
        return found

    def held(self):
        """All claims of leases and moves, by consumer."""
        providers = {each for pool in self.pools() for each in pool.providers}
        found = (claim for each in providers for claim in self.claims.of_provider(each))
        return {each.consumer: each for each in found}


def served(lease):
    return life.acknowledge(lease, lease.gpu_host, lease.epoch)


@pytest.fixture(scope="module")
def two_pools(placement):
    """The database of ``rounds``, written once."""
    reporter = PoolReporter(placement.client)
    reporter.sync(lent_pool("g1", gpus=("a", "b")))
    reporter.sync(lent_pool("g2"))
    return placement.image()


@pytest.fixture
def rounds(placement, two_pools, tmp_path):
    """Engine's rounds of leases over a database and two pools::

    LeaseRounds ── leases.db
    └─ Placement
       ├─ rgpu:g1             fabric main; :cpu 4 cores, :nic-eth1 1000 MB/s
       │  ├─ rgpu:g1:gpu-a    CUSTOM_RGPU_MEM_MB 8000; OPENCL
       │  └─ rgpu:g1:gpu-b    the same
       └─ rgpu:g2             fabric main; :cpu 4 cores, :nic-eth1 1000 MB/s
          └─ rgpu:g2:gpu-a    CUSTOM_RGPU_MEM_MB 8000; OPENCL
    """
    with_tables(tmp_path / "leases.db")
    placement.restore(two_pools)
    return Rounds(placement, f"sqlite:///{tmp_path}/leases.db")


def test_a_lease_gets_a_gpu_holds_it_and_gives_it_back(rounds):
    lease = rounds.ask(network_mbps=200)
    assert rounds.round() == 1
    held = rounds.now(lease)
    assert (held.state, held.claimed, str(held.reasons[0])) == (LeaseState.RESERVED, True, "held=")
    claim = rounds.held()[lease.uuid]
    assert (claim.type, claim.project, claim.amounts) == (LEASE_CONSUMER, "project-1", held.amounts)
    assert claim.amounts[held.gpu][REMOTE_GPU_MEMORY_MB] == 3000
    assert len(claim.amounts) == 3, "GPU, core and NIC of its host"
    assert rounds.round() == rounds.look() == 0
    rounds.release(lease)
    assert rounds.round() == 1
    assert (rounds.now(lease).state, rounds.held()) == (LeaseState.GONE, {})


def test_what_has_no_room_ends_and_says_so(rounds):
    lease = rounds.ask(9000, unmet=Unmet.STOP)
    rounds.round()
    rounds.round()
    now = rounds.now(lease)
    assert (now.state, str(now.reasons[0])) == (LeaseState.GONE, "no_gpu=opencl (against 9000)")
    assert rounds.held() == {}


def test_a_named_host_lends_it_or_none(rounds):
    first, second = (rounds.ask(level=ServiceLevel.GOLD, pool="g2") for _ in range(2))
    for _ in range(2):
        rounds.round()
    assert rounds.now(first).lease.gpu_host == "g2"
    assert (rounds.now(second).claimed, rounds.now(second).lease.gpu_host) == (False, "")


def test_what_has_no_room_waits_in_the_order_of_its_requests(rounds):
    """Three GPUs, and as many large leases that wait for one: they are not overtaken by a small one that came later."""
    first, *_ = (rounds.ask(3000, ServiceLevel.SILVER) for _ in range(4))
    gold = [rounds.ask(level=ServiceLevel.GOLD) for _ in range(3)]
    small, elsewhere = rounds.ask(100, ServiceLevel.SCAVENGER), rounds.ask(9000)
    assert rounds.round() > 0
    assert [rounds.now(each).claimed for each in (first, *gold)] == [True, *[False] * 3]
    assert str(rounds.now(gold[0]).reasons[0]) == "no_gpu=opencl (against 3000)"
    assert (rounds.now(small).claimed, str(rounds.now(small).reasons[0])) == (False, "in_order=")
    assert rounds.now(elsewhere).state is LeaseState.RESERVED, "a host may lend a larger one yet"
    before = rounds.leases.find()
    assert (rounds.round(), rounds.leases.find()) == (0, before), "nothing is written again"
    held = rounds.held().keys()
    for each in rounds.leases.find():
        if each.claimed and each.lease.gpu_host == "g2":
            rounds.release(each)
    rounds.round()
    rounds.round()
    assert [rounds.now(each).claimed for each in (*gold, small)] == [True, *[False] * 3]
    assert rounds.held().keys() - held == {gold[0].uuid}
    for each in gold:
        rounds.release(each)
    rounds.round()
    rounds.round()
    assert (rounds.now(small).claimed, rounds.now(elsewhere).claimed) == (True, False)


def test_many_leases_that_wait_cost_a_round_no_more_than_one(rounds, monkeypatch):
    asked = []

    def counted(*arguments, **more):
        asked.append(arguments)
        return choose(*arguments, **more)

    monkeypatch.setattr("nova_numa_ext.policy.remote_gpu.lease_plan.choose", counted)
    for _ in range(9):
        rounds.ask(9000)
    rounds.round()
    assert len(asked) == 1
    assert {each.claimed for each in rounds.leases.find()} == {False}


def test_a_lease_that_waits_keeps_only_gpus_that_it_could_get(rounds):
    rounds.ask(9000)
    rounds.ask(level=ServiceLevel.GOLD, pool="g2")
    named = rounds.ask(level=ServiceLevel.GOLD, pool="g2")
    free = rounds.ask()
    rounds.round()
    assert (rounds.now(named).claimed, rounds.now(free).lease.gpu_host) == (False, "g1")


def test_a_claim_stays_until_the_host_serves_the_lease_no_more(rounds):
    """Its process may still write into the GPU's memory."""
    running = rounds.running()
    rounds.release(running)
    assert rounds.round() == rounds.look() == 0
    assert set(rounds.held()) == {running.uuid}
    rounds.leases.change(rounds.now(running), served, USER)
    rounds.round()
    assert (rounds.now(running).state, rounds.held()) == (LeaseState.GONE, {})


def test_the_claim_of_a_move_is_of_its_lease(rounds):
    """The second consumer is no orphan while a row names it, or a row cannot be read."""
    running, unread = rounds.running(), rounds.ask(1000)
    amounts = {running.gpu: {REMOTE_GPU_MEMORY_MB: 5}}
    second = Claim(str(uuid.uuid4()), MOVE_CONSUMER, "project-1", "user-1", amounts)
    rounds.claims.write(second)
    found = rounds.leases.plan_move(
        rounds.now(running), LeaseTransfer(second=second.consumer), USER
    )
    assert [rounds.look() for _ in range(3)] == [0, 0, 0]
    rounds.spoil(unread, asked={"level": "tin"})
    rounds.leases.plan_move(found, None, USER)
    assert [rounds.look() for _ in range(3)] == [0, 0, 0]
    rounds.spoil(unread, state=LeaseState.GONE)
    assert [rounds.look() for _ in range(3)] == [0, 1, 0]
    assert second.consumer not in rounds.held()


def test_a_claim_of_no_lease_is_released_in_the_second_look(rounds):
    running = rounds.running()
    gpu = rounds.now(running).gpu
    amounts = {gpu: {REMOTE_GPU_MEMORY_MB: 5}}
    orphan = Claim(str(uuid.uuid4()), LEASE_CONSUMER, "project-1", "user-1", amounts)
    rounds.claims.write(orphan)
    assert rounds.look() == 0
    changed = replace(rounds.held()[orphan.consumer], amounts={gpu: {REMOTE_GPU_MEMORY_MB: 6}})
    rounds.claims.write(changed)
    assert rounds.look() == 0, "it has changed"
    assert rounds.look() == 1
    assert set(rounds.held()) == {running.uuid}


def test_what_an_operator_took_away_is_claimed_again(rounds, caplog):
    running = rounds.running()
    rounds.claims.write(emptied(rounds.held()[running.uuid]))
    assert rounds.look() == 1
    assert rounds.held()[running.uuid].amounts == running.amounts
    rounds.claims.write(emptied(rounds.held()[running.uuid]))
    whole = {running.gpu: {REMOTE_GPU_MEMORY_MB: 8000}}
    others = Claim(str(uuid.uuid4()), "NUMA_EXT_OTHER", "p", "u", whole)
    rounds.claims.write(others)
    assert rounds.look() == 0
    assert "is gone and stays so" in caplog.text
    assert rounds.now(running) == running


def test_a_claim_that_is_made_while_claims_are_compared_is_no_alarm(rounds, caplog):
    """It was not there when claims were read, and its lease was held when leases were."""
    before = rounds.pools()
    lease = rounds.ask(1000)
    rounds.round()
    late = LeaseRounds(rounds.leases, rounds.claims, lambda: before)
    assert late.look(lambda: None, rounds.trouble) == 0
    assert "is there again" not in caplog.text
    assert set(rounds.held()) == {lease.uuid}


def test_who_does_not_lead_writes_nothing(rounds):
    def may():
        raise NotLeaderError("the term is over")

    rounds.ask()
    with pytest.raises(NotLeaderError):
        rounds.round(may)
    assert rounds.held() == {}


class Refusing:
    """Claims of which some cannot be read or written.

    :ivar errors: by consumer
    """

    def __init__(self, real):
        self._real, self.errors = real, {}

    def __getattr__(self, name):
        return getattr(self._real, name)

    def read(self, consumer):
        if consumer in self.errors:
            raise self.errors[consumer]
        return self._real.read(consumer)

    def write(self, *claims, **more):
        for each in claims:
            if each.consumer in self.errors:
                raise self.errors[each.consumer]
        self._real.write(*claims, **more)


FOREIGN = ForeignConsumerError("it is nova's")


def test_a_lease_that_gives_trouble_delays_no_other(rounds):
    claims = Refusing(rounds.claims)
    ending = rounds.ask(1000)
    rounds.round()
    rounds.release(ending)
    taken, unread, younger = rounds.ask(1000), rounds.ask(1000), rounds.ask(1000)
    claims.errors = {ending.uuid: PlacementError("it", 403, "", ""), taken.uuid: FOREIGN}
    rounds.spoil(unread, asked={"level": "tin"})
    rounds.process = rounds.start(rounds.leases, claims)
    rounds.round()
    assert rounds.now(younger).claimed
    assert rounds.troubles.keys() == {ending.uuid, taken.uuid, unread.uuid}
    claims.errors = {younger.uuid: ServiceUnavailableError("down")}
    rounds.release(younger)
    with pytest.raises(ServiceUnavailableError):
        rounds.round()


def test_pools_are_read_once_a_round_and_each_consumer_once_a_look(rounds):
    for _ in range(3):
        rounds.ask(1000, network_mbps=10)
    read = Counting(rounds.claims)
    reads = []
    rounds.process = LeaseRounds(rounds.leases, read, lambda: reads.append(1) or rounds.pools())
    assert rounds.round() == 3
    assert len(reads) == 1
    spread = {rounds.now(each).gpu for each in rounds.leases.find()}
    assert len(spread) == 3, "each choice counts those before it"
    rounds.look()
    assert len(read.providers) == len(set(read.providers))


class Counting:
    """Claims; takes note of which providers are asked."""

    def __init__(self, real):
        self._real, self.providers = real, []

    def __getattr__(self, name):
        return getattr(self._real, name)

    def of_providers(self, providers):
        self.providers += (listed := list(providers))
        return self._real.of_providers(listed)


def test_what_a_round_releases_it_can_lend_again(rounds):
    first, ending = rounds.ask(pool="g1"), rounds.ask(level=ServiceLevel.GOLD, pool="g2")
    rounds.round()
    rounds.spoil(first, claimed=False)  # a process died before it took note: pools are read for it
    rounds.release(ending)
    heir = rounds.ask(level=ServiceLevel.GOLD, pool="g2")
    rounds.round()
    assert rounds.now(heir).claimed


def chosen(rounds, provider, amounts):
    """A lease whose GPU is chosen, and not yet claimed."""
    choice = LeaseChoice("g1", provider, {provider: amounts})
    (found,) = rounds.leases.choose([rounds.ask(1000)], [choice], USER)
    return found


def test_another_gpu_is_chosen_where_the_first_is_full_or_gone(rounds):
    full = chosen(rounds, rounds.now(rounds.running()).gpu, {REMOTE_GPU_MEMORY_MB: 7500})
    gone = chosen(rounds, str(uuid.uuid4()), {REMOTE_GPU_MEMORY_MB: 10})
    rounds.round()
    for before in (full, gone):
        now = rounds.now(before)
        assert (now.claimed, now.amounts != before.amounts) == (True, True)
    assert rounds.troubles == {}


def test_what_is_chosen_in_a_round_is_claimed_by_one_request(rounds, monkeypatch):
    sent = []
    for name in ("get", "post"):
        real = getattr(rounds.client, name)
        monkeypatch.setattr(
            rounds.client,
            name,
            lambda path, *more, name=name, real=real: (
                sent.append((name, path)) or real(path, *more)
            ),
        )
    lent = rounds.pools()
    rounds.process._pools = lambda: lent
    sent.clear()
    leases = [rounds.ask(1000) for _ in range(3)]
    rounds.round()
    assert all(rounds.now(each).claimed for each in leases)
    assert sent == [("post", "/allocations")] * 3


def test_a_late_claim_of_a_choice_before_is_replaced_in_the_round_of_the_next_choice(rounds):
    """An engine died with its request on the way; the GPU of it has gone meanwhile, and another one is chosen."""
    lease = rounds.ask(1000)
    rounds.round()
    before = rounds.now(lease)
    rounds.spoil(lease, claimed=False, gpu="", amounts={}, gpu_host="")
    elsewhere = [pool for pool in rounds.pools() if before.gpu not in pool.providers]
    rounds.process._pools = lambda: elsewhere
    assert rounds.round() == 1
    now = rounds.now(lease)
    assert (now.claimed, now.gpu != before.gpu) == (True, True)
    assert rounds.claims.read(lease.uuid).amounts == now.amounts
    assert rounds.troubles == {}


def test_any_other_refusal_is_trouble_and_the_choice_stays(rounds):
    """The next GPU would be refused, too."""
    gpu = rounds.now(rounds.running()).gpu
    unknown = chosen(rounds, gpu, {"CUSTOM_OF_ANOTHER_RELEASE": 1})
    rounds.round()
    assert rounds.now(unknown) == unknown
    assert set(rounds.troubles) == {unknown.uuid}


@pytest.mark.parametrize("form", [{"asked": {}}, {"state": "hibernated"}], ids=["what", "state"])
def test_the_claim_of_a_lease_that_cannot_be_read_stays(rounds, form):
    running = rounds.running()
    rounds.spoil(running, **form)
    assert [rounds.look() for _ in range(3)] == [0, 0, 0]
    assert set(rounds.held()) == {running.uuid}
    assert rounds.troubles.keys() == {running.uuid}


def test_an_engine_reports_a_lease_in_trouble_once_until_it_is_well(placement, tmp_path, caplog):
    claims = Refusing(ClaimStore(placement.client))
    world = World(tmp_path, claims, reconcile_interval_s=0.0)
    asked = LeaseSpec(10, ServiceLevel.BRONZE, RemoteGpuApi.OPENCL)
    lease = Leases(world.database).create("project-1", "user-1", asked)
    world.engine._leases._pools = lambda: pool_reader.read(placement.client)
    PoolReporter(placement.client).sync(lent_pool("g1"))
    claims.errors[lease.uuid] = FOREIGN
    said = f"lease {lease.uuid} stays as it is for now: it is nova's"
    world.rounds()
    world.rounds()
    assert [each.getMessage() for each in caplog.records].count(said) == 1
    claims.errors.clear()
    world.rounds()
    found = Leases(world.database).read(lease.uuid)
    assert found.claimed
    Leases(world.database).change(found, life.release, USER)
    claims.errors[lease.uuid] = FOREIGN
    world.rounds()
    assert [each.getMessage() for each in caplog.records].count(said) == 2
    claims.errors.clear()
    world.rounds()
    assert world.claims.read(lease.uuid) is None


def test_the_engine_carries_leases_on(placement, tmp_path):
    world = World(tmp_path, ClaimStore(placement.client), reconcile_interval_s=0.0)
    PoolReporter(placement.client).sync(lent_pool("g1"))
    lease = Leases(world.database).create(
        "project-1", "user-1", LeaseSpec(10, ServiceLevel.BRONZE, RemoteGpuApi.OPENCL)
    )
    world.engine._leases._pools = lambda: pool_reader.read(placement.client)
    world.rounds()
    assert Leases(world.database).read(lease.uuid).claimed
    Leases(world.database).change(Leases(world.database).read(lease.uuid), life.release, USER)
    world.rounds()
    assert Leases(world.database).read(lease.uuid).state is LeaseState.GONE
    assert world.claims.read(lease.uuid) is None


def test_what_operators_say_of_leases_reaches_their_rounds(placement, tmp_path):
    world = World(
        tmp_path,
        ClaimStore(placement.client),
        remote_gpu_unmet=Unmet.STOP,
        remote_gpu_max_wait_s=7.0,
        remote_gpu_hold_s=9.0,
        remote_gpu_rebalance=Rebalancing.OBSERVE,
        remote_gpu_moves_per_minute=3,
        remote_gpu_cool_down_s=5.0,
        remote_gpu_by_use=UsePolicy.BALANCE,
        remote_gpu_cold=0.25,
        remote_gpu_speeds={"k20": 4},
        remote_gpu_scavenging=Rebalancing.ENFORCE,
    )
    rules = world.engine._leases._rules
    assert (rules.unmet, rules.max_wait_s, rules.hold_s) == (Unmet.STOP, 7.0, 9.0)
    assert rules.rebalance == RebalanceRules(
        mode=Rebalancing.OBSERVE,
        moves_per_minute=3,
        cool_down_s=5.0,
        by_use=UsePolicy.BALANCE,
        cold=0.25,
        speeds={"k20": 4},
        scavenging=Rebalancing.ENFORCE,
    )


# Processes that die ---------------------------------------------------------------------------------------------------


class KilledError(BaseException):
    """The process is gone."""


class Mortal:
    """Writes as another object does, and dies before or after one of them.

    :param late: gets the write during which the process died, where Placement may still carry it out later
    """

    def __init__(self, real, writes, life_left, late=None):
        self._real, self._writes, self._left, self._late = real, writes, life_left, late

    def __getattr__(self, name):
        real = getattr(self._real, name)
        if name not in self._writes:
            return real

        def write(*arguments, **options):
            self._left[0] -= 1
            if self._left[0] == 0:
                if self._late is not None:
                    self._late.append(lambda: real(*arguments, **options))
                raise KilledError
            found = real(*arguments, **options)
            self._left[0] -= 1
            if self._left[0] == 0:
                raise KilledError
            return found

        return write


def killed(rounds, chance):
    """One process after another dies at some step; users go on, and late writes arrive when they like."""
    late, asked = [], []
    for _ in range(6):
        rounds.process = mortal(rounds, chance.randint(1, 12), late)
        try:
            for _ in range(4):
                asked += [rounds.ask(chance.choice((1000, 3000, 5000))) for _ in range(2)]
                given_up(rounds, chance.choice(asked))
                rounds.round()
                rounds.look()
        except KilledError:
            pass
        while late and chance.random() < 0.5:
            arrive(late)
    return [*asked, claimed_after_its_end(rounds, chance, late)]


def claimed_after_its_end(rounds, chance, late):
    """A process dies while it claims for a lease, which its user gives up; the claim arrives when the lease is gone."""
    while late:
        arrive(late)
    for each in rounds.leases.find(states=(LeaseState.RESERVED,)):
        given_up(rounds, each)
    rounds.process = rounds.start(rounds.leases, rounds.claims)
    rounds.round()
    lease = rounds.ask(chance.choice((1000, 3000)))
    # The third of its writes: chosen, and that it was, then the claim.
    rounds.process = mortal(rounds, 3, late)
    with pytest.raises(KilledError):
        rounds.round()
    given_up(rounds, lease)
    rounds.process = rounds.start(rounds.leases, rounds.claims)
    rounds.round()
    assert rounds.now(lease).state is LeaseState.GONE
    arrive(late)
    assert lease.uuid in rounds.held(), "an orphan"
    return lease


def given_up(rounds, lease):
    if life.LeaseState.RELEASING in life.TRANSITIONS[rounds.now(lease).state]:
        rounds.release(lease)


def mortal(rounds, steps, late):
    """A process that dies before or after one of its writes."""
    left = [steps]
    return rounds.start(
        Mortal(rounds.leases, ("choose", "hold", "change"), left),
        Mortal(rounds.claims, ("write",), left, late),
    )


def arrive(late):
    try:
        late.pop()()
    except NumaExtError:
        pass


@pytest.mark.parametrize("seed", range(SEEDS))
def test_after_two_rounds_no_claim_is_without_a_lease_and_what_runs_was_not_touched(rounds, seed):
    running = [rounds.running(), rounds.running()]
    before = {each.uuid: rounds.held()[each.uuid] for each in running}
    asked = killed(rounds, random.Random(seed))
    rounds.process = rounds.start(rounds.leases, rounds.claims)
    for _ in range(2):
        rounds.round()
        rounds.look()
    held = rounds.held()
    living = {each.uuid: each for each in rounds.leases.find(states=LIVING)}
    assert held.keys() == living.keys()
    for key, claim in held.items():
        assert (living[key].claimed, living[key].amounts) == (True, claim.amounts)
    assert [rounds.now(each) for each in running] == running
    assert {key: held[key] for key in before} == before
    ended = [rounds.now(each) for each in asked if each.uuid not in living]
    assert {(each.state, each.claimed) for each in ended} <= {(LeaseState.GONE, False)}
