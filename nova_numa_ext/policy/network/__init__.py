# SPDX-License-Identifier: Apache-2.0
"""Groups of servers on the switches of a fabric: where they fit, and who else is on their uplinks; pure decisions.

:mod:`.leafs`
    what a policy sees: :class:`.leafs.Leaf`\\ s in the fabric's order, with free hosts and what groups hold there
:mod:`.groups`
    what is asked, :class:`.groups.GroupRequest`, and what is answered, :class:`.groups.LeafPlan` or
    :class:`.groups.NoLeafs`
:mod:`.planner`
    plans one group by the policy that it needs: :mod:`.vnb` for quiet groups, :mod:`.exclusive`, and for those that
    share :mod:`.tree_fit` or, for comparison, :mod:`.first`
:mod:`.mixing`
    which groups may share uplinks by how much they use the network
:mod:`.fragmentation`
    what is left for groups of a size, and which uplinks are idle
:mod:`.xgft`, :mod:`.sharing`
    fat trees, what a job sees of them, and how many jobs it can share links with
:mod:`.terms`
    why, each reason with its sentence

Jokanović: Resource management techniques aware of interference among high-performance computing applications (thesis,
UPC Barcelona, 2014), chapters 3 and 4, is the origin of the virtual network blocks (VNB) and of the bounds.
"""
