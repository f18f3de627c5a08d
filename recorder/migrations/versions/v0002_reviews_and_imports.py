"""Schema 2: imported bundles, receipts of the store, reviews, and verdicts that judge an older one again.

No older entry has rows in these tables.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import MetaData

from recorder.tables import declare

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the tables."""
    schema = MetaData()
    declare(
        schema,
        "ledger_entry",
        "seq:i",
        "kind:t lock_sha256:t? prev_sha256:t sha256:t utc_ns:i monotonic_ns:i payload_json:t",
    )
    for name, columns in (
        ("bundle_import", "name:t store:t entries:i root_sha256:t manifest_sha256:t left_out_count:i trust:t"),
        ("store_receipt", "kind:t payload_json:t"),
        ("rejudgement", "campaign_id:t verdict_seq:i"),
        (
            "review",
            "campaign_id:t verdict_seq:i verdict_status:t decision:t status:t reviewer:t statement:t key_hash:t note:t",
        ),
    ):
        declare(schema, name, "", columns).create(op.get_bind())
