"""Schema 1, which was made without Alembic: the steps begin here."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database of schema 1 is one already."""
