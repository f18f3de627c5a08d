"""Schema 2: imported bundles, receipts of the store, reviews, later verdicts, and what the machine did in a phase.

No older entry has rows in the new tables: loads of the first schema did not sample the edges of phases. Two tables of
telemetry have new columns; they are made anew, so that their text is that of a fresh database.
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
    for name, key, columns in NEW_TELEMETRY:
        declare(schema, name, key, columns).create(op.get_bind())
    for name, key, columns, kept, more in GROWN:
        op.execute(f"ALTER TABLE {name} RENAME TO old_{name}")
        declare(schema, name, key, columns).create(op.get_bind())
        op.execute(f"INSERT INTO {name} ({kept}{more}) SELECT {kept}{', 0' if more else ''} FROM old_{name}")  # noqa: S608
        op.execute(f"DROP TABLE old_{name}")


NEW_TELEMETRY = (
    ("telemetry_raw", "sample:i source:t", "data:b"),
    (
        "phase_sensor",
        "request:i phase:t field:i",
        (
            "status:t n:i coverage_ppm:i max_gap_ns:i? margin_ns:i mean:i? q1:i? q2:i? q3:i? q4:i? minimum:i? p05:i? "
            "p50:i? p95:i? maximum:i? slope_per_min:i? changes:i longest_equal:i is_frozen:f"
        ),
    ),
    ("phase_counter", "request:i phase:t field:i", "delta:i? bound:i? coverage_ppm:i"),
    (
        "phase_energy",
        "request:i phase:t field:i",
        "domain:t instance:t method:t energy_uj:i? bound_uj:i? coverage_ppm:i n:i reason:t? is_best:f",
    ),
    ("anomaly", "ordinal:i", "kind:t start_ns:i end_ns:i field:t value:i cause:t? request:i? phase:t?"),
)
GROWN = (
    (
        "telemetry_field",
        "field:i",
        (
            "name:t instance:t unit:t kind:t domain:t source:t window_us:i? update_us:i? resolution:i? modulus:i? "
            "states_json:t"
        ),
        "entry_seq, field, name, instance, unit, kind, domain, source, window_us, resolution, states_json",
        "",
    ),
    (
        "telemetry_sample",
        "sample:i",
        "tick:i deadline_ns:i t_begin_ns:i t_end_ns:i cpu_ns:i missed_ticks:i is_edge:f",
        "entry_seq, sample, tick, deadline_ns, t_begin_ns, t_end_ns, cpu_ns, missed_ticks",
        ", is_edge",
    ),
)
