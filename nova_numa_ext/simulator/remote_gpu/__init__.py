# SPDX-License-Identifier: Apache-2.0
"""Remote GPUs simulated over the policies of :mod:`nova_numa_ext.policy.remote_gpu`; every figure is *modelled*.

``prades`` has the tables of the publication beside what the models say of them, ``overlap`` copies and kernels of one
job event by event.
"""
