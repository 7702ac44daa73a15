# SPDX-License-Identifier: Apache-2.0
"""What servers hold in Placement is made to agree with where nova has put them."""
