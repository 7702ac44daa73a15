# SPDX-License-Identifier: Apache-2.0
"""Program: nova-computes of several names in one process, each as nova's own program makes one.

Arguments: nova's configuration files, which say the driver, then ``--`` and the names.
"""

import sys
import threading
from collections.abc import Sequence

from nova import monkey_patch

monkey_patch.patch(backend="threading")  # before anything else of nova is imported

import os_vif  # type: ignore[import-untyped]  # noqa: E402
from nova import config, objects, service  # noqa: E402
from nova.compute import rpcapi  # noqa: E402
from nova.conductor import rpcapi as conductor  # noqa: E402
from nova.conf import CONF  # noqa: E402
from nova.db.main import api as database  # noqa: E402
from nova.objects import base  # noqa: E402
from oslo_log import log  # noqa: E402
from oslo_service import opts  # type: ignore[import-untyped]  # noqa: E402


def main(files: Sequence[str], hosts: Sequence[str]) -> None:
    """Run them until a signal ends the process."""
    config.parse_args(["nova-compute", *(f"--config-file={file}" for file in files)])
    log.setup(CONF, "nova")
    opts.register_service_opts(CONF)
    objects.register_all()
    os_vif.initialize()
    database.DISABLE_DB_ACCESS = True
    base.NovaObject.indirection_api = conductor.ConductorAPI()
    objects.Service.enable_min_version_cache()
    topics = {"topic": rpcapi.RPC_TOPIC, "topic_alt": rpcapi.RPC_TOPIC_ALT}
    for host in hosts:
        service.Service.create(binary="nova-compute", host=host, **topics).start()
    threading.Event().wait()


if __name__ == "__main__":
    end = sys.argv.index("--")
    main(sys.argv[1:end], sys.argv[end + 1 :])
