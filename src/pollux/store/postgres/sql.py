"""Statements of this store, from `queries/<verb>.sql`."""

from __future__ import annotations

from pollux.store.relational import sql


class PostgresStatements(sql.StatementFolder):
    """The statements of one file as attributes."""

    def __init__(self, verb: str) -> None:
        super().__init__(__package__, verb)
