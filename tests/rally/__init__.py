# SPDX-License-Identifier: Apache-2.0
"""Tests that need Rally: ``make rally`` runs them in Rally's own environment."""
