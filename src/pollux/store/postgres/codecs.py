"""Codecs of the array types that the statements use, registered without asking the server.

The driver knows few of them and asks the server for the others: on every new connection a long query over the
catalogue, and around it a setting of the session (`jit`).  A pooler in transaction mode sends the three to different
sessions: one keeps the setting, and another compiles the query for seconds.  What PostgreSQL itself brings has the
same numbers on every server, so no query is needed.
"""

from __future__ import annotations

from typing import Any

from asyncpg import Connection

# the array's number and name, and the number of its elements' type
_ARRAYS = (
    (1000, "_bool", 16),
    (1001, "_bytea", 17),
    (1005, "_int2", 21),
    (1007, "_int4", 23),
    (1016, "_int8", 20),
    (1231, "_numeric", 1700),
)
_ABOUT: tuple[dict[str, Any], ...] = tuple(
    {
        "oid": number,
        "ns": "pg_catalog",
        "name": name,
        "kind": b"b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
    }
    for number, name, element in _ARRAYS
)


def teach(connection: Connection) -> None:
    """As if it had asked."""
    connection._protocol.get_settings().register_data_types(_ABOUT)  # noqa: SLF001  it has no other way to it
