"""Small kernel files, read below a root."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.telemetry.reader import FileReader, integer_of, reason_of, status_of, table_of, text_of, values_of


def test_a_file_that_stays_open_shows_its_new_content(tree) -> None:
    tree.write({"/sys/a": 1})
    reader = tree.reader()
    assert reader.read("/sys/a") == b"1\n"
    with (tree.root / "sys/a").open("r+") as file:
        file.write("7")
    assert reader.read("/sys/a") == b"7\n"
    reader.close()


def test_a_file_that_failed_is_opened_again(tree) -> None:
    reader = tree.reader()
    with pytest.raises(FileNotFoundError):
        reader.read("/sys/a")
    tree.write({"/sys/a": 3})
    assert reader.read("/sys/a") == b"3\n"


def test_nothing_blocks_on_a_pipe_without_a_writer(tree) -> None:
    os.mkfifo(tree.root / "pipe")
    with pytest.raises(OSError, match="Illegal seek") as error:
        tree.reader().read("/pipe")
    assert status_of(error.value) == "error"
    assert reason_of(error.value) == "ESPIPE"


def test_closing_lets_go_of_every_file(tree) -> None:
    tree.write({f"/sys/{index}": index for index in range(20)})
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    reader = tree.reader()
    for index in range(20):
        reader.read(f"/sys/{index}")
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before + 20
    reader.close()
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_paths_are_those_of_the_host(tree) -> None:
    tree.write({"/sys/b/x": 1, "/sys/a/x": 1})
    tree.link("/sys/link", "/sys/a")
    reader = tree.reader()
    assert reader.glob("/sys/*/x") == ["/sys/a/x", "/sys/b/x", "/sys/link/x"]
    assert reader.resolve("/sys/link") == "/sys/a"
    assert sorted(reader.names("/sys")) == ["a", "b", "link"]
    assert reader.names("/none") == []


@pytest.mark.parametrize(
    ("number", "status"),
    [
        ("ENOENT", "unsupported"),
        ("EOPNOTSUPP", "unsupported"),
        ("ENODATA", "unsupported"),
        ("EACCES", "denied"),
        ("EPERM", "denied"),
        ("EIO", "error"),
        ("EBUSY", "error"),
        ("ENODEV", "error"),
    ],
)
def test_every_error_has_a_status(number: str, status: str) -> None:
    assert status_of(OSError(getattr(errno, number), "x")) == status


@pytest.mark.parametrize(
    ("data", "value"),
    [(b"42\n", 42), (b" -5 ", -5), (b"9223372036854775807", 2**63 - 1), (b"", None), (b"N/A\n", None), (b"9223372036854775808", None),
     (b"1.5", None), (b"0x10", None), (b"4 2", None), (b"\xff\xfe", None), ("٣".encode(), None), (b"1" * 30, None), (b"1_0", None), (b"-", None)],
)  # fmt: skip
def test_only_a_whole_decimal_number_is_an_integer(data: bytes, value: int | None) -> None:
    assert integer_of(data) == value


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "ab", "abc", "b"]), st.sampled_from([" 1", ": 2 kB", "", " x"])), max_size=9
    )
)
def test_named_lines_are_read_as_in_the_whole_table(lines: list[tuple[str, str]]) -> None:
    firsts = dict(reversed([(name, name + rest) for name, rest in lines]))
    data = "\n".join(firsts.values()).encode()
    assert values_of(data, ["a", "ab", "abc", "b", "zz"]) == table_of(data)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    values_of(data, ["a", "pswpin", ""])
    integer_of(data)
    assert all(isinstance(value, int) for value in table_of(data).values())


def test_a_text_that_cannot_be_read_is_none(tree) -> None:
    tree.write({"/a": b"", "/b": b"\xff\n"})
    assert text_of(tree.reader(), "/a") is None
    assert text_of(tree.reader(), "/none") is None
    assert text_of(tree.reader(), "/b") == "\ufffd"
    assert FileReader(tree.root).read_once("/b") == b"\xff\n"
