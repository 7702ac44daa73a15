# SPDX-License-Identifier: Apache-2.0
"""For all tests: no test fails because the machine is slow."""

from hypothesis import HealthCheck, settings

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
