"""Verbs of nodes, terms and versions: beat, nodes, elect, resign, versions."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.model import Counts, Node, NodeSeen, Term, Version
from pollux.store.relational.rows import encode, living
from pollux.store.sqlite.transaction import SqliteStatements, SqliteTransaction, feed_numbers

_beat = SqliteStatements("beat")
_nodes = SqliteStatements("nodes")
_elect = SqliteStatements("elect")
_versions = SqliteStatements("versions")


def beat(tx: SqliteTransaction, node: Node, ttl_ms: int, now_ms: int) -> None:
    if not ttl_ms:
        tx.write(_nodes.leave, (node.id,))
        return
    row = tx.row(_beat.stored, (node.id,))
    is_known = row is not None and row[1] > now_ms and any(each.does_as(node) for each in living([row]))
    body = encode(replace(node, beat_ms=now_ms))
    tx.write(_beat.put, (node.id, node.seats, now_ms + ttl_ms, body, node.scheduler_version))
    tx.counters_of(node.scheduler_version)
    tx.write(_versions.use, (node.scheduler_version,))
    if not is_known:
        tx.write(_beat.bury, (now_ms,))
        tx.add_entry(node.scheduler_version, NodeSeen(node.id))


def nodes(tx: SqliteTransaction, now_ms: int) -> list[Node]:
    return living(tx.rows(_nodes.living, (now_ms,)))


def seats(tx: SqliteTransaction, now_ms: int) -> int:
    """Of the living nodes that serve this version."""
    row = tx.row(_nodes.seats, (now_ms, tx.version))
    assert row is not None
    return int(row[0])


def elect(tx: SqliteTransaction, node_id: str, ttl_ms: int, now_ms: int) -> Term:
    renewed = tx.row(_elect.renew, (now_ms, ttl_ms, node_id, tx.version))
    if renewed is not None:
        return Term(renewed[0], node_id, now_ms + ttl_ms, now_ms)
    number, holder, until_ms, length_ms = _current_term(tx)
    if until_ms > now_ms + length_ms:  # the clock came back: no leader keeps a term longer than it was granted
        until_ms = now_ms + length_ms
        tx.write(_elect.write, (number, holder, until_ms, length_ms, tx.version))
    is_vacant = not holder or until_ms <= now_ms
    if is_vacant or holder == node_id:
        number, holder, until_ms = number + is_vacant, node_id, now_ms + ttl_ms
        tx.write(_elect.write, (number, holder, until_ms, ttl_ms, tx.version))
    return Term(number, holder, until_ms, now_ms)


def resign(tx: SqliteTransaction, node_id: str, term: int) -> None:
    number, holder, _, _ = _current_term(tx)
    if holder == node_id and number == term:
        tx.write(_elect.write, (number, "", 0, 0, tx.version))


def is_current(tx: SqliteTransaction, term: int) -> bool:
    number, holder, _, _ = _current_term(tx)
    return number == term and bool(holder)


def _current_term(tx: SqliteTransaction) -> tuple[int, str, int, int]:
    tx.counters_of(tx.version)  # a version that was never used gets its term with its counts
    row = tx.row(_elect.current, (tx.version,))
    assert row is not None
    return row


def versions(tx: SqliteTransaction, now_ms: int) -> list[Version]:
    found = tx.rows(_versions.all, (now_ms,))
    return [Version(row[0], Counts(*row[1:8]), row[8], row[9]) for row in found]


def drop_version(tx: SqliteTransaction, number: int, now_ms: int) -> int:
    """Forget a version that nothing uses; 1 if it was there.  The number of its term stays: terms only rise."""
    is_there, is_led = tx.row(_versions.usage, (number, now_ms)) or (0, 0)
    if not is_there or is_led:
        return 0
    counters = tx.counters_of(number)
    if counters.jobs or counters.held or counters.ready or counters.leased:
        return 0
    tx.write(_versions.unread, feed_numbers(number))
    tx.write(_versions.drop, (number,))
    counters.feed = counters.ends = 0
    return 1
