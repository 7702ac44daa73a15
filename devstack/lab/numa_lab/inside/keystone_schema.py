# SPDX-License-Identifier: Apache-2.0
"""Keys, schema and first administrator of Keystone in one process: each ``keystone-manage`` takes seconds to import.

Runs with the virtual environment's Python: ``keystone_schema.py KEYSTONE_CONF``; the bootstrap's values come in the
environment (``OS_BOOTSTRAP_*``).
"""

import sys

import keystone.conf
from keystone.cmd import cli

_COMMANDS = (
    ("fernet_setup", "--keystone-user", "root", "--keystone-group", "root"),
    ("credential_setup", "--keystone-user", "root", "--keystone-group", "root"),
    ("db_sync",),
    ("bootstrap",),
)


def main(conf: str) -> None:
    for command in _COMMANDS:
        # The command line's options are registered again by each command.
        keystone.conf.CONF.clear()
        # A --config-dir is not searched by these commands, and the option goes before the command.
        cli.main(["keystone-manage", "--config-file", conf, *command])


if __name__ == "__main__":
    main(sys.argv[1])
