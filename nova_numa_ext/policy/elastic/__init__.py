# SPDX-License-Identifier: Apache-2.0
"""How many members a group needs for its load: OnlineElastMan (Gureya 2021, chapter 3), pure decisions.

:mod:`.load`, :mod:`.period`
    what one member has to do; what monitoring knows of a group in one control period
:mod:`.cells`
    readings of latencies, kept by the load they were taken at, and which loads meet the objective
:mod:`.boundary`
    the plane between loads that meet it and loads that do not; how near a member is to it
:mod:`.forecast`, :mod:`.pool`, :mod:`.share`
    predictors of a total, the weighted majority among them, and the total's parts for the members
:mod:`.settings`
    what an operator decides, with the published parameters and our own
:mod:`.decide`, :mod:`.members`, :mod:`.terms`
    how many members more or fewer, which ones leave, and why
:mod:`.group`
    the loop: one call a period; the service and the simulator run the same
:mod:`.trace`, :mod:`.following`
    what monitoring has seen of a group, from CSV, and the decisions on it while nothing is carried out

Models are fitted by what a :class:`.group.Learner` brings; numpy alone is needed here.
"""
