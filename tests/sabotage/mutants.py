"""Which small changes could somebody make by mistake?  Every one that fits a source, by a fixed list of kinds.

A comparison turned, an operand or a keyword left out, a statement dropped, another constant, another answer, only the
first of many.  A mutant is told by file, function and change, not by line: it stays true while the file moves around it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tests.sabotage.copy import REPOSITORY, Patch, patched
from tests.sabotage.subtle import SUBTLE

SOURCE = REPOSITORY / "src" / "pollux"
_TURNED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "tuple": "sorted"}
_SWAPPED |= {"bisect_left": "bisect_right", "bisect_right": "bisect_left"}
_STATES = ("HELD", "READY", "LEASED", "DONE", "DEAD", "CANCELLED")
_ANSWERS = ("OK", "ALREADY", "LOST", "STALE", "CONFLICT", "FULL", "FENCED", "OVERLAPPED", "WAITS")
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_DROPPED = ast.Assign | ast.AugAssign | ast.Expr | ast.Delete | ast.Raise | ast.Continue | ast.Break


class Mutant(NamedTuple):
    file: str  # below src/pollux
    function: str
    change: str

    def __str__(self) -> str:
        return f"{self.file} | {self.function} | {self.change}"


class Found(NamedTuple):
    """A mutant, the lines it touches (none: they are read once, at import), and how it is made."""

    mutant: Mutant
    lines: range
    path: tuple[tuple[str, int | None], ...]  # from the module to the node: field, place in its list
    put: ast.AST


def mutants(file: str) -> list[Found]:
    """All of a file, those by hand first."""
    text = (SOURCE / file).read_text()
    return [*_by_hand(file), *_by_rule(file, text)]


def broken(file: str, found: Found) -> ast.Module:
    """The file's program with that change in it."""
    text = (SOURCE / file).read_text()
    if not found.path:
        return ast.parse(patched(text, _patch(found.mutant)))
    tree = ast.parse(text)
    *way, (field, place) = found.path
    node: ast.AST = tree
    for name, at in way:
        node = getattr(node, name) if at is None else getattr(node, name)[at]
    if place is None:
        setattr(node, field, found.put)
    else:
        getattr(node, field)[place] = found.put
    return ast.fix_missing_locations(tree)


def _by_hand(file: str) -> Iterator[Found]:
    for name, patch in SUBTLE.items():
        if patch.file == file:
            yield Found(Mutant(file, "by hand", name), range(0), (), ast.Pass())


def _patch(mutant: Mutant) -> Patch:
    return SUBTLE[mutant.change]


@lru_cache
def _by_rule(file: str, text: str) -> list[Found]:
    seen: Counter[Mutant] = Counter()
    rows = []
    tree = ast.parse(text)
    known = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    known |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for function, lines, path, old, put in _walk(tree, "module", range(0), ()):
        if isinstance(put, ast.Name) and put.id in _STATES and put.id not in known:
            continue
        change = f"{_told(old)} -> {_told(put)}"
        mutant = Mutant(file, function, change)
        seen[mutant] += 1
        if seen[mutant] > 1:
            mutant = mutant._replace(change=f"{change} #{seen[mutant]}")
        rows.append(Found(mutant, lines, path, put))
    return rows


def _told(node: ast.AST) -> str:
    return ast.unparse(node).strip().splitlines()[0]


Step = tuple[str, range, tuple[tuple[str, int | None], ...], ast.AST, ast.AST]


def _walk(node: ast.AST, function: str, lines: range, path: tuple[tuple[str, int | None], ...]) -> Iterator[Step]:
    """Every node with what could stand in its place."""
    for put in _instead(node):
        yield function, lines, path, node, put
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "args", "bases", "type_ignores"} and not isinstance(
            node, ast.Call
        ):
            continue
        for place, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not _is_left_alone(child):
                yield from _walk(child, *_where(child, function, lines), (*path, (field, place)))


def _where(node: ast.AST, function: str, lines: range) -> tuple[str, range]:
    if isinstance(node, _NAMED):
        inner = node.name if function == "module" else f"{function}.{node.name}"
        return inner, range(0)
    if "module" != function and isinstance(node, ast.stmt) and not isinstance(node, ast.AnnAssign):
        is_whole = not hasattr(node, "body") and not isinstance(node, ast.Match)
        return function, range(node.lineno, (node.end_lineno if is_whole else node.lineno) + 1)
    if isinstance(node, ast.expr) and lines:
        return function, range(min(lines.start, node.lineno), max(lines.stop, (node.end_lineno or 0) + 1))
    return function, lines


