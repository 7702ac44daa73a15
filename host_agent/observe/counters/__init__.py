# SPDX-License-Identifier: Apache-2.0
"""Performance counters of servers; :mod:`~host_agent.observe.counters.registry` lists where they come from."""
