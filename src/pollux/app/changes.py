"""What did a change change?  The words in the audit log: before and after, short, and without secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pollux.clock import Clock
from pollux.model import AuditLine, Job, definition
from pollux.schedule.words import describe
from pollux.secrets import HIDDEN, hide
from pollux.store.contract import Answer, JobAnswer, JobPut, RunAnswer, RunFilter, Store
from pollux.units import counted

TOLD_MAX = 20  # jobs of one call whose change is told; of more only their number and the first names
NAMED_MAX = 5  # runs of one call that are named
VALUE_CHARS_MAX = 80
WORDS_CHARS_MAX = 1_000
_UNTOLD = {"id", "source", "release", "declared", "schedule"}


class ChangeVerbs:
    """How changes are recorded: what was changed, never what was not."""

    _store: Store
    _clock: Clock
    _actor: str
    _is_named: bool  # somebody is: what they ask for is on record.  The runs that a program asks for by itself are not.

    async def _record(self, action: str, subject: str, detail: str = "") -> None:
        await self._record_each(action, [(subject, detail)])

    async def _record_each(self, action: str, changes: Sequence[tuple[str, str]]) -> None:
        """One line for each subject with its detail, in one write."""
        await self._store.log([self._line(action, what, how) for what, how in changes])

    def _line(self, action: str, what: str, how: str) -> AuditLine:
        return AuditLine(self._clock.now_ms(), self._actor, action, as_words(what)[:200], as_words(how))

    async def _before(self, puts: Sequence[JobPut]) -> dict[str, Job | None]:
        """The jobs as they are before they are put over; nothing is read for what must be new."""
        ids = [put.job.id for put in puts if put.revision != 0]
        return dict(zip(ids, await self._store.get_jobs(ids), strict=True)) if ids else {}

    async def _with_lines(self, puts: Sequence[JobPut]) -> Sequence[JobPut]:
        """Each with its line, which is written with it or not at all; a crowd has one line for all, afterwards."""
        if len(puts) > TOLD_MAX:
            return puts
        before = await self._before(puts)
        return [
            replace(put, audit=self._line("put", put.job.id, change_words(before.get(put.job.id), put.job)))
            for put in puts
        ]

    async def _record_puts(self, puts: Sequence[JobPut], answers: Sequence[JobAnswer]) -> None:
        """What a crowd changed; not what was there already, nor what was refused and changed nothing."""
        pairs = zip(puts, answers, strict=True)
        told = [put.job for put, answer in pairs if answer.answer is Answer.OK and put.audit is None]
        if len(told) > TOLD_MAX:
            await self._record("put", counted(len(told), "job"), ", ".join(job.id for job in told[:TOLD_MAX]))
        elif told:  # nobody has read what the jobs of a crowd were before
            await self._record_each("put", [(job.id, change_words(None, job)) for job in told])

    async def _record_enqueued(
        self, jobs: Collection[str], runs: Sequence[str], params: Mapping[str, Any] | None = None
    ) -> None:
        """Runs that somebody asked for, in one line: of one its params, of many how many and the first few."""
        if not self._is_named or not runs:
            return
        subject = next(iter(jobs)) if len(jobs) == 1 else counted(len(jobs), "job")
        told = [f"params.{name} {_short(value)}" for name, value in HIDDEN.hide_in(dict(params or {})).items()]
        await self._record("enqueue", subject, "; ".join([_named(runs), *told]))

    async def _record_runs(self, action: str, subject: str, answers: Sequence[RunAnswer], reason: str = "") -> None:
        """What was done to runs; nothing if it changed none."""
        changed = [answer.id for answer in answers if answer.answer is Answer.OK]
        if changed:
            names = _named(changed).removeprefix(f"{subject}: ")
            told = reason if changed == [subject] else "; ".join(filter(None, (names, reason)))
            await self._record(action, subject, told)

    async def _record_dropped(self, ids: Sequence[str], dropped: int, by: str) -> None:
        """Which dead letters are gone, and by what filter they were chosen; nothing if none is."""
        if dropped:
            number = "" if dropped == len(ids) else f"{dropped:,} of "
            await self._record("drop", "dead letters", "; ".join(filter(None, (number + _named(ids), by))))

    async def _record_loaded(self, records: Sequence[tuple[str, Any]], new: int) -> None:
        """What was written out of a dump; but where there is no log yet, that of the dump is to come, and goes on."""
        kinds = Counter(kind for kind, _ in records)
        if not new or kinds["log"] or not (await self._store.read_log(limit=1)).lines:
            return
        ids = [str(data.get("id") or data.get("key") or "") for _, data in records if isinstance(data, dict)]
        many = ", ".join(counted(count, kind) for kind, count in kinds.items())
        names = ", ".join([*filter(None, ids[:NAMED_MAX]), *(["..."] if len(ids) > NAMED_MAX else [])])
        await self._record("load", counted(new, "record"), f"new of {many}: {names}")


def _named(ids: Sequence[str]) -> str:
    """`run a`; `1,000 runs: a, b, c, d, e, ...`"""
    if len(ids) == 1:
        return f"run {ids[0]}"
    return f"{counted(len(ids), 'run')}: {', '.join(ids[:NAMED_MAX])}{', ...' if len(ids) > NAMED_MAX else ''}"


def filter_words(where: RunFilter) -> str:
    """`by job_id home, error refused`; `by all` of one that names nothing."""
    said = {name: value for name, value in msgspec.structs.asdict(where).items() if value not in (None, ())}
    said.pop("states", None)
    return "by " + (", ".join(f"{name} {_short(value)}" for name, value in said.items()) or "all")


def as_words(said: str) -> str:
    """What somebody said without secrets, as long as anybody reads, and of characters that can be written down.

    The hash of a line sets its parts off from each other by a unit separator, so none may be inside.
    """
    text = hide(str(said))[:WORDS_CHARS_MAX].replace("\x1f", " ")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def change_words(before: Job | None, after: Job | None) -> str:
    """`new: http, every 30s, params.url https://...`; `every 30s -> every 1m; enabled true -> false`; `was: ...`"""
    if before is None or after is None:
        job = before or after
        if job is None:
            return ""
        fields = (f"{name} {value}" for name, value in _told(job).items())
        return "; ".join([f"{'new' if before is None else 'was'}: {describe(job.schedule)}", *fields])
    return "; ".join(_steps(before, after))


def _steps(before: Job, after: Job) -> Iterator[str]:
    if before.schedule != after.schedule:
        yield f"{describe(before.schedule)} -> {describe(after.schedule)}"
    was, now = _told(before), _told(after)
    for name in dict.fromkeys((*was, *now)):
        if was.get(name) != now.get(name):
            yield f"{name} {was.get(name, '(usual)')} -> {now.get(name, '(usual)')}"


def _told(job: Job) -> dict[str, str]:
    """The definition without what is as usual, each value short and without secrets; params one by one."""
    plain = msgspec.to_builtins(definition(job))  # what has its default is left out
    params: dict[str, Any] = HIDDEN.hide_in(plain.pop("params", {}))
    fields = {name: value for name, value in plain.items() if name not in _UNTOLD}
    fields |= {f"params.{name}": value for name, value in params.items()}
    return {name: _short(value) for name, value in fields.items()}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."
