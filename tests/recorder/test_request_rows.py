"""Rows of one exchange, whatever its bytes are."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, insert

from recorder.load_files import Exchange
from recorder.request_rows import exchange_rows, plain_text, read_exchange
from recorder.tables import metadata
from recorder.wire import WireWriter


def exchange(kind: str = "native", route: str = "/completion") -> Exchange:
    return Exchange(
        number=1, name="x", file="wire/001-x.wire", route=route, kind=kind, workload="tiny", repeat=0, is_warmup=False
    )


def wire(*reads: bytes, end: str | None = "complete") -> bytes:
    file = io.BytesIO()
    writer = WireWriter(file.write)
    writer.sent_bytes(b"POST /completion HTTP/1.1\r\n\r\n{}")
    writer.sent(1)
    for number, data in enumerate(reads):
        writer.read(2 + number, data)
    if end is not None:
        writer.end(end, 99)
    return file.getvalue()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = create_engine("sqlite://")
    metadata.create_all(made)
    yield made
    made.dispose()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"

odd = st.sampled_from(
    [
        OK,
        b"HTTP/1.1 500 X\r\nContent-Length: 3\r\n\r\nbad",
        b"HTTP/1.1 200 OK\r\n\xff\xfe: \x00\r\n\r\n",
        b'data: {"content":"\\ud800\\u0000","tokens":[1],"stop":false}\n\n',
        b"data: [DONE]\n\n",
        b"data: {\n\n",
        b'data: {"stop":true,"timings":{"prompt_ms":1e999,"predicted_ms":NaN,"x":[1],"y":"\\u0000"},"tokens":[]}\n\n',
        b'data: {"stop":true,"work":{"n":9007199254740991,"\\u0000":1},"model":"\\udfff","generation_settings":{"a":1e5}}\n\n',
        b"data: \xff\xfe\n\n",
        b": ping\n\n",
        b"error: x\n\n",
    ]
) | st.binary(max_size=60)


@given(
    st.lists(odd, max_size=8),
    st.sampled_from(["native", "openai", "plain"]),
    st.sampled_from([None, "complete", "closed", "reset", "x\x00\udc80"]),
)
def test_rows_of_any_bytes_can_be_derived_and_inserted(engine: Engine, reads: list[bytes], kind: str, end: str | None):
    read = read_exchange(exchange(kind), wire(*reads, end=end))
    rows = exchange_rows(read, entry_seq=0, blob_sha256="ab" * 32)
    with engine.connect() as connection:
        for name, found in rows.items():
            if found:
                connection.execute(insert(metadata.tables[name]), [*found])
        connection.rollback()


@given(st.binary(max_size=200), st.sampled_from(["native", "openai", "plain"]))
def test_rows_of_any_file_can_be_derived(data: bytes, kind: str):
    exchange_rows(read_exchange(exchange(kind), data), entry_seq=0, blob_sha256="ab" * 32)


@pytest.mark.parametrize(
    ("reads", "end", "outcome"),
    [
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"], "complete", "ok"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}"], "reset", "truncated"),
        ([b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"], "complete", "http_error"),
        ([b"nonsense"], "closed", "stream_error"),
        ([], "refused", "refused"),
    ],
)
def test_plain_exchanges_say_how_they_ended(reads: list[bytes], end: str, outcome: str):
    rows = exchange_rows(read_exchange(exchange("plain"), wire(*reads, end=end)), entry_seq=0, blob_sha256="a")
    assert rows["request"][0]["outcome"] == outcome
    assert "token" not in rows


def test_text_that_no_database_takes_is_escaped():
    assert plain_text("a\x00b\ud800c") == "a\\x00b\\ud800c"
    connection = sqlite3.connect(":memory:")
    assert connection.execute("SELECT ?", (plain_text("\udfff"),)).fetchone() == ("\\udfff",)
