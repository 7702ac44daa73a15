# SPDX-License-Identifier: Apache-2.0
"""The lab: a real OpenStack with emulated NUMA + RDT hosts on one small machine.

Standard library only: this package runs before any virtual environment exists.

``settings``      what belongs where (paths, ports, passwords), frozen
``terminal``      progress for people and for CI logs
``process``       start, know and stop processes by pid file, never by name
``service``       a process with what it is started from and a way to see that it serves
``graph``         run steps side by side as soon as what they need is done
``packages``      Debian packages that are missing
``pyenv``         the virtual environment of the cloud and of this checkout
``configuration`` configuration files from ``templates/``
``controlplane``  MariaDB, RabbitMQ, Keystone, Placement, Glance, Nova, the network stub, the job service
``localcompute``  libvirtd + nova-compute on this machine, in private namespaces
``emulated``      QEMU/TCG hosts with NUMA, RDT and PCI devices; made from ``emulated_machine`` (the command line),
                  ``guest_shell`` (commands inside), ``qemu_build``, ``kernel`` and ``venv_image``
``debian_archive`` packages and sources that are fetched, never installed
``lab``           all of it: up, down, status, reset, clean
``show``          the main job, shown
``inside/``       programs for the virtual environment's Python
"""
