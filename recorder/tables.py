"""The tables of the evidence database. All of them are derived from ledger and blobs, and can be rebuilt.

Every row names in ``entry_seq`` the ledger entry that it was derived from, and is never changed afterwards; what a
later entry says is a row of its own. Rows of one load hang on the ``entry_seq`` of its ``load.sealed`` entry.
Times ending in ``_ns`` are nanoseconds, monotonic unless the name says ``utc``. Flags are 0 or 1. Columns ending in
``_json`` hold JSON text. NULL means that the fact is not there, never zero.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sqlalchemy import (
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)
from sqlalchemy.types import TypeEngine

SCHEMA_VERSION: Final = 2
REVISION: Final = f"{SCHEMA_VERSION:04d}"
FIRST_REVISION: Final = "0001"
APPLICATION_ID: Final = 0x41535359  # "ASSY"

metadata: Final = MetaData()

_INTEGER: Final[TypeEngine[Any]] = BigInteger().with_variant(Integer(), "sqlite")
_REAL: Final[TypeEngine[Any]] = Double().with_variant(REAL(), "sqlite")
_SCHEMA: Final[dict[str, TypeEngine[Any]]] = {"i": _INTEGER, "r": _REAL, "t": Text(), "b": LargeBinary(), "f": _INTEGER}


def declare(into: MetaData, name: str, key: str, columns: str, *, has_seq_key: bool = True) -> Table:
    """Declare a table from short column words: ``name:type``, a ``?`` behind it where NULL may stand.

    Types: i integer, r real, t text, b bytes, f flag. ``key`` lists the key columns behind ``entry_seq``. Migrations
    use this too, with the words of their own time.
    """
    parts: list[Column[Any] | CheckConstraint] = []
    if name != "ledger_entry":
        seq = ForeignKey("ledger_entry.seq")
        parts.append(Column("entry_seq", _INTEGER, seq, primary_key=has_seq_key, nullable=False, autoincrement=False))
    for is_key, words in ((True, key), (False, columns)):
        for word in words.split():
            column, kind = word.removesuffix("?").split(":")
            parts.append(
                Column(column, _SCHEMA[kind], primary_key=is_key, nullable=word.endswith("?"), autoincrement=False)
            )
            if kind == "f":
                parts.append(CheckConstraint(f"{column} IN (0, 1)"))
    # Large values belong into a rowid table; small ones with a long key are stored once, in the key's own tree.
    has_rowid = not key or ":b" in columns
    return Table(name, into, *parts, sqlite_strict=True, sqlite_with_rowid=has_rowid)


LEDGER_COLUMNS: Final = "kind:t lock_sha256:t? prev_sha256:t sha256:t utc_ns:i monotonic_ns:i payload_json:t"
_table: Final = partial(declare, metadata)

ledger_entry = _table("ledger_entry", "seq:i", LEDGER_COLUMNS)

# --- the store -------------------------------------------------------------------------------------------------
store = _table("store", "", "store_id:t format:i origin:t")
public_key = _table("public_key", "", "key_hash:t name:t verifier_key:t file_sha256:t")
recovery = _table("recovery", "", "torn_count:i temporary_count:i orphan_count:i detail_json:t")
checkpoint = _table("checkpoint", "", "size:i root_sha256:t note_sha256:t key_hash:t note:t")
bundle_import = _table(
    "bundle_import", "", "name:t store:t entries:i root_sha256:t manifest_sha256:t left_out_count:i trust:t"
)
store_receipt = _table("store_receipt", "", "kind:t payload_json:t")
blob = _table("blob", "sha256:t", "name:t role:t content_bytes:i is_partial:f", has_seq_key=False)

# --- one campaign ----------------------------------------------------------------------------------------------
campaign = _table(
    "campaign",
    "campaign_id:t",
    "protocol_id:t protocol_sha256:t lock_sha256:t locked_utc_ns:i",
    has_seq_key=False,
)
protocol_text = _table("protocol_text", "", "campaign_id:t sha256:t source:t")
lock = _table("lock", "", "campaign_id:t sha256:t lock_json:t seed_commitment:t? host_json:t versions_json:t")
arm = _table(
    "arm",
    "arm:t",
    "campaign_id:t kind:t is_fresh:f layout_salt:i? faults_json:t settings_json:t capabilities_json:t "
    "build_receipt_sha256:t?",
)
identity_file = _table(
    "identity_file",
    "owner:t ordinal:i",  # owner: baseline, candidate, model, draft, ple_table, tokenizer, chat_template
    "campaign_id:t name:t? bytes:i sha256:t build_id:t? soname:t? needed_json:t? detail_json:t?",
)
position = _table("position", "position:i", "campaign_id:t label:t arm:t block:i? is_burn_in:f")
frozen_request = _table("frozen_request", "reference:t", "campaign_id:t sha256:t body:b blob_sha256:t")
campaign_text = _table("campaign_text", "name:t", "campaign_id:t content:b blob_sha256:t")
campaign_event = _table("campaign_event", "", "campaign_id:t kind:t reason:t?")
preflight_finding = _table("preflight_finding", "ordinal:i", "campaign_id:t finding_json:t")
receipt = _table("receipt", "", "campaign_id:t kind:t payload_json:t")
attachment = _table("attachment", "name:t", "campaign_id:t role:t blob_sha256:t content_bytes:i is_partial:f")
gate_result = _table(
    "gate_result",
    "ordinal:i",
    "campaign_id:t gate_id:t kind:t status:t is_required:f reason:t threshold:t? margin:t? inputs_json:t",
)
verdict = _table("verdict", "", "campaign_id:t status:t reason:t exit_code:i payload_json:t")
rejudgement = _table("rejudgement", "", "campaign_id:t verdict_seq:i")
review = _table(
    "review",
    "",
    "campaign_id:t verdict_seq:i verdict_status:t decision:t status:t reviewer:t statement:t key_hash:t note:t",
)
report_file = _table("report_file", "name:t", "campaign_id:t sha256:t content:b blob_sha256:t")

# --- one load --------------------------------------------------------------------------------------------------
load = _table(
    "load",
    "load_id:t",
    "campaign_id:t position:i label:t arm:t block:i? is_burn_in:f attempt:i opened_ns:i opened_utc_ns:i",
    has_seq_key=False,
)
load_seal = _table("load_seal", "", "load_id:t campaign_id:t state:t reason:t? is_abandoned:f sealed_ns:i")
load_event = _table("load_event", "ordinal:i", "t_ns:i event:t fields_json:t")
props = _table("props", "ordinal:i", "props_json:t")
request = _table(
    "request",
    "request:i",
    "name:t route:t kind:t workload:t? repeat:i is_warmup:f body_sha256:t body_bytes:i http_status:i? outcome:t "
    "reason_code:t? reason:t? error_text:t? sent_ns:i? headers_ns:i? first_token_ns:i? last_token_ns:i? done_ns:i? "
    "end_ns:i? end_reason:t? ttft_ns:i? e2e_ns:i? client_prefill_ns:i? client_generation_ns:i? "
    "server_prefill_ns:i? server_generation_ns:i? prompt_tokens:i? prompt_tokens_evaluated:i? cached_tokens:i? "
    "generated_tokens:i? drafted_tokens:i? accepted_tokens:i? stop_reason:t? model:t? text:t "
    "settings_json:t? timings_json:t? blob_sha256:t is_cut:f",
)
http_header = _table("http_header", "request:i ordinal:i", "name:t value:t")
socket_read = _table("socket_read", "request:i ordinal:i", "t_ns:i data:b")
sse_event = _table("sse_event", "request:i ordinal:i", "t_ns:i read_ordinal:i kind:t data:b")
token = _table("token", "request:i ordinal:i", "token_id:i event_ordinal:i t_ns:i")
timing = _table("timing", "request:i name:t", "value:r? text:t")
work_counter = _table("work_counter", "request:i name:t", "value:i")
request_flag = _table("request_flag", "request:i ordinal:i", "code:t expected:i? found:i?")
telemetry_field = _table(
    "telemetry_field",
    "field:i",
    "name:t instance:t unit:t kind:t domain:t source:t window_us:i? update_us:i? resolution:i? modulus:i? "
    "states_json:t",
)
telemetry_sample = _table(
    "telemetry_sample", "sample:i", "tick:i deadline_ns:i t_begin_ns:i t_end_ns:i cpu_ns:i missed_ticks:i is_edge:f"
)
telemetry_reading = _table("telemetry_reading", "sample:i field:i", "raw:i? status:t")
telemetry_raw = _table("telemetry_raw", "sample:i source:t", "data:b")
phase_sensor = _table(
    "phase_sensor",
    "request:i phase:t field:i",
    "status:t n:i coverage_ppm:i max_gap_ns:i? margin_ns:i mean:i? q1:i? q2:i? q3:i? q4:i? minimum:i? p05:i? p50:i? "
    "p95:i? maximum:i? slope_per_min:i? changes:i longest_equal:i is_frozen:f",
)
phase_counter = _table("phase_counter", "request:i phase:t field:i", "delta:i? bound:i? coverage_ppm:i")
phase_energy = _table(
    "phase_energy",
    "request:i phase:t field:i",
    "domain:t instance:t method:t energy_uj:i? bound_uj:i? coverage_ppm:i n:i reason:t? is_best:f",
)
anomaly = _table("anomaly", "ordinal:i", "kind:t start_ns:i end_ns:i field:t value:i cause:t? request:i? phase:t?")

DERIVED: Final = tuple(metadata.sorted_tables)
"""Every table of derived rows, those that others refer to first."""

revision: Final = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""The revision of the schema, as Alembic keeps it (see `migrations`)."""
