# SPDX-License-Identifier: Apache-2.0
"""What writes files of this repository out of the code: ``make config``."""
