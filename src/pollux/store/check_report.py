"""The report of `check`, its findings and the rules that are the same for every store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from pollux.errors import StoreError
from pollux.model import LEADER_NOTES, AuditLine, Ended, Entry, Note, chained, unreadable_notes
from pollux.model.leader_notes import FEED, JOBS, SCHEDULES
from pollux.store.move_marks import MARKS, read_marks
from pollux.units import format_moment

NOTED = (LEADER_NOTES, MARKS)  # what notes begin with that tell of what is not in order
ENTRIES_ASIDE = f"{LEADER_NOTES}{FEED}:"  # what the notes begin with that a repair forgets: somebody has seen them
SHOWN_MAX = 5
FOUND_MAX = 1_000  # of one rule: beyond that it is "at least"

Report = Callable[[str, int, int], None]  # what is looked at, how far, of how many (0: unknown)


class CheckFinding(Struct, frozen=True):
    """One rule that does not hold, with the first few that break it."""

    rule: str
    what: str
    count: int
    shown: tuple[str, ...]
    can_repair: bool = False


class CheckReport(Struct, frozen=True):
    """What was looked at, and what is wrong with it."""

    path: str  # of the file, or the name of the server and what is ours on it
    schema: int
    runs: int
    jobs: int
    notes: int
    log: int
    findings: tuple[CheckFinding, ...]


def check_ends(entry: Entry, told: int) -> None:
    """Raise `ValueError` unless an entry of the feed holds as many ends as the number beside it tells."""
    found = len(entry.ends) if isinstance(entry, Ended) else 0
    if found != told:
        raise ValueError(f"{told} ends are told, {found} are in it")


def finding(rule: str, what: str, found: Sequence[str], *, can_repair: bool = False) -> list[CheckFinding]:
    """Nothing if nothing was found."""
    return [CheckFinding(rule, what, len(found), tuple(found[:SHOWN_MAX]), can_repair)] if found else []


def noted_findings(notes: Sequence[Note]) -> list[CheckFinding]:
    """What notes say of a store that is not in order."""
    return _filled(notes) + _aside([note for note in notes if note.key.startswith(LEADER_NOTES)])


def _filled(notes: Sequence[Note]) -> list[CheckFinding]:
    """A move has brought a part of what is to come."""
    what = "a move fills this store, and it holds only a part"
    try:
        origin = read_marks([note for note in notes if note.key.startswith(MARKS)]).origin
    except StoreError as error:
        return finding("move", what, [str(error)])
    if origin is None or origin.is_over:
        return []
    return finding("move", what, [f"from {origin.other}, since {format_moment(origin.began_ms)}: run that move again"])


def _aside(notes: Iterable[Note]) -> list[CheckFinding]:
    """What the leader could not read, as it told it itself; entries of the feed as they stood there."""
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
    """The audit log: numbered without a gap, each line with the hash over it and all before.

    The first line that is there is believed: older ones are pruned.
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
