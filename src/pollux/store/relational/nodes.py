"""Verbs of nodes, terms and versions: beat, nodes, elect, resign, versions."""

from __future__ import annotations

from pollux.model import Counts, Node, NodeSeen, Term, Version
from pollux.store.relational.rows import Row, encode, living
from pollux.store.relational.transaction import JOBS_LOCK, Transaction


async def beat(tx: Transaction, node: Node, ttl_ms: int) -> None:
    if not ttl_ms:
        await tx.fetch("nodes.leave", node.id)
        return
    now_ms = await tx.now()
    row = await tx.fetch_one("nodes.stored", node.id)
    is_known = row is not None and row[2] > now_ms and any(each.does_as(node) for each in living([row]))
    version = node.scheduler_version
    await tx.fetch("nodes.put", node.id, node.seats, now_ms + ttl_ms, encode(node), version, now_ms)
    await tx.use(version)
    if not is_known:
        await tx.fetch("nodes.bury", now_ms)
        tx.add_entry(version, NodeSeen(node.id))


async def nodes(tx: Transaction) -> list[Node]:
    return living(await tx.fetch("nodes.living", tx.given_ms))


async def elect(tx: Transaction, node_id: str, ttl_ms: int) -> Term:
    number, holder, until_ms, length_ms = await _stored_term(tx, tx.version)
    now_ms = await tx.now()  # taken after the lock: a wait for it is no part of a term
    if until_ms > now_ms + length_ms:  # the clock came back: no leader keeps a term longer than it was granted
        until_ms = now_ms + length_ms
        await tx.fetch("nodes.write_term", number, holder, until_ms, length_ms, tx.version)
    is_vacant = not holder or until_ms <= now_ms
    if is_vacant or holder == node_id:
        number, holder, until_ms = number + is_vacant, node_id, now_ms + ttl_ms
        await tx.fetch("nodes.write_term", number, holder, until_ms, ttl_ms, tx.version)
    return Term(number, holder, until_ms, now_ms)


async def resign(tx: Transaction, node_id: str, term: int) -> None:
    number, holder, _, _ = await _stored_term(tx, tx.version)
    if holder == node_id and number == term:
        await tx.fetch("nodes.write_term", number, "", 0, 0, tx.version)


async def is_current(tx: Transaction, term: int) -> bool:
    number, holder, _, _ = await _stored_term(tx, tx.version)
    return number == term and bool(holder)


async def raise_term(tx: Transaction, number: int, version: int) -> bool:
    """The next term of a version gets a higher number; false if it does already."""
    stored = await _stored_term(tx, version)
    if number <= stored[0]:
        return False
    await tx.fetch("nodes.write_term", number, "", 0, 0, version)
    return True


async def _stored_term(tx: Transaction, version: int) -> Row:
    """(number, holder, until_ms, ttl_ms), locked."""
    await tx.ensure(version)
    [row] = await tx.fetch("nodes.term", version)
    return row


async def versions(tx: Transaction) -> list[Version]:
    found = await tx.fetch("versions.all", tx.given_ms)
    return [Version(row[0], Counts(*row[1:8]), row[8], row[9]) for row in found]


async def drop_version(tx: Transaction, number: int) -> int:
    """Forget a version that nothing uses; 1 if it was there.  The number of its term stays: terms only rise."""
    await tx.lock(JOBS_LOCK)
    is_there, is_led = await tx.fetch_one("versions.usage", number, tx.given_ms) or (False, False)
    return int(bool(is_there) and not is_led and await tx.forget_version(number))
