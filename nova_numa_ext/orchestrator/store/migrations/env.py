# SPDX-License-Identifier: Apache-2.0
"""Alembic's way to the database: on the connection that is open."""

from alembic import context

from nova_numa_ext.orchestrator.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
