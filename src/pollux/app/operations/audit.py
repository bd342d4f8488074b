"""Audit log: the lines of changes and their wording, reading and verifying.

A line carries the hash over itself and the line before, so one that is edited, removed or moved breaks the chain at
its place.  Old lines are pruned from the beginning: the first line left is trusted.  Cutting lines off the *end* leaves
an intact chain; a mark (number and hash of the last line) kept elsewhere detects that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.clock import Clock
from pollux.errors import InvalidInput, StoreError
from pollux.model import AuditLine, Job, definition
from pollux.observe.logs import warn_unrecorded
from pollux.schedule.builders import describe_schedule
from pollux.secrets import HIDDEN, hide
from pollux.store.check_report import AuditChainCheck
from pollux.store.contract import BATCH_MAX, PAGE_MAX, Answer, Audit, JobAnswer, JobPut, LogPage, RunFilter, Store
from pollux.store.decoding import readable_part
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app.operations.contract import Operations

_MARK = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")
DESCRIBED_MAX = 20  # jobs of one call whose change is described; of more only their number and the first names
NAMED_MAX = 5  # runs of one call that are named
VALUE_CHARS_MAX = 80
WORDS_CHARS_MAX = 1_000
_OMITTED = {"id", "source", "release", "declared", "schedule"}


class AuditRecorder:
    """Lines for the changes of one actor, written with the change itself: only what was changed is recorded."""

    def __init__(self, store: Store, clock: Clock, actor: str, *, is_named: bool) -> None:
        self._store, self._clock, self._actor = store, clock, actor
        self._is_named = is_named  # enqueues of a named actor are recorded, those of a program are not

    def line(self, action: str, what: str, how: str = "") -> AuditLine:
        return AuditLine(self._clock.now_ms(), self._actor, action, as_words(what)[:200], as_words(how))

    def on_record(self, action: str, what: str, how: str = "") -> Audit:
        """One line, if anything was done."""
        return Audit((self.line(action, what, how),))

    def first_on_record(self, action: str, what: str, how: str = "") -> Audit:
        """One line, if the first item was done; the others only clean up."""
        return Audit((self.line(action, what, how),), each=True)

    def jobs_on_record(self, action: str, ids: Sequence[str], how: str = "", *, ahead: str = "") -> Audit:
        """One line for jobs of a call: `how`, or their names after a prefix."""
        subject = ids[0] if len(ids) == 1 else counted(len(ids), "job")
        return self.on_record(action, subject, how or ahead + _listed(ids))

    def runs_on_record(self, action: str, subject: str, ids: Sequence[str] = (), reason: str = "") -> Audit:
        """One line for runs of a call: their names, if they are known, and the reason."""
        names = _named(ids).removeprefix(f"{subject}: ") if ids and list(ids) != [subject] else ""
        return self.on_record(action, subject, _joined(names, reason))

    async def put_on_record(self, store: Store, puts: Sequence[JobPut]) -> list[JobAnswer]:
        before = {} if len(puts) > DESCRIBED_MAX else await self._before(puts)
        answers: list[JobAnswer] = []
        for start in range(0, len(puts), BATCH_MAX):
            batch = puts[start : start + BATCH_MAX]
            answers += await store.put_jobs(batch, audit=self.puts_on_record(batch, before))
        return answers

    def puts_on_record(self, puts: Sequence[JobPut], before: Mapping[str, Job | None]) -> Audit:
        """A line for each with its changes; for many jobs one line with the first names.

        A stored job that could not be read is described as it is `now`.
        """
        if len(puts) > DESCRIBED_MAX:
            return self.jobs_on_record("put", [put.job.id for put in puts])
        now_ms, lines = self._clock.now_ms(), []
        for job in (put.job for put in puts):
            words = change_words(before[job.id], job) if job.id in before else _as_it_is("now", job)
            lines.append(AuditLine(now_ms, self._actor, "put", job.id, as_words(words)))  # an id needs no redaction
        return Audit(tuple(lines), each=True)

    async def _before(self, puts: Sequence[JobPut]) -> dict[str, Job | None]:
        """The readable stored jobs that a put may replace; None for one that does not exist."""
        ids = [put.job.id for put in puts if put.revision != 0]
        found, unreadable = await readable_part(self._store.get_jobs(ids)) if ids else ([], ())
        there = dict.fromkeys([put.job.id for put in puts]) | dict(zip(ids, found, strict=True))
        return {job_id: there[job_id] for job_id in there.keys() - {each.name for each in unreadable}}

    async def record_enqueued(
        self, jobs: Collection[str], runs: Sequence[str], params: Mapping[str, Any] | None = None
    ) -> None:
        """One line for enqueued runs: the params of a single one, the number and first names of many.

        It is written after them, as the fast enqueue takes no audit line.  The runs are accepted by then: a line that
        cannot be written is logged, and is no error.
        """
        if not self._is_named or not runs:
            return
        subject = next(iter(jobs)) if len(jobs) == 1 else counted(len(jobs), "job")
        shown = [f"params.{name} {_short(value)}" for name, value in HIDDEN.hide_in(dict(params or {})).items()]
        line = self.line("enqueue", subject, _joined(_named(runs), *shown))
        try:
            await self._store.log([line])
        except StoreError as error:
            warn_unrecorded(f"{line.action} {line.subject} by {line.actor} ({line.detail})", str(error))

    async def record(self, action: str, what: str, how: str = "") -> None:
        """A line of its own, for what no single write has done."""
        await self._store.log([self.line(action, what, how)])

    async def record_loaded(self, records: Sequence[tuple[str, Any]], new: int) -> None:
        """A line for records loaded from a dump; none while the log is empty, as that of the dump is loaded, too."""
        kinds = Counter(kind for kind, _ in records)
        if not new or kinds["log"] or not (await self._store.read_log(limit=1)).lines:
            return
        ids = [str(data.get("id") or data.get("key") or "") for _, data in records if isinstance(data, dict)]
        many = ", ".join(counted(count, kind) for kind, count in kinds.items())
        names = ", ".join([*filter(None, ids[:NAMED_MAX]), *(["..."] if len(ids) > NAMED_MAX else [])])
        await self.record("load", counted(new, "record"), f"new of {many}: {names}")


class AuditVerdict(Struct, frozen=True):
    """Result of `verify_audit`."""

    lines: int
    first: int  # the number of the oldest line that is left; 0: there is none
    last: int
    mark: str  # of the last line, `number:hash`: keep it elsewhere, and pass it to a later check
    broken: str = ""  # the first error

    @property
    def is_whole(self) -> bool:
        return not self.broken


class AuditOperations:
    """Reading and verifying the audit log."""

    def __init__(self, operations: Operations) -> None:
        self._store = operations.context.store

    async def list_audit(self, *, after: int = 0, limit: int = 100, newest: bool = False) -> LogPage:
        """Lines after a number; `newest`: the last ones, or those before `after`."""
        return await self._store.read_log(after=after, limit=limit, newest=newest)

    async def verify_audit(self, *, mark: str = "") -> AuditVerdict:
        """Check the whole log; `mark` is the result of an earlier check, and must still be part of the log."""
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


class OnceLine:
    """A line for the first of several writes that changes anything."""

    def __init__(self, line: AuditLine) -> None:
        self.line = line
        self.is_written = False

    @property
    def audit(self) -> Audit | None:
        """For the next write."""
        return None if self.is_written else Audit((self.line,))

    def heard(self, answers: Sequence[Answer | JobAnswer]) -> None:
        """Record the answers of a write that had the line."""
        done = ((each if isinstance(each, Answer) else each.answer) is Answer.OK for each in answers)
        self.is_written = self.is_written or any(done)


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _listed(ids: Sequence[str], most: int = DESCRIBED_MAX) -> str:
    return f"{', '.join(ids[:most])}{', ...' if len(ids) > most else ''}"


def _named(ids: Sequence[str]) -> str:
    """`run a`; `1,000 runs: a, b, c, d, e, ...`"""
    return f"run {ids[0]}" if len(ids) == 1 else f"{counted(len(ids), 'run')}: {_listed(ids, NAMED_MAX)}"


def filter_words(where: RunFilter) -> str:
    """`by job_id home, error refused`; `by all` for an empty filter."""
    fields = {name: value for name, value in msgspec.structs.asdict(where).items() if value not in (None, ())}
    fields.pop("states", None)
    return "by " + (", ".join(f"{name} {_short(value)}" for name, value in fields.items()) or "all")


def as_words(text: str) -> str:
    """The text without secrets, of limited length, and of valid characters.

    The hash of a line separates its parts by the unit separator, so the text has none.
    """
    text = hide(str(text))[:WORDS_CHARS_MAX].replace("\x1f", " ")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def change_words(before: Job | None, after: Job | None) -> str:
    """`new: http, every 30s, params.url https://...`; `every 30s -> every 1m; enabled true -> false`; `was: ...`"""
    if before is None or after is None:
        job = before or after
        if job is None:
            return ""
        return _as_it_is("new" if before is None else "was", job)
    return "; ".join(_steps(before, after))


def _as_it_is(word: str, job: Job) -> str:
    return "; ".join(
        [f"{word}: {describe_schedule(job.schedule)}", *(f"{name} {value}" for name, value in _fields(job).items())]
    )


def _steps(before: Job, after: Job) -> Iterator[str]:
    if before.schedule != after.schedule:
        yield f"{describe_schedule(before.schedule)} -> {describe_schedule(after.schedule)}"
    was, now = _fields(before), _fields(after)
    for name in dict.fromkeys((*was, *now)):
        if was.get(name) != now.get(name):
            yield f"{name} {was.get(name, '(usual)')} -> {now.get(name, '(usual)')}"


def _fields(job: Job) -> dict[str, str]:
    """The definition without defaults, each value short and without secrets; params one by one."""
    plain = msgspec.to_builtins(definition(job))  # defaults are omitted
    params: dict[str, Any] = HIDDEN.hide_in(plain.pop("params", {}))
    fields = {name: value for name, value in plain.items() if name not in _OMITTED}
    fields |= {f"params.{name}": value for name, value in params.items()}
    return {name: _short(value) for name, value in fields.items()}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."


def _read(mark: str) -> tuple[int, str]:
    if not mark:
        return 0, ""
    found = _MARK.fullmatch(mark)
    if found is None:
        raise InvalidInput("invalid mark", where="mark", cure="give the one that `pollux audit verify` printed")
    return int(found[1]), found[2]
