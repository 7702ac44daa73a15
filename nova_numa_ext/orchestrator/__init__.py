# SPDX-License-Identifier: Apache-2.0
"""The job service: what waits, or concerns more than one server."""
