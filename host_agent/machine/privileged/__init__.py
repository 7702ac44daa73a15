# SPDX-License-Identifier: Apache-2.0
"""The privileged seam: everything that needs more rights than an ordinary user, and nothing else.

The agent names domains by UUID, guest memory by range and share, threads by id; this side finds and checks the process
itself. It runs in a helper process of its own (:mod:`host_agent.cmd.helper`), which the agent asks over a unix socket;
commands of root do without where no helper listens.
"""
