# SPDX-License-Identifier: Apache-2.0
"""Who solves the flow networks of DRMaestro."""
