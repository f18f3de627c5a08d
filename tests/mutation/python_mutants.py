"""Small changes of Python sources: another comparison, another operator, a negated condition, a call left out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from mutants import Mutant

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def python_mutants(path: str, source: bytes) -> list[Mutant]:
    """Return every mutant of a file, in the order of its lines. Annotations, decorators and texts stay as they are."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _nodes(tree):
        if isinstance(node, ast.stmt):
            changes = [*_changed_statements(node)]
        elif isinstance(node, ast.expr):
            # Parentheses keep what stood around the expression around it.
            changes = [f"({ast.unparse(one)})" for one in _changed_expressions(node)]
        else:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        old = source[start:end].decode()
        place = {"path": path, "line": node.lineno, "column": node.col_offset + 1}
        found += [Mutant(start=start, end=end, old=old, new=new, **place) for new in changes]
    return sorted(found, key=lambda one: (one.start, one.end))


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be changed."""
    yield node
    left_out: set[str] = set()
    if isinstance(node, ast.JoinedStr):
        return  # texts; and their places are not told before Python 3.12
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        left_out = {"returns", "decorator_list", "type_params"}
    elif isinstance(node, ast.AnnAssign | ast.arg):
        left_out = {"annotation"}
    for name, value in ast.iter_fields(node):
        if name in left_out:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def _changed_statements(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Continue():
            yield "break"
        case ast.Break():
            yield "continue"
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            other = copy.deepcopy(node)
            other.op = _OPERATORS[type(node.op)]()
            yield ast.unparse(other)
        case _:
            return


def _changed_expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=ops):
            for place, operator in enumerate(ops):
                other = copy.deepcopy(node)
                other.ops[place] = _COMPARISONS[type(operator)]()
                yield other
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
            other_sum = copy.deepcopy(node)
            other_sum.op = _OPERATORS[type(operator)]()
            yield other_sum
        case ast.BoolOp(op=operator):
            other_pair = copy.deepcopy(node)
            other_pair.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield other_pair
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.IfExp():
            swapped = copy.deepcopy(node)
            swapped.body, swapped.orelse = swapped.orelse, swapped.body
            yield swapped
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            other_call = copy.deepcopy(node)
            other_call.func = ast.Name(id=_CALLS[name])
            yield other_call
        case ast.Constant(value=value) if isinstance(value, bool | int | float):
            more = value + 1 if value + 1 != value else 2 * value  # a large float has no room for one more
            yield ast.Constant(value=not value if isinstance(value, bool) else more)
        case _:
            return
