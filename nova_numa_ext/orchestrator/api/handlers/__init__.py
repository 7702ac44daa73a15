# SPDX-License-Identifier: Apache-2.0
"""What answers the requests: a file for each noun."""
