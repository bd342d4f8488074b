"""What would a reload change?  The difference between what is stored and what is wanted, within one source.

Jobs of other sources are not looked at, so nothing of theirs can be taken away.  A job that a file no longer names is
removed.  A job that code no longer declares is only undeclared: an older node may still declare it, and a rolled back
release must find its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from pollux.errors import Conflict
from pollux.model import Job, definition
from pollux.schedule.words import describe

CODE = "code:"
CONFLICTS_SHOWN = 20


class Diff(Struct, frozen=True):
    source: str
    add: tuple[Job, ...] = ()
    change: tuple[tuple[Job, Job], ...] = ()  # as stored, as wanted
    remove: tuple[Job, ...] = ()
    undeclare: tuple[Job, ...] = ()
    same: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.add or self.change or self.remove or self.undeclare)

    def lines(self) -> list[str]:
        """The difference as people read it: one line a job, `+` added, `~` changed, `-` gone."""
        return [
            *(f"+ job {job.id}  {describe(job.schedule)}" for job in self.add),
            *(f"~ job {new.id}  {', '.join(_changes(old, new))}" for old, new in self.change),
            *(f"- job {job.id}" for job in self.remove),
            *(f"- job {job.id}  no longer declared; its due times are skipped" for job in self.undeclare),
        ]


def reconcile(
    stored: Sequence[Job], wanted: Sequence[Job], source: str, *, owners: Mapping[str, str] | None = None
) -> Diff:
    """Compare the jobs that `source` has in the store with those that it wants.

    `owners` tells the source of wanted ids that are stored under another one; any such raises `Conflict`.
    """
    before = {job.id: job for job in stored if job.source == source}
    _refuse_foreign(wanted, source, {**(owners or {}), **{job.id: job.source for job in stored}})
    after = {job.id: job for job in wanted}
    gone = tuple(job for job_id, job in before.items() if job_id not in after)
    is_code = source.startswith(CODE)
    pairs = [(before[job_id], job) for job_id, job in after.items() if job_id in before]
    change = tuple((old, new) for old, new in pairs if definition(old) != definition(new))
    return Diff(
        source=source,
        add=tuple(job for job_id, job in after.items() if job_id not in before),
        change=change,
        remove=() if is_code else gone,
        undeclare=tuple(job for job in gone if job.declared) if is_code else (),
        same=len(pairs) - len(change),
    )


def _refuse_foreign(wanted: Sequence[Job], source: str, owners: Mapping[str, str]) -> None:
    seen: set[str] = set()
    wrong = []
    for job in wanted:
        owner = owners.get(job.id, source)
        if owner != source:
            wrong.append(f"job {job.id!r} is in {owner} and in {source}")
        elif job.id in seen:
            wrong.append(f"job {job.id!r} is in {source} twice")
        seen.add(job.id)
    if wrong:
        more = f" and {len(wrong) - CONFLICTS_SHOWN} more" if len(wrong) > CONFLICTS_SHOWN else ""
        raise Conflict(
            "; ".join(wrong[:CONFLICTS_SHOWN])
            + more
            + ". Nothing was changed; give one of them another id, or remove it (`pollux jobs delete`). If a file was "
            "renamed, say its old name in it: `name: old.yaml`."
        )


def _changes(old: Job, new: Job) -> Iterator[str]:
    was, now = msgspec.structs.asdict(definition(old)), msgspec.structs.asdict(definition(new))
    if was.pop("schedule") != now.pop("schedule"):
        yield _step(describe(old.schedule), describe(new.schedule))
    for field, before in was.items():
        if before == now[field]:
            continue
        yield (
            _step(f"{field} {before}", f"{field} {now[field]}") if isinstance(before, int | str) else f"{field} changed"
        )


def _step(before: str, after: str) -> str:
    """`cron 0 5 * * * -> 0 6 * * *`: the kind is said once if it stays."""
    kind, _, rest = after.partition(" ")
    return f"{before} -> {rest if rest and before.startswith(kind + ' ') else after}"
