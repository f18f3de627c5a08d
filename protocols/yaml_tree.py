"""Strict YAML: a tree of values that remember their lines, and every trap of the format refused by name.

Refused are duplicate keys, anchors, aliases, tags, merge keys, directives, further documents, tabs, and plain scalars
that YAML 1.1 and people read differently (yes, on, 0755, 1e-2, 1_000, 12:30, dates). A plain decimal becomes an exact
Decimal and never passes through a float.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import NoReturn, TypeAlias

import yaml

from protocols.errors import Problem, ProtocolError

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_PROBLEMS = 100

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_SHOWN_CHARACTERS = 60

PathPart: TypeAlias = "str | int"
ScalarValue: TypeAlias = "str | int | bool | Decimal | None"


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A single value and the line (from 1) on which it begins."""

    line: int
    value: ScalarValue


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One key of a mapping: the key's line and the value."""

    line: int
    node: Node


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """Keys in the order of the file."""

    line: int
    entries: dict[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sequenced:
    """Items of a list."""

    line: int
    items: list[Node] = field(default_factory=list)


Node: TypeAlias = "Scalar | Mapping | Sequenced"


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A parsed file: its root, the problems that were found, and the paths that they lie at."""

    source: str
    root: Node
    problems: list[Problem]
    refused: set[tuple[PathPart, ...]]
    """Paths whose value was refused already, so that nobody complains twice."""


def path_text(path: Sequence[PathPart]) -> str:
    """Return a key path for people: gates[3].margin_pct."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            word = part if _PLAIN_KEY.fullmatch(part) else json.dumps(part[:_SHOWN_CHARACTERS])
            text += f".{word}" if text else word
    return text


def place(source: str, line: int, path: Sequence[PathPart]) -> str:
    """Return `file:line` with the key path where there is one."""
    text = path_text(path)
    return f"{source}:{line}: {text}" if text else f"{source}:{line}"


def plain_value(node: Node) -> object:
    """Return the tree below a node as plain dict, list and scalar values."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Mapping):
        return {key: plain_value(entry.node) for key, entry in node.entries.items()}
    return [plain_value(item) for item in node.items]


def line_of(root: Node, path: Sequence[PathPart]) -> int:
    """Return the line of the deepest part of `path` that exists."""
    node, line = root, root.line
    for part in path:
        if isinstance(node, Mapping) and isinstance(part, str) and part in node.entries:
            line, node = node.entries[part].line, node.entries[part].node
        elif isinstance(node, Sequenced) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            line = node.line
        else:
            break
    return line


def parse_yaml(data: bytes, source: str) -> Tree:
    """Read one strict YAML document. ProtocolError where no tree can be made; other problems stand in the tree."""
    text = _decoded(data, source)
    builder = _Builder(source)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # The scanner lets escapes beyond Unicode, such as "\UFFFFFFFF", through to chr().
        raise _syntax_error(error, source, builder.problems) from error
    if builder.root is None:
        _refuse(source, 1, "the file is empty", "write a protocol, beginning with assay: 1")
    return Tree(source=source, root=builder.root, problems=builder.problems, refused=builder.refused)


def _decoded(data: bytes, source: str) -> str:
    if len(data) > MAX_BYTES:
        _refuse(source, 1, f"the file has {len(data)} bytes, expected at most {MAX_BYTES}", "put long texts elsewhere")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        _refuse(source, line, f"the byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
    if text.startswith("\ufeff"):
        _refuse(source, 1, "the file begins with a byte order mark", "save it as UTF-8 without one")
    for number, line_text in enumerate(text.split("\n"), start=1):
        if "\t" in line_text:
            _refuse(source, number, "found a tab, expected spaces", 'write \\t inside "double quotes" if one is meant')
    return text


def _refuse(source: str, line: int, message: str, hint: str) -> NoReturn:
    raise ProtocolError.from_problems(source, [Problem(where=f"{source}:{line}", message=message, hint=hint)])


def _syntax_error(error: Exception, source: str, earlier: Sequence[Problem]) -> ProtocolError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        line = 1 if mark is None else mark.line + 1
    elif isinstance(error, yaml.reader.ReaderError):
        line, what = 1, f"the character {error.character!r} is not allowed in YAML"
    else:
        line, what = 1, str(error)
    problem = Problem(
        where=f"{source}:{line}", message=f"not readable as YAML: {what}", hint="check quotes and indentation"
    )
    return ProtocolError.from_problems(source, [*earlier, problem])


@dataclass(kw_only=True)
class _Frame:
    """A collection that is not closed yet: its path, and the key whose value comes next."""

    node: Mapping | Sequenced
    path: tuple[PathPart, ...]
    key: str | None = None
    key_line: int = 0

    @property
    def expects_key(self) -> bool:
        return isinstance(self.node, Mapping) and self.key is None

    def next_path(self) -> tuple[PathPart, ...]:
        """Return the path of the value (or key) that comes next."""
        if isinstance(self.node, Sequenced):
            return (*self.path, len(self.node.items))
        return self.path if self.key is None else (*self.path, self.key)


class _Builder:
    """Builds the tree from parser events, without recursion, so that depth is our choice."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.root: Node | None = None
        self.problems: list[Problem] = []
        self.refused: set[tuple[PathPart, ...]] = set()
        self._frames: list[_Frame] = []
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        """Add one parser event to the tree."""
        match event:
            case yaml.DocumentStartEvent():
                self._start_document(event)
            case yaml.AliasEvent():
                self._take_alias(event)
            case yaml.ScalarEvent():
                self._check_decoration(event)
                self._take_scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._check_decoration(event)
                self._start_collection(event)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._frames.pop()
            case _:
                pass

    def _path(self) -> tuple[PathPart, ...]:
        return self._frames[-1].next_path() if self._frames else ()

    def _problem(self, event: yaml.Event, message: str, hint: str) -> None:
        where = place(self.source, _line(event), self._path())
        self.problems.append(Problem(where=where, message=message, hint=hint))
        if len(self.problems) >= MAX_PROBLEMS:
            raise ProtocolError.from_problems(self.source, self.problems)

    def _start_document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            _refuse(self.source, _line(event), "found a second document, expected one", "remove the line of dashes")
        if event.version or event.tags:
            _refuse(self.source, _line(event), "found a YAML directive, expected none", "remove the line with %")

    def _check_decoration(self, event: yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        if event.anchor is not None:
            self._problem(event, f"found the anchor &{event.anchor}, expected a value", "write values out")
        if event.tag is not None:
            self._problem(event, f"found the tag {ascii(event.tag)[1:-1]}, expected a plain value", "remove the tag")

    def _take_alias(self, event: yaml.AliasEvent) -> None:
        self._problem(event, f"found the alias *{event.anchor}, expected a value", "write the value out")
        if self._frames and self._frames[-1].expects_key:
            raise ProtocolError.from_problems(self.source, self.problems)
        self._add(Scalar(line=_line(event), value=None), is_refused=True)

    def _start_collection(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        line = _line(event)
        if self._frames and self._frames[-1].expects_key:
            self._problem(event, "found a collection as a key, expected a plain word", "write a word")
            raise ProtocolError.from_problems(self.source, self.problems)
        if len(self._frames) >= MAX_DEPTH:
            _refuse(self.source, line, f"the nesting is deeper than {MAX_DEPTH} levels", "flatten it")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        node: Mapping | Sequenced = Mapping(line=line) if is_mapping else Sequenced(line=line)
        frame = _Frame(node=node, path=self._path())
        self._add(node)
        self._frames.append(frame)

    def _take_scalar(self, event: yaml.ScalarEvent) -> None:
        if self._frames and self._frames[-1].expects_key:
            self._take_key(event, self._frames[-1])
            return
        if event.style is not None:
            self._take_quoted(event)
            return
        reading = read_plain(event.value)
        if isinstance(reading, Trap):
            self._problem(event, f"found {reading.found}, expected {reading.expected}", reading.hint)
            self._add(Scalar(line=_line(event), value=event.value), is_refused=True)
        else:
            self._add(Scalar(line=_line(event), value=reading))

    def _take_quoted(self, event: yaml.ScalarEvent) -> None:
        is_text = not any(0xD800 <= ord(character) <= 0xDFFF for character in event.value)
        if not is_text:
            self._problem(event, "found half of a surrogate pair, expected text", "write the character itself")
        self._add(Scalar(line=_line(event), value=event.value if is_text else ""), is_refused=not is_text)

    def _take_key(self, event: yaml.ScalarEvent, frame: _Frame) -> None:
        key = event.value.encode("utf-8", "replace").decode("utf-8")
        frame.key, frame.key_line = key, _line(event)
        if event.style is None and not isinstance(read_plain(key), str):
            self.refused.add(self._path())
            self._problem(
                event, f"found the key {key}, expected a word", "write a word, or quote the key if it is meant"
            )
        if isinstance(frame.node, Mapping) and key in frame.node.entries:
            first = frame.node.entries[key].line
            self._problem(event, f"the key stands twice, first in line {first}", "keep one of them")

    def _add(self, node: Node, *, is_refused: bool = False) -> None:
        if is_refused:
            self.refused.add(self._path())
        if not self._frames:
            self.root = node
            return
        frame = self._frames[-1]
        if isinstance(frame.node, Sequenced):
            frame.node.items.append(node)
        elif frame.key is not None:
            frame.node.entries.setdefault(frame.key, Entry(line=frame.key_line, node=node))
            frame.key = None


def _line(event: yaml.Event) -> int:
    mark = event.start_mark
    return 1 if mark is None else int(mark.line) + 1


@dataclass(frozen=True, kw_only=True)
class Trap:
    """A plain scalar that readers of YAML disagree on."""

    found: str
    expected: str
    hint: str


_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")
_MAX_DIGITS = 18
_MAX_TRAP_CHARACTERS = 64
"""Longer texts are no numbers or dates; the limit also keeps pattern matching fast on hostile files."""

_TRAPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(?i:yes|no|on|off|y|n)|True|TRUE|False|FALSE"), "a YAML 1.1 boolean"),
    (re.compile(r"~|Null|NULL"), "another spelling of null"),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "a YAML 1.1 number in base 60"),
    (re.compile(r"[-+]?0[0-9_]+|[-+]?0[oO][0-7_]+"), "a number with a leading zero (octal for some readers)"),
    (re.compile(r"[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[bB][01_]+"), "a number that is not decimal"),
    (re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+"), "a number with an exponent"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?|[-+]?[0-9]*\.[0-9_]*_[0-9_]*"), "a number with underscores"),
    (re.compile(r"[-+]?\.[0-9]+|[-+]?[0-9]+\."), "a number without digits on both sides of the point"),
    (re.compile(r"\+[0-9][0-9.]*"), "a number with a plus sign"),
    (re.compile(r"[-+]?0[0-9]+\.[0-9]+"), "a number with a leading zero"),
    (re.compile(r"(?i:[-+]?\.inf|\.nan)"), "a number that is not finite"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?"), "a YAML 1.1 date"),
)


def read_plain(text: str) -> ScalarValue | Trap:
    """Return the value of an unquoted scalar, or the trap that it is."""
    if text in {"true", "false"}:
        return text == "true"
    if text == "null":
        return None
    if _INTEGER.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text)
    if _DECIMAL.fullmatch(text) and len(text) <= 2 * _MAX_DIGITS:
        return Decimal(text)
    return next(_traps(text), text)


