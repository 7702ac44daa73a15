# SPDX-License-Identifier: Apache-2.0
"""Controllers run on slow hosts: importing them must stay cheap."""

import subprocess
import sys


def test_controllers_import_no_heavy_module() -> None:
    code = (
        "import sys\n"
        "import host_agent.decide.pages.bwap, host_agent.decide.cores.mapping\n"
        "import host_agent.model.pages, host_agent.decide.pages.worker_sets\n"
        "import host_agent.decide.slo.balm, host_agent.observe.latency.channel\n"
        "heavy = {'numpy', 'scipy', 'networkx', 'libvirt', 'nova', 'requests'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_agent_loads_the_model_only_when_it_is_asked_for() -> None:
    code = "import sys, host_agent.cmd.agent\nsys.exit('numpy' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 0
