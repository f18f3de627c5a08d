"""From an older schema to this one, step by step, with Alembic. `versions` has a module for each step, in order."""

from __future__ import annotations

import io
from pathlib import Path

from sqlalchemy import Connection, insert, inspect, select, text

from protocols.errors import EvidenceError
from recorder.tables import FIRST_REVISION, REVISION, SCHEMA_VERSION, metadata, revision


def create_schema(connection: Connection) -> None:
    """Make every table in an empty database, and note the revision that they are of."""
    metadata.create_all(connection)
    connection.execute(insert(revision).values(version_num=REVISION))


def revision_of(connection: Connection) -> str | None:
    """Return the revision of a database; None for an empty one. The first schema did not note its own."""
    names = set(inspect(connection).get_table_names())
    if revision.name in names:
        return connection.scalar(select(revision.c.version_num))
    return FIRST_REVISION if "ledger_entry" in names else None


def migrate(connection: Connection) -> bool:
    """Bring a database up to this schema inside the caller's transaction. Says whether anything was to do.

    Raises `EvidenceError` for the schema of a newer Assay.
    """
    found = revision_of(connection)
    if found == REVISION:
        return False
    if found is None:
        create_schema(connection)
        return True
    if found > REVISION:
        hint = "use the Assay that wrote it, or rebuild the database from the ledger"
        raise EvidenceError(f"the schema is {found}, this Assay knows {REVISION}", hint=hint)
    # Importing Alembic costs more than opening a store, and an old store is opened once.
    from alembic import command
    from alembic.config import Config

    if found == FIRST_REVISION:
        revision.create(connection, checkfirst=True)
        if connection.scalar(select(revision.c.version_num)) is None:
            connection.execute(insert(revision).values(version_num=FIRST_REVISION))
    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, REVISION)
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA user_version = {SCHEMA_VERSION}"))
    return True