def _traps(text: str) -> Iterator[Trap]:
    if not text:
        yield Trap(found="nothing", expected="a value", hint="write null, or remove the key")
    if text in {"<<", "="}:
        yield Trap(found=f"the merge key {text}", expected="a word", hint="write the keys out")
    if _INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text):
        yield Trap(found="a number with too many digits", expected="a shorter one", hint="quote it if it is text")
    if len(text) > _MAX_TRAP_CHARACTERS:
        return
    for pattern, what in _TRAPS:
        if pattern.fullmatch(text):
            yield Trap(found=f"{text} ({what})", expected=_wanted(what), hint=_spelled_out(text, what))


def _wanted(what: str) -> str:
    if "boolean" in what:
        return "true or false"
    if "null" in what:
        return "null"
    if "date" in what:
        return "text in quotes"
    return "a plain number such as 10 or 0.01"


def _spelled_out(text: str, what: str) -> str:
    """Return what to write instead of a trap: the plain number where there is one, and quotes where text is meant."""
    quoted = f'"{text}" in quotes if text is meant'
    if "date" in what:
        return f'write "{text}" in quotes'
    if not any(word in what for word in ("exponent", "underscores", "point", "plus")):
        return f"write {quoted}"
    try:
        number = Decimal(text.replace("_", ""))
    except InvalidOperation:
        return f"write {quoted}"
    plain = format(number, "f") if abs(number.adjusted()) <= _MAX_DIGITS else ""
    return f"write {plain}, or {quoted}" if plain else f"write {quoted}"
