# SPDX-License-Identifier: Apache-2.0
"""Measures how a GPU workload runs in good and bad surroundings, and writes the profile files that policies read.

After Amaral 2019, sections 3.2 and 3.3. A *workload* is an image that does the same work at each start. Its run time is
measured

* with its GPUs close together (*pack*) and on different sockets (*spread*),
* packed, while another workload runs packed on the same socket from its beginning to its end (*beside*), and
* with its GPU on another host (*remote*), alone and under load of the network (*loaded*).

:mod:`.plan` says which runs there are and on which GPUs, :mod:`.campaign` makes them and throws away those that did not
run as planned, :mod:`.profiles` turns run times into the files of :mod:`nova_numa_ext.gpu_files`. Who makes a run is no
matter here: servers of a cloud (:mod:`nova_numa_ext.rally.scenarios`), or a model of a host in the tests.
"""
