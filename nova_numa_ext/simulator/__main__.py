# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``python -m nova_numa_ext.simulator``."""

import sys

from nova_numa_ext.simulator.cli import main

sys.exit(main())
