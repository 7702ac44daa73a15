# SPDX-License-Identifier: Apache-2.0
"""What waits: jobs of several servers, their queue, and planners that find places for them; pure decisions.

:mod:`.states`
    the life of a job, as a table of transitions
:mod:`.terms`
    why a job waits, moves on or ends, each reason with its sentence
:mod:`.job`
    what users submit: a :class:`.job.Job` of :class:`.job.Part`\\ s
:mod:`.plan`
    what a planner answers: :class:`.plan.Plan`, :class:`.plan.Wait` or :class:`.plan.Never`
"""
