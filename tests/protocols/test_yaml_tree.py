from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import ProtocolError
from protocols.yaml_tree import MAX_BYTES, MAX_DEPTH, Trap, line_of, parse_yaml, path_text, plain_value, read_plain


def lines(text: str | bytes) -> list[str]:
    """Return every problem of a text, whether it stopped the parser or not."""
    data = text.encode() if isinstance(text, str) else text
    try:
        return [problem.line() for problem in parse_yaml(data, "p.yaml").problems]
    except ProtocolError as error:
        return list(error.lines())


def value(text: str) -> object:
    tree = parse_yaml(text.encode(), "p.yaml")
    assert tree.problems == []
    return plain_value(tree.root)


def test_plain_values_are_read_without_surprises() -> None:
    text = (
        'a: 10\nb: 2.50\nc: true\nd: null\ne: some text\nf: "yes"\ng: [1, -2]\nh: {i: "1e-2"}\nj: >-\n  two\n  lines\n'
    )
    assert value(text) == {
        "a": 10,
        "b": Decimal("2.50"),
        "c": True,
        "d": None,
        "e": "some text",
        "f": "yes",
        "g": [1, -2],
        "h": {"i": "1e-2"},
        "j": "two lines",
    }


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("yes", 'found yes (a YAML 1.1 boolean), expected true or false; write "yes" in quotes if text is meant'),
        ("No", 'found No (a YAML 1.1 boolean), expected true or false; write "No" in quotes if text is meant'),
        ("on", 'found on (a YAML 1.1 boolean), expected true or false; write "on" in quotes if text is meant'),
        ("OFF", 'found OFF (a YAML 1.1 boolean), expected true or false; write "OFF" in quotes if text is meant'),
        ("True", 'found True (a YAML 1.1 boolean), expected true or false; write "True" in quotes if text is meant'),
        ("~", 'found ~ (another spelling of null), expected null; write "~" in quotes if text is meant'),
        (
            "12:30",
            (
                "found 12:30 (a YAML 1.1 number in base 60), expected a plain number such as 10 or 0.01; "
                'write "12:30" in quotes if text is meant'
            ),
        ),
        (
            "1e-2",
            (
                "found 1e-2 (a number with an exponent), expected a plain number such as 10 or 0.01; "
                'write 0.01, or "1e-2" in quotes if text is meant'
            ),
        ),
        (
            "1_000",
            (
                "found 1_000 (a number with underscores), expected a plain number such as 10 or 0.01; "
                'write 1000, or "1_000" in quotes if text is meant'
            ),
        ),
        (
            "0755",
            (
                "found 0755 (a number with a leading zero (octal for some readers)), expected a plain number such as 10 or "
                '0.01; write "0755" in quotes if text is meant'
            ),
        ),
        (
            "0x1F",
            (
                "found 0x1F (a number that is not decimal), expected a plain number such as 10 or 0.01; "
                'write "0x1F" in quotes if text is meant'
            ),
        ),
        (
            ".5",
            (
                "found .5 (a number without digits on both sides of the point), expected a plain number such as 10 or 0.01; "
                'write 0.5, or ".5" in quotes if text is meant'
            ),
        ),
        (
            "2026-11-29",
            'found 2026-11-29 (a YAML 1.1 date), expected text in quotes; write "2026-11-29" in quotes',
        ),
        ("", "found nothing, expected a value; write null, or remove the key"),
        ("*other", "found the alias *other, expected a value; write the value out"),
        ("&anchor 5", "found the anchor &anchor, expected a value; write values out"),
        ("!!str 5", "found the tag tag:yaml.org,2002:str, expected a plain value; remove the tag"),
    ],
)
def test_each_trap_is_refused_with_line_key_and_what_to_write(written: str, message: str) -> None:
    assert lines(f"first: 1\nkey: {written}\n") == [f"p.yaml:2: key: {message}"]


@pytest.mark.parametrize(
    "written",
    [
        "y",
        "N",
        "FALSE",
        "Null",
        "0o17",
        "0b11",
        "+5",
        "5.",
        "1E5",
        "1.5e3",
        "-1e+3",
        "1__0",
        "1_0.5",
        ".inf",
        "-.INF",
        ".nan",
        "190:20:30",
        "190:20:30.15",
        "01",
        "-007",
        "00.5",
        "2026-1-2T10:00:00Z",
        "1" * 19,
        "0." + "1" * 40,
        "<<",
    ],
)
def test_further_traps_are_refused_too(written: str) -> None:
    assert isinstance(read_plain(written), Trap)


