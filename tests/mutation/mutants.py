"""Which faults can be seeded into a module: a pure function of its source.

Each mutant is one small change that compiles: a comparison's boundary, an operator, a condition turned
round, a number one larger, a call left out, a value not returned. Texts (messages, docstrings), type
annotations, assertions, log lines and the figures that a module names at its top (64 threads, not 65) are
left alone: no promise hangs on them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants_of"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
_LOGS = ("log", "logging", "warnings")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change. `lines` are those of the statement, by which tests are found; `scope` the dotted name of
    the function or class around it."""

    scope: str
    lines: tuple[int, ...]
    before: str
    after: str
    source: str
    at_import: bool = False  # in the body of a class, which runs when the module is imported

    @property
    def name(self) -> str:
        """What tells it from the others of its module, wherever its lines move to."""
        return f"{self.scope}: {self.before} → {self.after}"


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    found: list[Mutant] = []
    text = _Text(source)
    for scope, statement, at_import in _statements(ast.parse(source).body, "", at_import=True):
        if not scope:
            continue
        for node, changed in _changes(statement):
            start, end = text.span(node)
            after = text.replaced(start, end, changed)
            lines = tuple(range(statement.lineno, _head_end(statement) + 1))
            mutant = Mutant(
                scope, lines, text.lines_at(node), text.line_with(node, changed), after, at_import
            )
            try:
                compile(after, "mutant", "exec")
            except SyntaxError:
                continue
            found.append(mutant)
    return found


class _Text:
    """A module's text by the positions of its nodes, which count bytes."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def replaced(self, start: int, end: int, by: str) -> str:
        return (self._bytes[:start] + by.encode() + self._bytes[end:]).decode()

    def lines_at(self, node: ast.expr | ast.stmt) -> str:
        assert node.end_lineno is not None
        raw = self._bytes[self._starts[node.lineno - 1] : self._starts[node.end_lineno]]
        return " ".join(raw.decode().split())

    def line_with(self, node: ast.expr | ast.stmt, by: str) -> str:
        assert node.end_lineno is not None
        start, end = self.span(node)
        raw = self._bytes[self._starts[node.lineno - 1] : start] + by.encode()
        return " ".join((raw + self._bytes[end : self._starts[node.end_lineno]]).decode().split())


def _statements(body: list[ast.stmt], scope: str, *, at_import: bool) -> Iterator[tuple[str, ast.stmt, bool]]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{scope}.{statement.name}" if scope else statement.name
            is_class = isinstance(statement, ast.ClassDef)
            if not (is_class and _is_protocol(statement)):
                yield from _statements(statement.body, inner, at_import=at_import and is_class)
            continue
        yield scope, statement, at_import
        blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        blocks += [case.body for case in getattr(statement, "cases", [])]
        for block in blocks:
            yield from _statements(block, scope, at_import=at_import)


def _is_protocol(statement: ast.stmt) -> bool:
    bases = statement.bases if isinstance(statement, ast.ClassDef) else []
    return any("Protocol" in ast.unparse(base) for base in bases)


def _head_end(statement: ast.stmt) -> int:
    """The last line of a statement without the block below it."""
    body = getattr(statement, "body", None)
    end = statement.end_lineno or statement.lineno
    return max(statement.lineno, body[0].lineno - 1) if isinstance(body, list) and body else end


def _changes(statement: ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match statement:
        case ast.Assert() | ast.Import() | ast.ImportFrom() | ast.Raise() | ast.Pass() | ast.Global():
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.Expr(value=ast.Call() | ast.Await() as value):
            if not _is_log(value):
                yield statement, "pass"
                yield from _expressions(value)
        case ast.Return(value=value) if value is not None:
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield value, "None"
            yield from _expressions(value)
        case ast.AugAssign(op=op):
            if type(op) in _OPERATORS:
                changed = ast.AugAssign(statement.target, _OPERATORS[type(op)](), statement.value)
                yield statement, ast.unparse(changed)
            yield from _expressions(statement.value)
        case ast.Assign():
            if not any(
                isinstance(target, ast.Name) and target.id == "__all__" for target in statement.targets
            ):
                yield from _expressions(statement.value)
        case ast.AnnAssign(value=value) if value is not None:
            yield from _expressions(value)
        case ast.If(test=test) | ast.While(test=test):
            if not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                yield test, f"not ({ast.unparse(test)})"
                yield from _expressions(test)
        case ast.For(iter=value) | ast.AsyncFor(iter=value):
            yield from _expressions(value)
        case ast.Continue():
            yield statement, "break"
        case ast.Break():
            yield statement, "continue"
        case ast.Match(subject=value):
            yield from _expressions(value)


def _expressions(root: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    stack: list[ast.AST] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.Call) and _is_log(node):
            continue
        if isinstance(node, ast.expr):
            for changed in _of_expression(node):
                yield node, f"({changed})"
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _of_expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield ast.unparse(ast.Compare(node.left, [_COMPARISONS[type(op)]()], node.comparators))
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield ast.unparse(ast.BoolOp(other, node.values))
            for index in range(len(node.values)):
                rest = node.values[:index] + node.values[index + 1 :]
                yield ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))
        case ast.UnaryOp(op=ast.Not()):
            yield ast.unparse(node.operand)
        case ast.UnaryOp(op=ast.USub()):
            yield ast.unparse(node.operand)
        case ast.BinOp(op=op) if type(op) in _OPERATORS and not _is_text(node):
            yield ast.unparse(ast.BinOp(node.left, _OPERATORS[type(op)](), node.right))
        case ast.IfExp():
            yield ast.unparse(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.Constant(value=float() as value):
            yield repr(value * 2 if value else 1.0)
        case ast.Call(func=ast.Name(id="min"), args=[_, _, *_]):
            yield ast.unparse(ast.Call(ast.Name("max"), node.args, node.keywords))
        case ast.Call(func=ast.Name(id="max"), args=[_, _, *_]):
            yield ast.unparse(ast.Call(ast.Name("min"), node.args, node.keywords))


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _is_log(value: ast.expr) -> bool:
    call = value.value if isinstance(value, ast.Await) else value
    return isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[0] in _LOGS
