# SPDX-License-Identifier: Apache-2.0
"""Remote GPUs: pure decisions about GPUs that servers use over the network.

``slices`` says what of a GPU a lease takes, and which GPU of a pool it gets. ``lease_claims`` says what a lease holds
in Placement. DRMaestro (Amaral 2019, chapter 5) decides who gets one: ``completion`` says what a place costs a job,
``network`` makes the flow network of a phase, ``rounds`` runs the phases over a queue and a ``fleet``. ``fabrics``,
``multi_tenancy``, ``throughput``, ``migration`` and ``closed_loop`` are the models of J. Prades (rCUDA, UPV Valencia
2021): what a network costs a job, how many virtual GPUs it should have, how many jobs share a GPU, what a move costs;
``rebalance`` moves leases that run, ``making_room`` those that make room for one that waits, by what is allocated,
``by_use`` others, by how busy their GPUs are.
``leases`` is the life of a lease, and the fence around the one client that may use it, ``lease_terms`` says why it is
where it is; ``lease_plan`` decides which of those that wait get a GPU, ``keeping`` which are kept for others; ``reach``
says which hosts a server may go to, ``choosing`` which GPU a lease gets that no server has yet.
"""
