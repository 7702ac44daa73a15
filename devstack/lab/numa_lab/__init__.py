# SPDX-License-Identifier: Apache-2.0
"""The lab: a real OpenStack with emulated NUMA + RDT hosts on one small machine.

Standard library only: this package runs before any virtual environment exists.

``settings``      what belongs where (paths, ports, passwords), frozen
``terminal``      progress for people and for CI logs
``process``       start, know and stop processes by pid file, never by name
``packages``      Debian packages that are missing
``pyenv``         the virtual environment of the cloud and of this checkout
``configuration`` configuration files from ``templates/``
``controlplane``  MariaDB, RabbitMQ, Keystone, Placement, Glance, Nova, the network stub
``localcompute``  libvirtd + nova-compute on this machine, in private namespaces
``emulated``      QEMU/TCG hosts with NUMA, RDT and PCI devices
``cleanup``       leaves nothing
"""
