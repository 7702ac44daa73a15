# SPDX-License-Identifier: Apache-2.0
"""Lanes of a host's own uplink: which server's traffic goes before which, as text for nft and tc; pure.

:mod:`.grouping`
    which classes have a lane of their own where there are fewer lanes than classes
:mod:`.planning`
    whether an uplink may have lanes at all, and which
:mod:`.ruleset`
    the marks: nft rules for taps and tunnels
:mod:`.queues`
    the lanes: a batch for tc
:mod:`.switches`
    the same lanes as files for switches
:mod:`.guard`
    when lanes that others overwrite are given up
:mod:`.terms`
    why there are none, each reason with its sentence

A packet has its lane in the skb's priority, which is set where it comes out of the guest: in a chain of nft at the
tap's netdev ingress, never by tc there, which Open vSwitch's policing owns. DSCP says the same to switches: in the
outer header of tunnels that the host makes, in the guest's own header on VLAN and flat networks. ECN bits stay as they
are.

:mod:`host_agent.control.lanes` has the texts carried out, in a unit of its own. Marks reach the uplink through a Linux
bridge, VXLAN and Geneve, and by hand have been seen to do so through Open vSwitch. What is known of the kernel
(``____dev_forward_skb``): a veth pair sets the priority to 0, so ports that are plugged through one have no lane.
"""
