# SPDX-License-Identifier: Apache-2.0
"""Nova and Keystone as the engine sees them: servers are asked for and written as the job's user."""
