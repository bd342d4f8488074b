"""Who changed what, and is that all of it?  Reading the audit log, and walking its chain of hashes.

A line carries the hash over itself and the line before, so one that is edited, taken out or moved breaks the chain
where it stood.  Old lines are pruned from the beginning: the first one that is left is believed.  Whoever cuts lines
off the *end* leaves a whole chain; against that helps a mark (number and hash of the last line) kept somewhere else.
"""

from __future__ import annotations

import re

from msgspec import Struct

from pollux.errors import InvalidInput
from pollux.model import AuditLine
from pollux.store.check_report import AuditChainCheck
from pollux.store.contract import PAGE_MAX, LogPage, Store

_MARK = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


class AuditVerdict(Struct, frozen=True):
    """What the walk found."""

    lines: int
    first: int  # the number of the oldest line that is left; 0: there is none
    last: int
    mark: str  # of the last line, `number:hash`: keep it elsewhere, and show it to a later walk
    broken: str = ""  # the first thing that is wrong, in words

    @property
    def is_whole(self) -> bool:
        return not self.broken


class AuditVerbs:
    """What can be asked about the audit log."""

    _store: Store

    async def audit(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        """Who changed what: lines after a number, or (`newest`) the last ones, those before `after` if it is given."""
        return await self._store.read_log(after=after, limit=limit, newest=newest)

    async def verify_audit(self, *, mark: str = "") -> AuditVerdict:
        """Walk the whole log; `mark` is what an earlier walk answered, and must still be part of it."""
        number, chain_then = _read(mark)
        chain, first, last, count, broken = AuditChainCheck(), 0, AuditLine(0, "", "", ""), 0, ""
        after: int | None = 0
        while after is not None and not broken:
            page = await self._store.read_log(after=after, limit=PAGE_MAX)
            for line in page.lines:
                chain.follow(line)
                first, last, count = first or line.seq, line, count + 1
                if line.seq == number and line.chain != chain_then:
                    broken = broken or f"line {line.seq} is not the one that the mark was made of"
            if found := chain.findings():
                broken = found[0].shown[0]
            after = page.next
        if not broken and last.seq < number:
            broken = f"the log ends at line {last.seq}, but the mark is of line {number}: its end was cut off"
        return AuditVerdict(count, first, last.seq, f"{last.seq}:{last.chain}" if count else "", broken)


def _read(mark: str) -> tuple[int, str]:
    if not mark:
        return 0, ""
    found = _MARK.fullmatch(mark)
    if found is None:
        raise InvalidInput("this is no mark", where="mark", cure="give what an earlier `pollux audit verify` printed")
    return int(found[1]), found[2]
