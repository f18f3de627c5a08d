"""Small changes of C++ sources, by their tokens: another comparison, another operator, another number."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mutants import Mutant

# Operators stand between blanks where they take two operands: `<` of a template and `*` of a pointer do not.
_BINARY = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "/",
    "+=": "-=",
    "-=": "+=",
}
_WORDS = {
    "true": "false",
    "false": "true",
    "std::min": "std::max",
    "std::max": "std::min",
    "continue": "break",
    "break": "continue",
    "std::any_of": "std::all_of",
    "std::lower_bound": "std::upper_bound",
    "std::upper_bound": "std::lower_bound",
}
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'   # comments and texts stay as they are
    |[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)*             # words
    |\d[\w.']*                                                       # numbers
    |<=>|<<=|>>=|->|::|\+\+|--|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||[^\s]""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)")


def cpp_mutants(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a file, in order. What the preprocessor reads, and code of a known fault, stays."""
    text = source.decode("ascii")
    inactive = _inactive(text)
    found = []
    for token in _TOKEN.finditer(text):
        line = text.count("\n", 0, token.start()) + 1
        if line in inactive:
            continue
        place = {"path": path, "line": line, "column": token.start() - text.rfind("\n", 0, token.start())}
        found += [
            Mutant(start=token.start(), end=token.end(), old=token.group(), new=new, **place)
            for new in _changes(text, token)
        ]
    return found


def _changes(text: str, token: re.Match[str]) -> Iterator[str]:
    word, before, after = token.group(), text[token.start() - 1 : token.start()], text[token.end() : token.end() + 1]
    if word in _BINARY and before.isspace() and after.isspace():
        yield _BINARY[word]
    elif word in _WORDS:
        yield _WORDS[word]
    elif word == "!" and not after.isspace():
        yield ""
    elif word in {"++", "--"}:
        yield "--" if word == "++" else "++"
    elif word.isdigit():
        yield str(int(word) + 1)


def _inactive(text: str) -> set[int]:
    """Return the lines of the preprocessor, and those that a normal build leaves out."""
    found: set[int] = set()
    is_left_out: list[bool] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            found.add(number)
            directive = _DIRECTIVE.match(line.lstrip())
            kind, condition = directive.groups() if directive else ("", "")
            if kind in {"if", "ifdef", "ifndef"}:
                is_fault = "ASSAY_FAULT" in condition or "ASSAY_PATH" in condition or "ASSAY_QSA_FAULTS" in condition
                is_left_out.append(is_fault and kind != "ifndef" and "!defined" not in condition)
            elif kind == "else":
                is_left_out[-1] = False  # a fault replaces what a normal build does
            elif kind == "endif":
                is_left_out.pop()
        elif any(is_left_out):
            found.add(number)
    return found
