# SPDX-License-Identifier: Apache-2.0
"""How many jobs a job can share links with at most (Jokanović, section 4.1).

Level 2 are the links from leafs upwards, level 3 those above them. A job of N hosts is on N / n subtrees below a level,
with n hosts on each; in the worst case every other host of these subtrees is another job's, which uses the level, too.
"""


def most_jobs(hosts: int, per_subtree: int, subtree_hosts: int) -> int:
    """Return how many jobs may share links of a level with a job (Eq. 4.1; with equal radix Eq. 4.2).

    :param hosts: N, of the job; a multiple of the next
    :param per_subtree: n, of them on each subtree below the level
    :param subtree_hosts: hosts of such a subtree, m1 · … · m(k-1)
    """
    return hosts // per_subtree * most_jobs_per_link(per_subtree, subtree_hosts)


def most_jobs_per_link(per_subtree: int, subtree_hosts: int) -> int:
    """Return how many jobs may share the links upwards of one subtree with a job that has some hosts there."""
    return subtree_hosts - per_subtree


def most_jobs_spread(hosts: int, radix: int, level: int) -> int:
    """Return the bound for a job with one host on each subtree below a level (Eq. 4.3 for level 2, 4.4 for 3).

    :param radix: children of every switch
    """
    return most_jobs(hosts, 1, radix ** (level - 1))
