# SPDX-License-Identifier: Apache-2.0
"""Helpers that several levels of tests share."""
