# SPDX-License-Identifier: Apache-2.0
"""Tests inside nova's own functional test bed: API, conductor, scheduler and computes of one process.

Nova's test bed decides for the whole process how threads work, so these tests need a process of their own:
``pytest tests/in_nova``.
"""
