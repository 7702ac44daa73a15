# SPDX-License-Identifier: Apache-2.0
"""The REST API of jobs: one noun a file; schema, policy, view and routes side by side."""