@pytest.mark.parametrize(
    "written", ["10%", "12 pm", "v1.2", "a:b", "1.2.3", "yesterday", "e5", "-", "1-2", "0-1", "nan"]
)
def test_texts_that_no_reader_takes_for_a_number_stay_text(written: str) -> None:
    assert read_plain(written) == written


def test_a_duplicate_key_names_both_lines_and_the_first_value_counts() -> None:
    tree = parse_yaml(b"a: {b: 1}\nc: 2\na: 3\n", "p.yaml")
    assert [problem.line() for problem in tree.problems] == [
        "p.yaml:3: a: the key stands twice, first in line 1; keep one of them"
    ]
    assert plain_value(tree.root) == {"a": {"b": 1}, "c": 2}


def test_keys_that_are_no_words_are_refused() -> None:
    assert lines("yes: 1\n") == [
        "p.yaml:1: yes: found the key yes, expected a word; write a word, or quote the key if it is meant"
    ]
    assert lines("1: 1\n")[0].startswith("p.yaml:1: 1: found the key 1, expected a word")
    assert lines("<<: {a: 1}\n")[0].startswith('p.yaml:1: "<<": found the key <<, expected a word')
    assert lines("[a]: 1\n")[0].startswith("p.yaml:1: found a collection as a key")


def test_all_problems_of_a_file_are_found_not_only_the_first() -> None:
    found = lines("a: yes\nb:\n  - 1e3\n  - {c: on}\n")
    assert [line.split(": found")[0] for line in found] == ["p.yaml:1: a", "p.yaml:3: b[0]", "p.yaml:4: b[1].c"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "p.yaml:1: the file is empty; write a protocol, beginning with assay: 1"),
        (b"# only a comment\n", "p.yaml:1: the file is empty; write a protocol, beginning with assay: 1"),
        (b"a: 1\nb: \xff\n", "p.yaml:2: the byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"\xef\xbb\xbfa: 1\n", "p.yaml:1: the file begins with a byte order mark; save it as UTF-8 without one"),
        (b"a: 1\n\tb: 2\n", 'p.yaml:2: found a tab, expected spaces; write \\t inside "double quotes" if one is meant'),
        (b"a: 1\n---\nb: 2\n", "p.yaml:2: found a second document, expected one; remove the line of dashes"),
        (b"%YAML 1.1\n---\na: 1\n", "p.yaml:1: found a YAML directive, expected none; remove the line with %"),
        (b"a: 1\nb: [1\n", "p.yaml:3: not readable as YAML: "),
        (b'a: "\\UFFFFFFFF"\n', "p.yaml:1: not readable as YAML: "),
        (b"a: \x00\n", "p.yaml:1: not readable as YAML: "),
        (b'a: "\\uD800"\n', "p.yaml:1: a: found half of a surrogate pair, expected text; write the character itself"),
    ],
)
def test_files_that_are_no_single_plain_document_are_refused(data: bytes, message: str) -> None:
    found = lines(data)
    assert len(found) == 1
    assert found[0].startswith(message)


def test_size_and_depth_have_limits() -> None:
    assert lines(b"a: " + b"x" * MAX_BYTES)[0].startswith(
        f"p.yaml:1: the file has {MAX_BYTES + 3} bytes, expected at most"
    )
    deep = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
    assert lines(deep) == [f"p.yaml:1: the nesting is deeper than {MAX_DEPTH} levels; flatten it"]
    assert lines("[" * MAX_DEPTH + "]" * MAX_DEPTH) == []
    assert len(lines("[" * 100_000)) == 1


def test_a_hostile_number_does_not_stop_the_parser() -> None:
    assert lines("a: 1" + "_" * 200_000 + "x\n") == []
    assert len(lines("a: 1e" + "9" * 40 + "\n")) == 1


def test_lines_and_paths_are_those_of_the_file() -> None:
    tree = parse_yaml(b"a: 1\nb:\n  - c: 2\n    d: 3\n  - 4\n", "p.yaml")
    assert line_of(tree.root, ("b", 0, "d")) == 4
    assert line_of(tree.root, ("b", 1)) == 5
    assert line_of(tree.root, ("b", 7, "x")) == 2
    assert path_text(("gates", 3, "margin_pct")) == "gates[3].margin_pct"
    assert path_text(("a\nb", "c")) == '"a\\nb".c'


@settings(max_examples=400, deadline=None)
@given(
    st.binary(max_size=200) | st.text(alphabet="ab:-[]{}\"'&*!|>%#?,\n .0159eyn~<=_\\u", max_size=80).map(str.encode)
)
def test_arbitrary_bytes_give_a_tree_or_a_protocol_error(data: bytes) -> None:
    for line in lines(data):
        assert line.startswith("p.yaml:")
        assert "\n" not in line.split(": ")[0]
