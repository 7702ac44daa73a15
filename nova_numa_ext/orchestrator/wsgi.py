# SPDX-License-Identifier: Apache-2.0
"""``application``, for any WSGI server: ``gunicorn nova_numa_ext.orchestrator.wsgi:application``.

The configuration is read when this module is imported. One that cannot be used ends the process with a sentence; its
exit status is the one after which gunicorn starts no other worker.
"""

import sys
from typing import Final

from nova_numa_ext.orchestrator import known_options, startup
from nova_numa_ext.orchestrator.application import Application, assembled
from placement_traits.errors import NumaExtError

_NOT_BOOTED: Final = 3


def _made() -> Application:
    try:
        conf = startup.configured()
        startup.log_to(conf)
        known_options.report(conf)
        return assembled(conf)
    except NumaExtError as error:
        sys.stderr.write(f"{startup.PROJECT}: {error}\n")
        sys.exit(_NOT_BOOTED)


application = _made()
