# SPDX-License-Identifier: Apache-2.0
"""Nova's schemas and cells in one process: each ``nova-manage`` takes seconds to import.

Runs with the virtual environment's Python: ``nova_schema.py NOVA_CONF``.
"""

import sys

# First: it decides between native threads and eventlet, before anything else can import the latter.
from nova.cmd import manage  # isort: skip

import nova.conf
from nova import config, context, objects


def main(conf: str) -> None:
    config.parse_args(["nova-manage", "--config-file", conf])
    objects.register_all()
    cell1 = nova.conf.CONF.database.connection
    cells = manage.CellV2Commands()
    _require(manage.ApiDbCommands().sync(), "schema of nova_api")
    _require(cells.map_cell0(cell1.replace("nova_cell1", "nova_cell0")), "mapping cell0")
    _require(manage.DbCommands().sync(), "schema of nova_cell0 and nova_cell1")
    known = objects.CellMappingList.get_all(context.get_admin_context())
    if not any(cell.name == "cell1" for cell in known):
        _require(cells.create_cell(name="cell1"), "creating cell1")


def _require(status: int | None, what: str) -> None:
    if status:
        sys.exit(f"{what} failed with status {status}")


if __name__ == "__main__":
    main(sys.argv[1])
