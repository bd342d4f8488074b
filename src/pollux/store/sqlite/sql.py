"""Statements of this store, from `queries/<verb>.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pollux.store.relational import sql
from pollux.store.relational.rows import encode


class SqliteStatements(sql.StatementFolder):
    """The statements of one file as attributes."""

    def __init__(self, verb: str) -> None:
        super().__init__(__package__, verb)


def ids_json(ids: Sequence[Any]) -> str:
    """For `json_each`; as text, because a blob would be taken for SQLite's own binary form."""
    return encode(ids).decode()
