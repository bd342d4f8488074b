"""Rules of PromQL queries: their form, the metrics they name, and that no version hides another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from pollux.observe.metrics import names
from pollux.observe.metrics_table import FAMILIES, NODE

VERSION = "scheduler_version"
# What a node reads of the version that it serves.  Dead letters are of all, and a job is in one version.
OF_ONE_VERSION = {
    each.full_name("pollux")
    for each in FAMILIES
    if each.scope != NODE and "instance" not in each.labels and each.name != "scheduler_dead_letter_depth"
}


def parsed(text: str) -> Any:
    """As a tree, with a time for each that Grafana would choose; ValueError if it cannot be read."""
    return promql_parser.parse(re.sub(r"\$__(rate_interval|interval)\b", "5m", text))


def bad_query(text: str) -> Iterator[str]:
    """PromQL that cannot be read, or that asks for what nobody tells."""
    try:
        parsed(text)
    except ValueError as error:
        yield f"{text}: {error}"
        return
    asked = set(re.findall(r"\b((?:pollux|process)_[a-z0-9_]+)\b", text))
    if not asked:
        yield f"{text}: it asks for no metric of ours"
    yield from (f"there is no metric {name}" for name in sorted(asked - names()))


def hidden_versions(text: str) -> Iterator[str]:
    """Numbers of one version each, of which a query takes one together: a version that does well would hide another."""
    try:
        found = sorted(_taken_together(parsed(text), by=None))
    except ValueError:
        return  # `bad_query` says so
    yield from (f"{name} is of one version: without {VERSION} another one hides it" for name in found)


def _taken_together(part: Any, by: tuple[str, ...] | None) -> Iterator[str]:
    """Names that stand in an aggregation which keeps no version apart; `by`: the labels that the nearest one keeps."""
    match part:
        case promql_parser.VectorSelector():
            if by is not None and VERSION not in by and part.name in OF_ONE_VERSION:
                yield part.name
        case promql_parser.AggregateExpr():
            kept = part.modifier
            is_by = kept is not None and kept.type == promql_parser.AggModifierType.By
            yield from _taken_together(part.expr, tuple(kept.labels) if is_by else ())
        case promql_parser.BinaryExpr():
            yield from _taken_together(part.lhs, by)
            yield from _taken_together(part.rhs, by)
        case promql_parser.Call():
            for each in part.args:
                yield from _taken_together(each, by)
        case promql_parser.MatrixSelector():
            yield from _taken_together(part.vector_selector, by)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            yield from _taken_together(part.expr, by)
