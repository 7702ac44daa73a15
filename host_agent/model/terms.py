# SPDX-License-Identifier: Apache-2.0
"""The names of everything a decision of the agent looks at, each with the sentence that explains it to people."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from placement_traits import reason as reasons
from placement_traits.reason import Reason


class Term(StrEnum):
    """Rules and quantities; the journal shows the name, the console the sentence."""

    GPU = "gpu"

    # cores of servers
    HOME_NODES = "home_nodes"
    NOVA_PINS = "nova_pins"
    NO_HOME = "no_home"
    SLOT_OVERBOOKED = "slot_overbooked"
    SLOT_VIOLATIONS = "slot_violations"
    SLOT_CHASSIS = "slot_chassis"
    SLOT_NODES = "slot_nodes"
    SLOT_MEMORY_AWAY = "slot_memory_away"
    SLOT_BESIDE_LC = "slot_beside_lc"
    SLOT_CROWD = "slot_crowd"
    SLOT_DISTANCE = "slot_distance"
    MAPPED = "mapped"
    RESHUFFLED_FOR = "reshuffled_for"
    MOVED_SERVERS = "moved_servers"
    COST_MB = "cost_mb"
    SEARCH_LIMIT = "search_limit"
    HOST_FULL = "host_full"
    REMAPPED = "remapped"
    DEVIATION = "deviation"
    EXPECTED_BENEFIT = "expected_benefit"
    BENEFIT = "benefit"
    PROPOSE_LIVE_MIGRATION = "propose_live_migration"
    NO_TIER = "no_tier"
    WAYS = "ways"
    NOT_EXCLUSIVE = "not_exclusive"
    MBA_PERCENT = "mba_percent"

    # pages of servers
    MEMORY_BOUND = "memory_bound"
    MEMORY_POLICY_UNUSED = "memory_policy_unused"
    MEMORY_POLICY = "memory_policy"
    MEMORY_POLICY_USED = "memory_policy_used"
    MEMORY_STAYS = "memory_stays"
    ROOM_ON_NODE = "room_on_node"
    NO_COUNTERS = "no_counters"
    NOT_MEMORY_INTENSIVE = "not_memory_intensive"
    SEARCH_QUEUED = "search_queued"
    SEARCH_STARTED = "search_started"
    SEARCH_GIVEN_UP_STUCK = "search_given_up_stuck"
    SEARCH_GIVEN_UP_BLIND = "search_given_up_blind"
    PHASE_CHANGED_MAPI = "phase_changed_mapi"
    PHASE_CHANGED_STALL_RATE = "phase_changed_stall_rate"
    FIRST = "first"
    STALL_RATE = "stall_rate"
    DWP = "dwp"
    LOWER_BOUND = "lower_bound"
    DWP_FOUND = "dwp_found"

    # RDT partitions
    PARTITION_WAYS = "partition_ways"
    PARTITION_LEVEL = "partition_level"
    WAYS_SHARED_WITH = "ways_shared_with"
    CLASS_SHARED = "class_shared"
    NO_RMID = "no_rmid"
    NO_MBA = "no_mba"
    MBA_OF_KERNEL = "mba_of_kernel"
    MBA_NOT_CALIBRATED = "mba_not_calibrated"
    NO_L3_CAT = "no_l3_cat"
    NO_L3_DOMAIN = "no_l3_domain"
    NO_CLOSID = "no_closid"
    NO_CLOSID_BESIDE_BE = "no_closid_beside_be"
    WAYS_DO_NOT_FIT = "ways_do_not_fit"
    WAYS_HELD = "ways_held"
    WAYS_STAY_SHARED = "ways_stay_shared"

    # latency objectives of servers
    BALM = "balm"
    SEARCH = "search"
    SEARCH_ENDED = "search_ended"
    RETRY = "retry"
    TRAFFIC_MBPS = "traffic_mbps"
    THROTTLE = "throttle"
    THROTTLE_WHILE_MOVING = "throttle_while_moving"
    FORESEEN = "foreseen"
    PAGES_BEFORE = "pages_before"
    WEAKER_THROTTLE = "release"
    PAGES_OUTBOUND = "pages_outbound"
    PAGES_INBOUND = "pages_inbound"
    UNDO_LAST_LEVEL = "undo_last_level"
    HARM_ELSEWHERE = "harm_elsewhere"
    ROLL_BACK = "roll_back"
    PAGES_ARRIVED = "arrived"
    PAGES_STUCK = "pages_stuck"
    GIVE_BACK = "give_back"
    GIVEN_BACK = "given_back"
    TAKE_AGAIN = "take_again"
    CANNOT_FIX = "cannot_fix"
    RECOVERED = "recovered"
    EFFECT_SHOWN = "effect_shown"
    KEEP = "keep"
    FREE = "free"
    TRY_WITHOUT_THROTTLE = "try_without_throttle"
    TRY_WITHOUT_PAGES = "try_without_pages"
    PARKED = "parked"
    IGNORED = "ignored"
    ACCOUNT_SPENT_S = "account_spent_s"
    FLOOR = "floor"
    HOLD = "hold"
    LATENCY_UNKNOWN = "latency_unknown"


SENTENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        Term.GPU: "its GPU {value}; its home is {against}",
        Term.HOME_NODES: "its threads share the CPUs of nodes {value}",
        Term.NOVA_PINS: "nova pinned its vCPUs to CPUs {value}",
        Term.NO_HOME: "there is no place for it: {value}",
        Term.SLOT_OVERBOOKED: "its vCPUs share CPUs: none of the slots has one for each",
        Term.SLOT_VIOLATIONS: "{value} neighbours in its L3 domains are of a class that should not be there",
        Term.SLOT_CHASSIS: "it is on {value} chassis",
        Term.SLOT_NODES: "it is on {value} NUMA nodes",
        Term.SLOT_MEMORY_AWAY: "{value} MiB of its memory find no room on its own nodes",
        Term.SLOT_BESIDE_LC: "it shares {value} L3 domains with latency-critical servers",
        Term.SLOT_CROWD: "neighbours are allowed but better apart, weight {value}",
        Term.SLOT_DISTANCE: "the distances between its slices sum up to {value}",
        Term.MAPPED: "it got {value}: {against}",
        Term.RESHUFFLED_FOR: "it made room for server {value}",
        Term.MOVED_SERVERS: "servers {value} made room",
        Term.COST_MB: "what was moved costs as much as {value} MiB",
        Term.SEARCH_LIMIT: "the search for servers to move ended early: {value}",
        Term.HOST_FULL: "the host has no room: {value}, it needs {against}",
        Term.REMAPPED: "it moved to {value}, which {against}",
        Term.DEVIATION: "it ran {value} worse than expected, tolerated are {against}",
        Term.EXPECTED_BENEFIT: "the move promises a benefit of {value}, at least {against} is asked for",
        Term.BENEFIT: "what a move gains was learnt for a {where}: {value}, before {against}",
        Term.PROPOSE_LIVE_MIGRATION: "server {value} should be migrated to another host: {against}",
        Term.NO_TIER: "it is in the {value}: the flavor has no tier",
        Term.WAYS: "it has {value} ways of {where} for itself, by its flavor",
        Term.NOT_EXCLUSIVE: "it has no ways of {where} for itself: its flavor claims {against} domains",
        Term.MBA_PERCENT: "its bandwidth level in {where} is {value} %: {against}",
        Term.MEMORY_BOUND: "nova bound its memory cell by cell",
        Term.MEMORY_POLICY_UNUSED: "the memory policy {value} of its flavor is not used",
        Term.MEMORY_POLICY: "its memory follows the policy {value}",
        Term.MEMORY_POLICY_USED: "its memory follows the policy {value} instead: {against}",
        Term.MEMORY_STAYS: "its memory stays where it is: {value}",
        Term.ROOM_ON_NODE: "{where} has room for a share of {value}, not of {against}",
        Term.NO_COUNTERS: "there are no counters: {value}",
        Term.NOT_MEMORY_INTENSIVE: "it accesses memory {value} times per instruction, the search begins at {against}",
        Term.SEARCH_QUEUED: "the search waits for its turn: no more than {value} run at once ([bwap]at_once)",
        Term.SEARCH_STARTED: "the search began: {value} memory accesses per instruction, at least {against}",
        Term.SEARCH_GIVEN_UP_STUCK: "the search ended: pages have come no nearer for {value} s of {against}",
        Term.SEARCH_GIVEN_UP_BLIND: "the search ended: {value} readings of {against} were missing",
        Term.PHASE_CHANGED_MAPI: "a new phase: {value} memory accesses per instruction, before {against}",
        Term.PHASE_CHANGED_STALL_RATE: "a new phase: stall rate {value}, before {against}",
        Term.FIRST: "the first measurement shows a stall rate of {value}",
        Term.STALL_RATE: "the stall rate is {value}, the best was {against}",
        Term.DWP: "the next step goes to DWP {value}, from {against}",
        Term.LOWER_BOUND: "the neighbour's stall rate allows no DWP below {value}",
        Term.DWP_FOUND: "the search ended at DWP {value}, the last step was {against}",
        Term.PARTITION_WAYS: "its group has {value} ways of {where} for itself, {against} were requested",
        Term.PARTITION_LEVEL: "its class has the bandwidth level {value} % in {where}, {against} % were requested",
        Term.WAYS_SHARED_WITH: "its ways {value} of {where} are those of group {against}, too",
        Term.CLASS_SHARED: "{value} best-effort servers share its class of service",
        Term.NO_RMID: "no monitoring id (RMID) is left to measure it alone",
        Term.NO_MBA: "this host cannot allocate memory bandwidth",
        Term.MBA_OF_KERNEL: "memory bandwidth is left to the kernel's own loop ({value})",
        Term.MBA_NOT_CALIBRATED: "bandwidth levels of this CPU are absolute ({value}) and not calibrated: nothing is "
        "throttled before `numa-host-agent-ctl calibrate levels`",
        Term.NO_L3_CAT: "this host cannot partition the L3 cache",
        Term.NO_L3_DOMAIN: "L3 domain {value} is not one of {against}",
        Term.NO_CLOSID: "no class of service is left for it",
        Term.NO_CLOSID_BESIDE_BE: "no class of service is left (one stays for best-effort servers)",
        Term.WAYS_DO_NOT_FIT: "{value} exclusive ways in {where} do not fit, {against} are free",
        Term.WAYS_HELD: "{value} of {against} ways that can be exclusive are other servers'",
        Term.WAYS_STAY_SHARED: "{value} must stay shared",
        Term.BALM: "the SLO controller, in phase {value}, keeps {against}",
        Term.SEARCH: "a search began: the objectives of nodes {value} are {against}",
        Term.SEARCH_ENDED: "the search ended, objectives are {value}: {against}",
        Term.RETRY: "the pass failed: once more, for the {value}th time of at most {against}",
        Term.TRAFFIC_MBPS: "server {where} reads and writes {value} MB/s there, all best-effort servers {against}",
        Term.THROTTLE: "server {where} is throttled: {value}, before {against}",
        Term.THROTTLE_WHILE_MOVING: "server {where} is throttled while its pages move: {value}, before {against}",
        Term.FORESEEN: "a weaker throttle of server {where} would raise a latency to {value} of its objective",
        Term.PAGES_BEFORE: "pages of server {where} move before its throttle gets weaker: {value}, before {against}",
        Term.WEAKER_THROTTLE: "the throttle of server {where} gets weaker: {value}, before {against}",
        Term.PAGES_OUTBOUND: "pages of server {where} leave its own node: {value}, before {against}",
        Term.PAGES_INBOUND: "pages of server {where} leave the node of its neighbour: {value}, before {against}",
        Term.UNDO_LAST_LEVEL: "the last level of server {where} violated: back to {value} from {against}",
        Term.HARM_ELSEWHERE: "the last action did harm at nodes {value}, the search is about nodes {against}",
        Term.ROLL_BACK: "server {where} goes back to what was good: {value}, before {against}",
        Term.PAGES_ARRIVED: "the pages of server {where} have arrived: {value}, before {against}",
        Term.PAGES_STUCK: "the pages of server {where} come no nearer and stay: {value}, not {against}",
        Term.GIVE_BACK: "server {where} gets something back on trial: {value}, before {against}",
        Term.GIVEN_BACK: "server {where} keeps what it got back: objectives are {value}",
        Term.TAKE_AGAIN: "what server {where} got back is taken again: {value}, before {against}",
        Term.CANNOT_FIX: "the objectives of servers {value} cannot be kept on this host, after {against}",
        Term.RECOVERED: "objectives are {value} again",
        Term.EFFECT_SHOWN: "what was taken from server {where} helps: worst ratio {value} without, {against} with it",
        Term.KEEP: "server {where} gets it taken again: {value}, before {against}",
        Term.FREE: "server {where} is free, no objective is left to keep: {value}, before {against}",
        Term.TRY_WITHOUT_THROTTLE: "does the throttle of server {where} help? {value}, before {against}",
        Term.TRY_WITHOUT_PAGES: "does the place of the pages of server {where} help? {value}, before {against}",
        Term.PARKED: "no search is begun for server {where} for {value} s",
        Term.IGNORED: "server {where} is not listened to for {value} s",
        Term.ACCOUNT_SPENT_S: "server {where} took {value} s of best-effort traffic beyond what it declares, {against} "
        "are allowed: it gets what it declares, no more",
        Term.FLOOR: "server {where} is not throttled for a while: its mean level of the last hour is {value} %, "
        "{against} % is the least",
        Term.HOLD: "server {where} is held to what is paid for and allowed: {value}, before {against}",
        Term.LATENCY_UNKNOWN: "no latency is known: {value}",
    }
)


def sentence(reason: Reason) -> str:
    """Return what a reason means, for people."""
    return reasons.sentence(reason, SENTENCES)
