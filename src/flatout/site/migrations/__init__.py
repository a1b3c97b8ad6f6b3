"""The tables' versions, for Alembic; run by `Database.migrate`."""
