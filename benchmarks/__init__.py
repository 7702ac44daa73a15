# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: each prints its figures as one JSON object on the last line."""
