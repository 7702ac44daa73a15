# SPDX-License-Identifier: Apache-2.0
"""How the parts are put together from the configuration: the only code that knows them all."""
