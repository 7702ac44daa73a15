# SPDX-License-Identifier: Apache-2.0
"""What waits: jobs of several servers, their queue, and planners that find places for them; pure decisions.

:mod:`.states`
    the life of a job, as a table of transitions
:mod:`.terms`
    why a job waits, moves on or ends, each reason with its sentence
:mod:`.job`
    what users submit: a :class:`.job.Job` of :class:`.job.Part`\\ s
:mod:`.part_specs`
    what a part may ask for beyond its flavor
:mod:`.plan`
    what a planner answers: :class:`.plan.Plan`, :class:`.plan.Wait` or :class:`.plan.Never`
:mod:`.queue`
    one round: who starts, who waits and why, who is given up or stopped; runs in the service and in the simulators
:mod:`.queue_order`, :mod:`.queue_settings`, :mod:`.queue_round`
    in which order jobs are asked; what operators decide about it; what a round decides
:mod:`.limits`, :mod:`.quotas`, :mod:`.postponing`
    what a project may have at a time; when nova says that it has all of it; when a job waits for a better place
:mod:`.reserving`
    what Placement holds for a job until others have freed its places
:mod:`.planner`
    what the queue needs of planners
:mod:`.host_planner`
    the planner of hosts and GPUs, over the arrays of :mod:`.host_view`, by the plug-ins of :mod:`.host_aspects`

A round of the engine, in short::

    view = HostsView.of(snapshot.arrays, amounts_of_roots, disabled_roots, aliases)
    claims = HostClaims(view)               # then claims.take(job, plan) for jobs whose servers the view does not show
    fleet = Fleet(view, claims, HostPlanner(), PlannerSettings(rules))
    found = decide(in_order(waiting, now, settings), active, fleet, now, settings)
"""
