"""The verbs of nodes and terms: beat, nodes, leave, elect, resign."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import Node, NodeSeen, Term
from pollux.store.relational.rows import Row, encode, living
from pollux.store.sqlite.sql import SqliteStatements
from pollux.store.sqlite.transaction import SqliteTransaction

_beat = SqliteStatements("beat")
_nodes = SqliteStatements("nodes")
_elect = SqliteStatements("elect")
_versions = SqliteStatements("versions")


def beat(tx: SqliteTransaction, node: Node, ttl_ms: int, now_ms: int) -> None:
    row = tx.row(_beat.stored, (node.id,))
    is_known = row is not None and row[1] > now_ms and any(each.does_as(node) for each in living([row]))
    body = encode(replace(node, beat_ms=now_ms))
    tx.write(_beat.put, (node.id, node.seats, now_ms + ttl_ms, body, node.scheduler_version))
    tx.counters_of(node.scheduler_version)
    tx.write(_versions.use, (node.scheduler_version,))
    if not is_known:
        tx.write(_beat.bury, (now_ms,))
        tx.tell(node.scheduler_version, NodeSeen(node.id))


def nodes(tx: SqliteTransaction, now_ms: int) -> list[Row]:
    return tx.rows(_nodes.living, (now_ms,))


def seats(tx: SqliteTransaction, now_ms: int) -> int:
    """Of the living nodes that serve our version."""
    row = tx.row(_nodes.seats, (now_ms, tx.version))
    assert row is not None
    return int(row[0])


def leave(tx: SqliteTransaction, node_id: str) -> None:
    tx.write(_nodes.leave, (node_id,))


def elect(tx: SqliteTransaction, node_id: str, ttl_ms: int, now_ms: int) -> Term:
    renewed = tx.row(_elect.renew, (now_ms, ttl_ms, node_id, tx.version))
    if renewed is not None:
        return Term(renewed[0], node_id, now_ms + ttl_ms, now_ms)
    number, holder, until_ms, length_ms = _stands(tx)
    if until_ms > now_ms + length_ms:  # the clock came back: nobody leads longer than it was promised
        until_ms = now_ms + length_ms
        tx.write(_elect.write, (number, holder, until_ms, length_ms, tx.version))
    is_vacant = not holder or until_ms <= now_ms
    if is_vacant or holder == node_id:
        number, holder, until_ms = number + is_vacant, node_id, now_ms + ttl_ms
        tx.write(_elect.write, (number, holder, until_ms, ttl_ms, tx.version))
    return Term(number, holder, until_ms, now_ms)


def resign(tx: SqliteTransaction, node_id: str, term: int) -> None:
    number, holder, _, _ = _stands(tx)
    if holder == node_id and number == term:
        tx.write(_elect.write, (number, "", 0, 0, tx.version))


def is_current(tx: SqliteTransaction, term: int) -> bool:
    number, holder, _, _ = _stands(tx)
    return number == term and bool(holder)


def _stands(tx: SqliteTransaction) -> tuple[int, str, int, int]:
    tx.counters_of(tx.version)  # a version that nobody used before gets its term with its counts
    row = tx.row(_elect.stands, (tx.version,))
    assert row is not None
    return row
