"""Mutants by rule: every small change that fits a source, by a fixed list of kinds.

A comparison turned, an operand or a keyword left out, a statement dropped, another constant, another answer, only the
first of many.  A mutant is told by file, function and change, not by line: it stays true while the file moves.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.sabotage.by_hand import SUBTLE
from tests.sabotage.copy import REPOSITORY, patched

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
_SHARED = re.compile(r"^from pollux\.store\.(\w+) import", re.MULTILINE)
_STATES = ("HELD", "READY", "LEASED", "DONE", "DEAD", "CANCELLED")
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


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
        for patch in SUBTLE[found.mutant.change]:
            text = patched(text, patch)
        return ast.parse(text)
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
    for name, patches in SUBTLE.items():
        if patches[0].file == file:
            yield Found(Mutant(file, "by hand", name), range(0), (), ast.Pass())


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
        change = _change(old, put)
        mutant = Mutant(file, function, change)
        seen[mutant] += 1
        if seen[mutant] > 1:
            mutant = mutant._replace(change=f"{change} #{seen[mutant]}")
        rows.append(Found(mutant, lines, path, put))
    return rows


def _change(old: ast.AST, put: ast.AST) -> str:
    """In words; of what only lost a part, that part alone, so that its neighbours may change."""
    if isinstance(old, ast.BoolOp):
        left = put.values if isinstance(put, ast.BoolOp) else [put]
        lost = [value for value in old.values if value not in left]
        if len(lost) == 1:
            return f"{'and' if isinstance(old.op, ast.And) else 'or'} {_told(lost[0])} -> left out"
    if isinstance(old, ast.Call) and isinstance(put, ast.Call) and len(put.keywords) < len(old.keywords):
        [lost] = [keyword for keyword in old.keywords if keyword not in put.keywords]
        return f"{_told(old.func)}({lost.arg}={_told(lost.value)}) -> left out"
    return f"{_told(old)} -> {_told(put)}"


def _told(node: ast.AST) -> str:
    """The first line of it, with quotes that are the same in every version of Python."""
    return ast.unparse(node).strip().splitlines()[0].replace('"', "'")


Step = tuple[str, range, tuple[tuple[str, int | None], ...], ast.AST, ast.AST]


def _walk(node: ast.AST, function: str, lines: range, path: tuple[tuple[str, int | None], ...]) -> Iterator[Step]:
    """Every node with what could stand in its place."""
    for put in _instead(node):
        yield function, lines, path, node, put
    if isinstance(node, ast.Raise):
        return  # other words in a refusal are no mistake of the store
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
        return inner, range(0) if isinstance(node, ast.ClassDef) else range(node.lineno, node.lineno + 1)
    if lines and isinstance(node, ast.stmt):
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
    """What could stand there by mistake."""
    rule = _RULES.get(type(node))
    if rule is not None:
        yield from rule(node)


def _compare(node: ast.Compare) -> Iterator[ast.AST]:
    for place, op in enumerate(node.ops):
        for turned in _TURNED[type(op)]:
            yield ast.Compare(node.left, _with(node.ops, place, turned()), node.comparators)


def _bool_op(node: ast.BoolOp) -> Iterator[ast.AST]:
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    for place in range(len(node.values)):
        rest = _without(node.values, place)
        yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)


def _unary_op(node: ast.UnaryOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Not):
        yield node.operand


def _if_exp(node: ast.IfExp) -> Iterator[ast.AST]:
    yield node.body
    yield node.orelse


def _bin_op(node: ast.BinOp) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
        yield node.left
        yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)


def _constant(node: ast.Constant) -> Iterator[ast.AST]:
    match node.value:
        case bool(value):
            yield ast.Constant(not value)
        case int(value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case str(value):
            yield ast.Constant("" if value else "x")


def _joined_str(node: ast.JoinedStr) -> Iterator[ast.AST]:
    for place, value in enumerate(node.values):
        if isinstance(value, ast.FormattedValue):
            yield ast.JoinedStr(_without(node.values, place))


def _name(node: ast.Name) -> Iterator[ast.AST]:
    if node.id in _STATES and isinstance(node.ctx, ast.Load):
        place = _STATES.index(node.id)
        for step in (1, 3):
            yield ast.Name(_STATES[(place + step) % len(_STATES)], ast.Load())


def _attribute(node: ast.Attribute) -> Iterator[ast.AST]:
    if isinstance(node.value, ast.Name) and node.value.id == "Answer":
        for other in ("OK", "ALREADY", "LOST"):
            if other != node.attr:
                yield ast.Attribute(node.value, other, ast.Load())


def _list(node: ast.List | ast.Tuple) -> Iterator[ast.AST]:
    for place, element in enumerate(node.elts):
        if isinstance(element, ast.Starred) and len(node.elts) > 1:
            yield type(node)(_without(node.elts, place), ast.Load())


def _call(node: ast.Call) -> Iterator[ast.AST]:
    for place in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, _without(node.keywords, place))
    if isinstance(node.func, ast.Name) and node.func.id in _SWAPPED:
        yield ast.Call(ast.Name(_SWAPPED[node.func.id], ast.Load()), node.args, node.keywords)
        if node.func.id in {"min", "max"} and len(node.args) > 1:
            yield from (arg for arg in node.args if not isinstance(arg, ast.Starred))


def _comprehension(node: ast.comprehension) -> Iterator[ast.AST]:
    for place in range(len(node.ifs)):
        yield ast.comprehension(node.target, node.iter, _without(node.ifs, place), node.is_async)


def _slice(node: ast.Slice) -> Iterator[ast.AST]:
    if node.lower is not None:
        yield ast.Slice(None, node.upper, node.step)
    if node.upper is not None:
        yield ast.Slice(node.lower, None, node.step)


def _match_case(node: ast.match_case) -> Iterator[ast.AST]:
    if not isinstance(node.pattern, ast.MatchAs) and node.guard is None:
        yield ast.match_case(node.pattern, ast.Constant(False), node.body)


def _if(node: ast.If) -> Iterator[ast.AST]:
    yield ast.If(ast.Constant(True), node.body, node.orelse)
    yield ast.If(ast.Constant(False), node.body, node.orelse)


def _for(node: ast.For) -> Iterator[ast.AST]:
    first = ast.parse(f"list({ast.unparse(node.iter)})[:1]", mode="eval").body
    yield ast.copy_location(ast.For(node.target, first, node.body, node.orelse), node)


def _with_block(node: ast.With) -> Iterator[ast.AST]:
    yield ast.If(ast.Constant(True), node.body, [])


def _aug_assign(node: ast.AugAssign) -> Iterator[ast.AST]:
    if isinstance(node.op, ast.Add | ast.Sub):
        yield ast.AugAssign(node.target, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.value)
    yield ast.Pass()


def _assign(node: ast.Assign) -> Iterator[ast.AST]:
    if len(node.targets) > 1 or not isinstance(node.targets[0], ast.Name):  # what reads a missing name only crashes
        yield ast.Pass()


def _dropped(_: ast.stmt) -> Iterator[ast.AST]:
    yield ast.Pass()


_RULES: dict[type[ast.AST], Callable[[Any], Iterator[ast.AST]]] = {
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary_op,
    ast.IfExp: _if_exp,
    ast.BinOp: _bin_op,
    ast.Constant: _constant,
    ast.JoinedStr: _joined_str,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.List: _list,
    ast.Tuple: _list,
    ast.Call: _call,
    ast.comprehension: _comprehension,
    ast.Slice: _slice,
    ast.match_case: _match_case,
    ast.If: _if,
    ast.For: _for,
    ast.With: _with_block,
    ast.AugAssign: _aug_assign,
    ast.Assign: _assign,
    ast.Expr: _dropped,
    ast.Delete: _dropped,
    ast.Raise: _dropped,
    ast.Continue: _dropped,
    ast.Break: _dropped,
}


def _without(items: list[Any], place: int) -> list[Any]:
    return [*items[:place], *items[place + 1 :]]


def _with(items: list[Any], place: int, item: object) -> list[Any]:
    return [*items[:place], item, *items[place + 1 :]]


def files() -> list[str]:
    """What is changed: the memory store, and what it shares with other stores; the contract is only words and types."""
    own = sorted((SOURCE / "store" / "memory").glob("*.py"))
    shared = sorted({name for path in own for name in _SHARED.findall(path.read_text())} - {"contract", "memory"})
    return [*(path.relative_to(SOURCE).as_posix() for path in own), *(f"store/{name}.py" for name in shared)]


def module_of(file: str) -> str:
    parts = Path("pollux", file).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
