"""Operations on pauses and breakers: stop a job, a group, a target or everything, and let it run again."""

from __future__ import annotations

from pollux.app.operations.audit import as_words
from pollux.app.operations.context import OperationContext, OperationGroup
from pollux.app.operations.jobs import JobOperations
from pollux.errors import InvalidInput, read_at
from pollux.job_builder import check_stop
from pollux.model import STOP, Note, NotePut, stop_key
from pollux.registry import job_id_of
from pollux.store.contract import Answer
from pollux.store.decoding import stops_as_far
from pollux.units import duration_ms, format_ms


class PauseOperations(OperationGroup):
    """Pause and resume, and reset breakers."""

    def __init__(self, context: OperationContext) -> None:
        super().__init__(context)
        self._jobs = JobOperations(context)

    async def pause(
        self,
        job: object = None,
        *,
        group: str | None = None,
        target: str | None = None,
        everything: bool = False,
        reason: str = "",
        duration: str | float | None = None,
    ) -> str:
        """Stop a job, a group, a target or everything, for a `duration` or until resumed; answers the stop's name."""
        key = await self._stop_key(job, group, target, everything)
        now_ms = await self._store.now()
        expires_ms = None if duration is None else now_ms + read_at("duration", duration_ms, duration)
        value = {"reason": as_words(reason), "by": self._actor, "at_ms": now_ms}
        lasts = "" if expires_ms is None else f"for {format_ms(expires_ms - now_ms)}"
        audit = self._audit.on_record("pause", key.removeprefix(STOP), "; ".join(filter(None, (reason, lasts))))
        await self._store.put_notes([NotePut(key, value, expires_ms=expires_ms)], audit=audit)
        return key

    async def resume(
        self, job: object = None, *, group: str | None = None, target: str | None = None, everything: bool = False
    ) -> bool:
        """Take the same pause away; false if there was none."""
        key = await self._stop_key(job, group, target, everything)
        audit = self._audit.on_record("resume", key.removeprefix(STOP))
        return await self._store.put_notes([NotePut(key)], audit=audit) == [Answer.OK]

    async def stops(self) -> list[Note]:
        """All that is paused; one that nobody here can read stands, too."""
        return (await stops_as_far(self._store.notes(STOP)))[0]

    async def reset_breaker(self, name: str) -> None:
        """Forget what a breaker has seen."""
        audit = self._audit.on_record("reset", f"breaker {name}")
        await self._store.put_notes([NotePut(f"breaker:{name}")], audit=audit)

    async def _stop_key(self, job: object, group: str | None, target: str | None, everything: object) -> str:
        given = [job is not None, group is not None, target is not None, bool(everything)]
        if sum(given) != 1:
            raise InvalidInput(
                "say what to stop: exactly one of a job, a group, a target, or everything",
                cure="pause('home'), pause(group='edge'), pause(target='db'), pause(everything=True)",
            )
        check_stop(group=group, target=target)
        if job is not None:
            await self._jobs.find_job(job)
            return stop_key("job", job_id_of(job))
        if group is not None:
            return stop_key("group", group)
        return stop_key("all") if target is None else stop_key("target", target)
