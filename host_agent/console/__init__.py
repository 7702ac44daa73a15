# SPDX-License-Identifier: Apache-2.0
"""What ``numa-host-agent-ctl`` shows and does: rows and texts of plain values.

Each command loads only what it needs: on a busy host most of a command's time goes into loading modules.
"""
