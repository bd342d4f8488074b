"""What would a reload change?  The difference between what is stored and what is wanted, within one source.

Jobs of other sources are not looked at, so nothing of theirs can be taken away.  Within a source the newest release
decides, and who is older writes nothing at all:

    a newer release is known (by a stored job, or by a living node)     nothing is changed
    a job is new, or is another one                                     it is written, under our release
    a file no longer names a job                                        it is removed
    code no longer declares a job, and a node of other code lives       it is left: that node may still declare it
    code no longer declares a job, and no such node lives               it is undeclared: it keeps its memory, and only
                                                                        our release or a newer one declares it again
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from pollux.errors import Conflict, Unreadable
from pollux.model import Declares, Job, declares, definition
from pollux.schedule.words import describe

CODE = "code:"
CONFLICTS_SHOWN = 20


class Diff(Struct, frozen=True):
    source: str
    add: tuple[Job, ...] = ()
    change: tuple[tuple[Job, Job], ...] = ()  # as stored, as wanted
    remove: tuple[Job, ...] = ()
    undeclare: tuple[Job, ...] = ()
    left: tuple[Job, ...] = ()  # gone here, but a node of other code may still declare them
    same: int = 0
    release: int = 0  # of what is wanted
    newer: int | None = None  # the release that is known and above ours: nothing is changed
    elsewhere: tuple[tuple[str, int], ...] = ()  # wanted here, but in that version: nobody takes them from there
    unreadable: tuple[Unreadable, ...] = ()  # wanted here, but stored as nobody here can read it: left as they are

    @property
    def is_empty(self) -> bool:
        return not (self.add or self.change or self.remove or self.undeclare)

    def lines(self) -> list[str]:
        """The difference as people read it: one line a job, `+` added, `~` changed, `-` gone."""
        if self.newer is not None:
            return [f"! release {self.newer} of {self.source} is known: release {self.release} changes nothing"]
        return [
            *(f"+ job {job.id}  {describe(job.schedule)}" for job in self.add),
            *(f"~ job {new.id}  {', '.join(_changes(old, new))}" for old, new in self.change),
            *(f"- job {job.id}" for job in self.remove),
            *(f"- job {job.id}  no longer declared; its due times are skipped" for job in self.undeclare),
            *(f"  job {job.id}  no longer declared here; it is left while older nodes live" for job in self.left),
            *(f"  job {job_id}  is in version {version}: pollux jobs move" for job_id, version in self.elsewhere),
            *(f"  job {job.name}  cannot be read here ({job.why}): it is left as it is" for job in self.unreadable),
        ]


def reconcile(
    stored: Sequence[Job],
    wanted: Sequence[Job],
    source: str,
    *,
    owners: Mapping[str, str] | None = None,
    release: int | None = None,
    peers: Collection[Declares] = (),
    elsewhere: Mapping[str, int] | None = None,
    unreadable: Collection[Unreadable] = (),
) -> Diff:
    """Compare the jobs that `source` has in the store with those that it wants.

    `owners` tells the source of wanted ids that are stored under another one; any such raises `Conflict`.  `release`
    None: that of the wanted jobs.  `peers` is what the other living nodes declare.  `elsewhere` tells the version of
    wanted jobs that are stored in another one: they are left there.  `unreadable` are wanted jobs that are stored and
    cannot be read: they are left as the newer release wrote them.
    """
    if release is None:
        release = max((job.release for job in wanted), default=0)
    before = {job.id: job for job in stored if job.source == source}
    _refuse_foreign(wanted, source, {**(owners or {}), **{job.id: job.source for job in stored}})
    known = (*(job.release for job in before.values()), *(peer.release for peer in peers if peer.source == source))
    newest = max(known, default=0)
    if newest > release:
        return Diff(source=source, release=release, newer=newest)
    after = {job.id: job for job in wanted}
    away = {job_id: version for job_id, version in (elsewhere or {}).items() if job_id in after}
    alone = away.keys() | {job.name for job in unreadable}
    gone = tuple(job for job_id, job in before.items() if job_id not in after)
    is_code = source.startswith(CODE)
    dropped = tuple(job for job in gone if job.declared) if is_code else ()
    is_alone = not with_other_jobs(declares(source, release, after), peers)
    pairs = [(before[job_id], job) for job_id, job in after.items() if job_id in before]
    change = tuple((old, new) for old, new in pairs if definition(old) != definition(new))
    return Diff(
        source=source,
        add=tuple(job for job_id, job in after.items() if job_id not in before and job_id not in alone),
        change=change,
        remove=() if is_code else gone,
        undeclare=dropped if is_alone else (),
        left=() if is_alone else dropped,
        same=len(pairs) - len(change),
        release=release,
        elsewhere=tuple(away.items()),
        unreadable=tuple(unreadable),
    )


def with_other_jobs(mine: Declares, peers: Collection[Declares]) -> list[Declares]:
    """What others declare of the same source, if it is not the same jobs; of which release does not matter."""
    return [peer for peer in peers if peer.source == mine.source and peer.mark != mine.mark]


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
            "; ".join(wrong[:CONFLICTS_SHOWN]) + more,
            cure="nothing was changed: give one of them another id, or remove it (`pollux jobs delete`); if a file was "
            "renamed, say its old name in it: `name: old.yaml`; to see what one would change in the place of another: "
            "--as old.yaml",
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
