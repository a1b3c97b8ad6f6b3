"""What Alembic runs: on the connection of `Database.migrate`, inside its transaction."""

from __future__ import annotations

from alembic import context

from flatout.site.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
