"""Verbs of nodes and terms: beat, nodes, elect, resign."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from pollux.model import Node, NodeSeen, Term
from pollux.store.decoding import UNREADABLE
from pollux.store.postgres.sql import PostgresStatements
from pollux.store.postgres.transaction import PostgresTransaction
from pollux.store.postgres.wakeup import Pulse
from pollux.store.relational.rows import encode, living
from pollux.store.relational.rows import node as node_of

_sql = PostgresStatements("nodes")
_finish = PostgresStatements("finish")
_versions = PostgresStatements("versions")


async def beat_again(tx: PostgresTransaction, node: Node, ttl_ms: int) -> bool:
    """Of a node that is known to do the same as before: true if it was still there.

    It also gathers the counts that users' transactions left, so that they stay few.
    """
    row = await tx.row(_sql.again, node.id, node.seats, ttl_ms, encode(node), tx.given_ms, node.scheduler_version)
    if row is not None and row[0]:
        await tx.rows(_finish.gather)
    return row is not None


async def beat(tx: PostgresTransaction, node: Node, ttl_ms: int) -> None:
    if not ttl_ms:
        await tx.rows(_sql.leave, node.id)
        return
    now_ms = await tx.now()
    row = await tx.row(_sql.stored, node.id)
    is_known = row is not None and row[1] > now_ms and any(each.does_as(node) for each in living([row]))
    await tx.rows(_sql.put, node.id, node.seats, now_ms + ttl_ms, encode(node), node.scheduler_version, now_ms)
    if not is_known:
        await tx.rows(_sql.bury, now_ms)
        tx.tell(node.scheduler_version, NodeSeen(node.id))
    await tx.rows(_finish.gather)


async def nodes(tx: PostgresTransaction) -> list[Node]:
    """The living; what somebody else wrote there is none."""
    found = []
    for row in await tx.rows(_sql.living, tx.given_ms):
        with suppress(*UNREADABLE):
            found.append(replace(node_of(row), beat_ms=row[1]))
    return found


async def go_on(tx: PostgresTransaction, node_id: str, ttl_ms: int) -> tuple[Term, Pulse] | None:
    """What nearly every election is, in one statement: the holder renews its term, or somebody else's lasts.

    Who stands by asks so often that nobody need take the pulse besides.
    """
    row = await tx.row(_sql.go_on, tx.given_ms, ttl_ms, node_id, tx.version)
    return None if row is None else (Term(*row[:4]), (row[4], row[5]))


async def elect(tx: PostgresTransaction, node_id: str, ttl_ms: int) -> Term:
    number, holder, until_ms, length_ms = await tx.one(_sql.stands, tx.version)
    now_ms = await tx.now()  # asked only after the lock: nobody is elected by a time from before the wait
    if until_ms > now_ms + length_ms:  # the clock came back: nobody leads longer than it was promised
        until_ms = now_ms + length_ms
        await tx.rows(_sql.write, number, holder, until_ms, length_ms, tx.version)
    is_vacant = not holder or until_ms <= now_ms
    if is_vacant or holder == node_id:
        number, holder, until_ms = number + is_vacant, node_id, now_ms + ttl_ms
        await tx.rows(_sql.write, number, holder, until_ms, ttl_ms, tx.version)
    return Term(number, holder, until_ms, now_ms)


async def resign(tx: PostgresTransaction, node_id: str, term: int) -> None:
    number, holder, _, _ = await tx.one(_sql.stands, tx.version)
    if holder == node_id and number == term:
        await tx.rows(_sql.write, number, "", 0, 0, tx.version)
