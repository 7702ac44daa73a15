# SPDX-License-Identifier: Apache-2.0
"""A trace-driven simulator of GPU clusters over the policy code that nova-scheduler runs.

``machines`` and ``workload`` make the input, ``cluster`` holds the state and the strategies, ``engine`` is the
event loop, ``metrics`` and ``plots`` show the results, ``cli`` is the command. Every figure is *modelled*: no GPU
is involved.
"""
