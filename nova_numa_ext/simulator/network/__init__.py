# SPDX-License-Identifier: Apache-2.0
"""Groups on the switches of a fabric simulated over the policies of :mod:`nova_numa_ext.policy.network`; *modelled*.

:mod:`.barrio`
    replays a log of jobs under a policy: who waits, and who shares uplinks with whom
:mod:`.mixes`
    synthetic logs, drawn by ``mixes.yaml``: a file that was there before any of them was run
:mod:`.swf`
    logs in the Standard Workload Format
:mod:`.fluid`
    what groups get of uplinks that they share
:mod:`.links`
    the same over single links, by their routes
:mod:`.traffic`
    how fast jobs run that share uplinks; what each sends is drawn by ``traffic.yaml``, there before any run, too
:mod:`.contention`
    what it costs that applications share, in seconds of hosts
:mod:`.slots`
    two applications on one channel, slot by slot
:mod:`.tuning`
    weights by trial, on these slots
:mod:`.arbiter`
    which lane of InfiniBand sends next: two lists of weights, one above the other

Policies see sizes and never traffic, the models of traffic see no policy: none imports the other side.
"""
