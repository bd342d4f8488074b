"""What did a change change?  The words in the audit log: before and after, short, and without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pollux.clock import Clock
from pollux.model import AuditLine, Job, definition
from pollux.schedule.words import describe
from pollux.secrets import HIDDEN, hide
from pollux.store.contract import Answer, JobAnswer, JobPut, Store

TOLD_MAX = 20  # jobs of one call whose change is told; of more only their number and the first names
VALUE_CHARS_MAX = 80
WORDS_CHARS_MAX = 1_000
_UNTOLD = {"id", "source", "release", "declared", "schedule"}


class ChangeVerbs:
    """How puts and deletes of jobs are recorded."""

    _store: Store
    _clock: Clock
    _actor: str

    async def _record(self, action: str, subject: str, detail: str = "") -> None:
        await self._record_each(action, [(subject, detail)])

    async def _record_each(self, action: str, changes: Sequence[tuple[str, str]]) -> None:
        """One line for each subject with its detail, in one write."""
        now_ms = self._clock.now_ms()
        lines = [AuditLine(now_ms, self._actor, action, as_words(what)[:200], as_words(how)) for what, how in changes]
        await self._store.log(lines)

    async def _before(self, puts: Sequence[JobPut]) -> dict[str, Job | None]:
        """The jobs as they are before they are put over; nothing is read for what must be new, nor for a crowd."""
        ids = [put.job.id for put in puts if put.revision != 0] if len(puts) <= TOLD_MAX else []
        return dict(zip(ids, await self._store.get_jobs(ids), strict=True)) if ids else {}

    async def _record_puts(
        self, puts: Sequence[JobPut], answers: Sequence[JobAnswer], before: Mapping[str, Job | None]
    ) -> None:
        """What was changed, and what was refused; not what was there already."""
        told = [(put, answer) for put, answer in zip(puts, answers, strict=True) if answer.answer is not Answer.ALREADY]
        if len(told) > TOLD_MAX:
            done = [answer.id for _, answer in told if answer.answer is Answer.OK]
            refused = f"; {len(told) - len(done)} were refused" if len(done) < len(told) else ""
            await self._record("put", f"{len(done)} jobs", ", ".join(done[:TOLD_MAX]) + refused)
        elif told:
            words = [(put.job.id, _put_words(put, answer, before)) for put, answer in told]
            await self._record_each("put", words)


def _put_words(put: JobPut, answer: JobAnswer, before: Mapping[str, Job | None]) -> str:
    if answer.answer is Answer.OK:
        return change_words(before.get(put.job.id), put.job)
    return f"refused: {answer.detail or answer.answer}"


def as_words(said: str) -> str:
    """What somebody said without secrets, as long as anybody reads, and of characters that can be written down.

    The hash of a line sets its parts off from each other by a unit separator, so none may be inside.
    """
    return hide(str(said))[:WORDS_CHARS_MAX].replace("\x1f", " ").encode("utf-8", "replace").decode()


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
