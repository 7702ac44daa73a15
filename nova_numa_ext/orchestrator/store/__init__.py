# SPDX-License-Identifier: Apache-2.0
"""The job service's database; nothing else of the project knows SQL.

Nine tables. Times are seconds since 1970, of the *database's* clock::

    leader   one row: which engine writes, its term, until when
    job      what a user asked for, and how far it is; `version` counts its changes
    part     servers of a job that are alike
    event    what happened to a job, append-only
    trust    trusts of users that are to be deleted
    lease    a remote GPU that a project holds, and how far it is; `version` counts its changes

    lease_host        a host that lends GPUs or uses leases, as of its last report
    scaling_group     what an operator has decided about an elastic group; `version` counts its changes
    scaling_decision  what was decided on it, a line for each period

Every change is a compare-and-set. The engine's changes renew its row in `leader` in the same transaction: a process
that has lost its term changes nothing, on Galera neither, where only written rows are compared between nodes.
"""
