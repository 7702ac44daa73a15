# SPDX-License-Identifier: Apache-2.0
"""The privileged seam: everything that needs more rights than an ordinary user, and nothing else.

The agent names domains by UUID, guest memory by range and share, threads by id; this side finds and checks the process
itself. With all rights already there it runs in the agent's process, else in a helper started by oslo.privsep.
"""
