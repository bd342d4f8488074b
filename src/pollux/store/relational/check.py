"""Checks of a store with tables, record by record: what every store with tables can find wrong with itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pollux.model import Note
from pollux.store.check_report import (
    FOUND_MAX,
    NOTED,
    AuditChainCheck,
    CheckFinding,
    Report,
    check_ends,
    finding,
    noted_findings,
)
from pollux.store.decoding import UNREADABLE
from pollux.store.job_cache import JobCache
from pollux.store.relational.records import dump
from pollux.store.relational.rows import Row, decode_entry
from pollux.store.relational.transaction import Transaction

PAGE = 1_000
Decode = Callable[[Row], Any]


async def check_rules(tx: Transaction, rules: Mapping[str, str]) -> list[CheckFinding]:
    """Statements of `check.sql` by name that find what breaks a rule, and the rule in words."""
    findings: list[CheckFinding] = []
    for rule, what in rules.items():
        findings += finding(rule, what, [str(row[0]) for row in await tx.fetch(f"check.{rule}", FOUND_MAX)])
    return findings


async def check_records(
    tx: Transaction, run_of: Decode, note_of: Callable[[Row], Note], total: int, report: Report
) -> list[CheckFinding]:
    """Every job, run and note can be read, and every line of the audit log follows from the one before."""
    unread, noted = list[str](), list[Note]()
    chain = AuditChainCheck()
    decode: dict[str, Decode] = {"job": JobCache().job, "run": run_of, "note": note_of}
    done, after = 0, None
    while True:
        page = await dump(tx, after, PAGE)
        for kind, row in page.rows:
            if kind == "log":
                chain.follow(row)
            elif kind in decode:
                try:
                    record = decode[kind](row)
                except UNREADABLE as error:
                    unread.append(f"{kind} {row[0]}: {error}")
                else:
                    noted += [record] if kind == "note" and record.key.startswith(NOTED) else []
        done += len(page.rows)
        report("the records", done, total)
        after = page.next
        if after is None:
            found = finding("records", "a record cannot be read", unread)
            return found + noted_findings(noted) + chain.findings()


async def check_feed(tx: Transaction) -> list[CheckFinding]:
    wrong: list[str] = []
    place = (0, 0)
    while page := await tx.fetch("check.feed", *place, PAGE):
        place = page[-1][0], page[-1][1]
        for version, number, ends, body in page:
            try:
                check_ends(decode_entry(body), ends)
            except (msgspec.DecodeError, ValueError) as error:
                wrong.append(f"{number} of version {version}: {error}")
    return finding("feed", "an entry of the feed cannot be read", wrong)
