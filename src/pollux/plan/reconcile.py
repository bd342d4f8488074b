"""Ownership of jobs by their source, and the difference between the stored and the wanted jobs of one source.

A job belongs to the source that declared it: `file:pollux.yaml`, `code:shop`, or `api`.  While a node of that source is
alive, a deleted job comes back with its next start or reload.  When none is alive the jobs stay, as a restart must find
what was due meanwhile; they wait until a node comes back or until they are deleted.

A reload compares jobs within one source, so it never removes jobs of another one.  Within a source the newest release
decides, and an older one writes nothing:

    a newer release is known (by a stored job, or by a living node)     nothing is changed
    a job is new or changed                                             it is written, under our release
    a file no longer names a job                                        it is removed
    code no longer declares a job, and a node of other code lives       it is left: that node may still declare it
    code no longer declares a job, and no such node lives               it is undeclared: it keeps its memory, and only
                                                                        our release or a newer one declares it again

Two programs may have the same name by accident, and each would remove the jobs of the other.  At equal release a text
is refused if it would remove

    jobs of a file that a living node still declares from another text
    most jobs of code that a living node still declares (fewer are left to it: a deploy without release numbers)
    more than half of the source's jobs, and at least five, unless the source had this set of jobs before

A node that reads its edited file again replaces its own text, so nodes that still have that one do not count.  A text
that is in force already removes nothing from a living node and is not refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from pollux.errors import Conflict, Unreadable
from pollux.model import API_SOURCE, Declares, Job, Node, declares, definition
from pollux.schedule.builders import describe_schedule
from pollux.units import counted


def is_backed(job: Job, nodes: Iterable[Node]) -> bool:
    """Whether a living node would put the job back if it were deleted; nodes of older releases do not write."""
    if job.source == API_SOURCE or not job.declared:
        return False
    declared = (each for node in nodes for each in node.declares)
    return any(each.source == job.source and each.release >= job.release for each in declared)


def orphaned(jobs: Iterable[Job], nodes: Collection[Node]) -> dict[str, list[str]]:
    """By source: the jobs that no living node declares or can run.

    A job whose handler a node of another source has runs there.  If no node is alive, no job is orphaned: all wait.
    """
    if not nodes:
        return {}
    handlers = {name for node in nodes for name in node.handlers}
    found: dict[str, list[str]] = {}
    for job in jobs:
        is_wanted = job.source != API_SOURCE and job.declared and job.enabled
        if is_wanted and job.handler not in handlers and not is_backed(job, nodes):
            found.setdefault(job.source, []).append(job.id)
    return found


CODE = "code:"
CONFLICTS_SHOWN = 20
NAMED_MAX = 5
TAKEN_MIN = 5  # fewest removed jobs for which "more than half of them" is refused


class ReconcileRefusal(Struct, frozen=True):
    """Why a text may not remove jobs."""

    words: str
    because_of: tuple[str, ...] = ()  # the marks of the conflicting declarations of living nodes, if that is why


class Diff(Struct, frozen=True):
    """The changes that make the stored jobs of a source equal to the wanted ones."""

    source: str
    add: tuple[Job, ...] = ()
    change: tuple[tuple[Job, Job], ...] = ()  # (stored, wanted)
    remove: tuple[Job, ...] = ()
    undeclare: tuple[Job, ...] = ()
    left: tuple[Job, ...] = ()  # not wanted here, but a node of other code may still declare them
    same: int = 0
    release: int = 0  # of the wanted jobs
    newer: int | None = None  # a known release above ours: nothing is changed
    elsewhere: tuple[tuple[str, int], ...] = ()  # wanted here, but in another version, from which a reload moves none
    unreadable: tuple[Unreadable, ...] = ()  # wanted here, but the stored row cannot be decoded: left unchanged
    had: tuple[str, ...] = ()  # marks of the sets of jobs that the source had at the comparison
    is_again: bool = False  # it is in force already
    refused: ReconcileRefusal | None = None  # why it must not be written, unless with --replace

    @property
    def is_empty(self) -> bool:
        return not (self.add or self.change or self.remove or self.undeclare)

    def lines(self) -> list[str]:
        """The difference as text, one line a job: `+` added, `~` changed, `-` removed."""
        if self.newer is not None:
            return [f"! release {self.newer} of {self.source} is known: release {self.release} changes nothing"]
        return [
            *(f"+ job {job.id}  {describe_schedule(job.schedule)}" for job in self.add),
            *(f"~ job {new.id}  {', '.join(_changes(old, new))}" for old, new in self.change),
            *(f"- job {job.id}" for job in self.remove),
            *(f"- job {job.id}  no longer declared; its due times are skipped" for job in self.undeclare),
            *(f"  job {job.id}  no longer declared here; it is left while older nodes live" for job in self.left),
            *(f"  job {job_id}  is in version {version}: pollux jobs move" for job_id, version in self.elsewhere),
            *(f"  job {job.name}  cannot be read here ({job.why}): it is left as it is" for job in self.unreadable),
            *([f"! refused without --replace: {self.refused.words}"] if self.refused else []),
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
    had: Sequence[str] | None = None,
    conflicting: Collection[Declares] = (),
    is_again: bool = False,
) -> Diff:
    """The difference between the stored jobs of `source` and the wanted ones.

    `owners` is the source of wanted ids that are stored under another one; any such raises `Conflict`.  `release`
    None: that of the wanted jobs.  `peers`: the declarations of living nodes.  Jobs that are stored in another version
    (`elsewhere`) or cannot be decoded stay unchanged.  `had`: the marks of the sets of jobs that the source had (None:
    do not refuse any), `conflicting` as below.  `is_again`: the text is in force; it removes no job of a living node.
    """
    release = max((job.release for job in wanted), default=0) if release is None else release
    before, after = {job.id: job for job in stored if job.source == source}, {job.id: job for job in wanted}
    _refuse_foreign(wanted, source, {**(owners or {}), **{job.id: job.source for job in stored}})
    if (newest := _newest(source, before.values(), peers)) > release:
        return Diff(source=source, release=release, newer=newest)
    away = {job_id: version for job_id, version in (elsewhere or {}).items() if job_id in after}
    alone = away.keys() | {job.name for job in unreadable}
    is_code, mine = source.startswith(CODE), declares(source, release, after)
    there = [job for job in before.values() if job.declared or not is_code]
    missing = tuple(job for job in there if job.id not in after)
    is_left = (is_code or is_again) and bool(with_other_jobs(mine, peers))
    refused = None if had is None or is_again else _refusal(there, missing, mine, had, conflicting)
    pairs = [(before[job_id], job) for job_id, job in after.items() if job_id in before]
    change = tuple((old, new) for old, new in pairs if definition(old) != definition(new))
    return Diff(
        source=source,
        add=tuple(job for job_id, job in after.items() if job_id not in before and job_id not in alone),
        change=change,
        remove=() if is_code or is_left else missing,
        undeclare=missing if is_code and not is_left else (),
        left=missing if is_left else (),
        same=len(pairs) - len(change),
        release=release,
        elsewhere=tuple(away.items()),
        unreadable=tuple(unreadable),
        had=tuple(had or ()),
        is_again=is_again,
        refused=refused,
    )


def _newest(source: str, stored: Iterable[Job], peers: Collection[Declares]) -> int:
    releases = (*(job.release for job in stored), *(peer.release for peer in peers if peer.source == source))
    return max(releases, default=0)


def conflicting(mine: Declares, peers: Collection[Declares], *, behind: Collection[str | None]) -> list[Declares]:
    """The declarations of living nodes, of the same source and release, with other jobs than ours, unless outdated.

    `behind`: the marks of texts that ours replaces: the previous text of this node and, if that is the latest one of
    the source, all earlier ones.  A node that starts replaces none.
    """
    others = [peer for peer in with_other_jobs(mine, peers) if peer.release == mine.release]
    return [peer for peer in others if peer.mark not in behind]


def _refusal(
    there: Sequence[Job], missing: Sequence[Job], mine: Declares, had: Sequence[str], others: Collection[Declares]
) -> ReconcileRefusal | None:
    """Why a set of jobs may not remove these; jobs of an older release may be removed.

    A set that the source had before may remove most jobs, but none that a living node declares: two files of one name
    may alternate.
    """
    taken = [job for job in missing if job.release == mine.release]
    is_most = 2 * len(taken) > len(there)
    if others and taken and (is_most or not taken[0].source.startswith(CODE)):
        words = f"{_named(taken)} would go that a living node may still declare"
        return ReconcileRefusal(words, tuple(each.mark for each in others))
    if is_most and len(taken) >= TAKEN_MIN and mine.mark not in had:
        return ReconcileRefusal(f"{_named(taken)} would go, of the {len(there)} that {taken[0].source} has")
    return None


def _named(jobs: Sequence[Job]) -> str:
    names = ", ".join(job.id for job in jobs[:NAMED_MAX]) + (", ..." if len(jobs) > NAMED_MAX else "")
    return f"{counted(len(jobs), 'job')} ({names})"


def with_other_jobs(mine: Declares, peers: Collection[Declares]) -> list[Declares]:
    """The declarations of the same source, of any release, with other jobs."""
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
            "renamed, give it its old name: `name: old.yaml`; to see what one file would change in place of another: "
            "--as old.yaml",
        )


def _changes(old: Job, new: Job) -> Iterator[str]:
    was, now = msgspec.structs.asdict(definition(old)), msgspec.structs.asdict(definition(new))
    if was.pop("schedule") != now.pop("schedule"):
        yield _step(describe_schedule(old.schedule), describe_schedule(new.schedule))
    for field, before in was.items():
        if before == now[field]:
            continue
        yield (
            _step(f"{field} {before}", f"{field} {now[field]}") if isinstance(before, int | str) else f"{field} changed"
        )


def _step(before: str, after: str) -> str:
    """`cron 0 5 * * * -> 0 6 * * *`: an unchanged kind is written once."""
    kind, _, rest = after.partition(" ")
    return f"{before} -> {rest if rest and before.startswith(kind + ' ') else after}"
