"""Report of `check`, its findings, and the rules that are the same for every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pollux.errors import StoreError
from pollux.model import LEADER_NOTES, AuditLine, Ended, Entry, Note, chained, unreadable_notes
from pollux.model.leader_notes import FEED, JOBS, SCHEDULES
from pollux.store.move_marks import MARKS, read_marks
from pollux.units import format_moment

NOTED = (LEADER_NOTES, MARKS)  # prefixes of notes that report problems
ENTRIES_ASIDE = f"{LEADER_NOTES}{FEED}:"  # prefix of the notes that a repair deletes
SHOWN_MAX = 5
FOUND_MAX = 1_000  # of one rule: beyond that it is "at least"

Report = Callable[[str, int, int], None]  # progress: what is checked, how many so far, of how many (0: unknown)


class CheckFinding(Struct, frozen=True):
    """A violated rule, with the first few violations."""

    rule: str
    what: str
    count: int
    shown: tuple[str, ...]
    can_repair: bool = False


class CheckReport(Struct, frozen=True):
    """What was checked, and the violated rules."""

    path: str  # the file, or the server with the prefix or schema of the store
    schema: int
    runs: int
    jobs: int
    notes: int
    log: int
    findings: tuple[CheckFinding, ...]


def check_ends(entry: Entry, stored: int) -> None:
    """Raise `ValueError` unless a feed entry has as many ends as are stored with it."""
    found = len(entry.ends) if isinstance(entry, Ended) else 0
    if found != stored:
        raise ValueError(f"{stored} ends are told, {found} are in it")


def finding(rule: str, what: str, found: Sequence[str], *, can_repair: bool = False) -> list[CheckFinding]:
    """One finding, or none if nothing was found."""
    return [CheckFinding(rule, what, len(found), tuple(found[:SHOWN_MAX]), can_repair)] if found else []


def noted_findings(notes: Sequence[Note]) -> list[CheckFinding]:
    """Findings from the notes of a move and of the leader."""
    return _filled(notes) + _unreadable([note for note in notes if note.key.startswith(LEADER_NOTES)])


def _filled(notes: Sequence[Note]) -> list[CheckFinding]:
    """Finding for a store that a move has filled only partly."""
    what = "a move fills this store, and it holds only a part"
    try:
        origin = read_marks([note for note in notes if note.key.startswith(MARKS)]).origin
    except StoreError as error:
        return finding("move", what, [str(error)])
    if origin is None or origin.is_over:
        return []
    return finding("move", what, [f"from {origin.other}, since {format_moment(origin.began_ms)}: run that move again"])


def _unreadable(notes: Iterable[Note]) -> list[CheckFinding]:
    """Jobs and feed entries that the leader could not read, from its own notes; entries with their raw text."""
    jobs, entries = list[str](), list[str]()
    for each in [each for each in unreadable_notes(notes) if each.kind != SCHEDULES]:
        for name, why in each.named.items():
            text = each.texts.get(name, "")
            line = f"{name} of version {each.version}: {why}" + (f": {text}" if text else "")
            (jobs if each.kind == JOBS else entries).append(line)
    found = finding("unplanned", "the leader cannot read a job, and leaves it alone", jobs)
    what = "an entry of the feed could not be read, and was skipped: it is shown for a week"
    return found + finding("aside", what, entries, can_repair=True)


class AuditChainCheck:
    """Check of the audit log: numbers without a gap, and in each line the hash over it and all lines before.

    The first line is trusted, because older ones are pruned.
    """

    def __init__(self) -> None:
        self._seq, self._chain = 0, ""
        self._wrong: list[str] = []

    def follow(self, line: AuditLine) -> None:
        if self._seq == 0 and line.seq > 1:
            pass
        elif line.seq != self._seq + 1:
            self._wrong.append(f"line {line.seq} follows line {self._seq}")
        elif chained(line, before=self._chain) != line.chain:
            self._wrong.append(f"line {line.seq} was changed after it was written")
        self._seq, self._chain = line.seq, line.chain

    def findings(self) -> list[CheckFinding]:
        return finding("audit", "the audit log was changed or cut", self._wrong)