def _is_left_alone(node: ast.AST) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_first = isinstance(node, ast.FunctionDef) and node.name == "__init__"  # nothing works without what it makes
    return is_text or is_first or isinstance(node, ast.Import | ast.ImportFrom)


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, ops, comparators):
            for place, op in enumerate(ops):
                for turned in _TURNED[type(op)]:
                    yield ast.Compare(left, [*ops[:place], turned(), *ops[place + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
            for place in range(len(values)):
                rest = [*values[:place], *values[place + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(_, body, orelse):
            yield body
            yield orelse
        case ast.BinOp(left, ast.Add(), right):
            yield left
            yield ast.BinOp(left, ast.Sub(), right)
        case ast.BinOp(left, ast.Sub() | ast.Mult() | ast.FloorDiv(), right):
            yield left
            yield ast.BinOp(left, ast.Add(), right)
        case ast.Constant() | ast.JoinedStr() | ast.Name() | ast.Attribute() | ast.List() | ast.Tuple():
            yield from _another_value(node)
        case ast.Call():
            yield from _another_call(node)
        case ast.comprehension(target, over, ifs, is_async):
            for place in range(len(ifs)):
                yield ast.comprehension(target, over, [*ifs[:place], *ifs[place + 1 :]], is_async)
        case ast.Slice(lower, upper, step):
            if lower is not None:
                yield ast.Slice(None, upper, step)
            if upper is not None:
                yield ast.Slice(lower, None, step)
        case ast.match_case(pattern, guard, body) if not isinstance(pattern, ast.MatchAs) and guard is None:
            yield ast.match_case(pattern, ast.Constant(False), body)
        case ast.stmt():
            yield from _another_statement(node)
        case _:
            return


def _another_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.If(_, body, orelse):
            yield ast.If(ast.Constant(True), body, orelse)
            yield ast.If(ast.Constant(False), body, orelse)
        case ast.For(target, over, body, orelse):
            first = ast.parse(f"list({ast.unparse(over)})[:1]", mode="eval").body
            yield ast.copy_location(ast.For(target, first, body, orelse), node)
        case ast.With(_, body):
            yield ast.If(ast.Constant(True), body, [])
        case ast.AugAssign(target, ast.Add(), value):
            yield ast.AugAssign(target, ast.Sub(), value)
            yield ast.Pass()
        case ast.AugAssign(target, ast.Sub(), value):
            yield ast.AugAssign(target, ast.Add(), value)
            yield ast.Pass()
        case ast.Assign([ast.Name()], _):
            return  # what reads the name would only crash
        case _ if isinstance(node, _DROPPED):
            yield ast.Pass()
        case _:
            return


def _another_value(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(str() as value):
            yield ast.Constant("" if value else "x")
        case ast.JoinedStr(values):
            for place, value in enumerate(values):
                if isinstance(value, ast.FormattedValue):
                    yield ast.JoinedStr([*values[:place], *values[place + 1 :]])
        case ast.Name(name, ast.Load()) if name in _STATES:
            place = _STATES.index(name)
            for step in (1, 3):
                yield ast.Name(_STATES[(place + step) % len(_STATES)], ast.Load())
        case ast.Attribute(ast.Name("Answer"), name, _) if name in _ANSWERS:
            for other in ("OK", "ALREADY", "LOST"):
                if other != name:
                    yield ast.Attribute(ast.Name("Answer", ast.Load()), other, ast.Load())
        case ast.List(elements, ast.Load()) | ast.Tuple(elements, ast.Load()) if len(elements) > 1:
            for place in range(len(elements)):
                if isinstance(elements[place], ast.Starred):
                    yield type(node)([*elements[:place], *elements[place + 1 :]], ast.Load())
        case _:
            return


def _another_call(node: ast.Call) -> Iterator[ast.expr]:
    for place in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, [*node.keywords[:place], *node.keywords[place + 1 :]])
    if isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
        yield ast.Call(ast.Name(_SWAPPED[node.func.id], ast.Load()), node.args, node.keywords)
        if node.func.id in {"min", "max"} and len(node.args) > 1:
            yield from (arg for arg in node.args if not isinstance(arg, ast.Starred))


def files() -> list[str]:
    """What is changed: the memory store, and what all stores share."""
    shared = ("store/limits.py", "store/records.py", "store/jumps.py")
    own = sorted(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "store" / "memory").glob("*.py"))
    return [*own, *shared]


def module_of(file: str) -> str:
    parts = Path("pollux", file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
