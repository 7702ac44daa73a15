# SPDX-License-Identifier: Apache-2.0
"""Tests that need Neutron's server: ``make test-neutron`` lays it over the environment."""
