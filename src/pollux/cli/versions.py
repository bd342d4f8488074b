"""`pollux jobs move`, `pollux compare` and `pollux migrate`: the change from one deployment on a store to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pollux.cli.options import applied, json_option, store_options
from pollux.cli.output import Columns, moment, notice, now_ms, print_items, print_json, print_table
from pollux.cli.runner import ListingGroup, TeachingCommand
from pollux.cli.selection import LINES_MAX, Selection, chosen_jobs, in_batches, job_filter, selecting, since_ms
from pollux.cli.target import StoreChoice
from pollux.errors import NotFound, Unreadable
from pollux.model import VERSION_MAX, Version, unserved
from pollux.units import MINUTE_MS, WEEK_MS, counted, format_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.app.operations.storage import Percentiles, VersionFigures

KEPT_MS = WEEK_MS - MINUTE_MS  # older counts are about to be pruned
_Command = TypeVar("_Command", bound=Callable[..., Any])
VERSION = click.IntRange(1, VERSION_MAX)


def _version_filter(command: _Command) -> _Command:
    version = click.option("--from-version", "scheduler_version", type=VERSION, metavar="N", help="Of this version.")
    return applied(command, job_filter, version)


@click.command("move", cls=TeachingCommand)
@selecting("job", _version_filter)
@click.option("--to-version", "to", type=VERSION, required=True, metavar="N", help="The version that gets them.")
@click.option("--dry-run", is_flag=True, help="Only print what would be moved.")
@json_option
@store_options
def move(choice: Selection, to: int, where: StoreChoice, *, dry_run: bool, as_json: bool) -> None:
    """Move jobs to another version of your deployment on the same store: one, some or all.

    Each moves as a whole: next due, memory, and runs that wait or run.  Nothing fires twice, nothing is missed.

    For example:
      pollux jobs move home --to-version 2
      pollux jobs move --group edge --to-version 2 --dry-run
      pollux jobs move --from-version 1 --to-version 2 --yes
    """
    choice = choice._replace(yes=choice.yes or dry_run)

    async def moved(operations: OperationsProtocol) -> MovedJobs:
        async def act(batch: list[str]) -> list[str]:
            return list(await operations.versions.move_jobs(batch, to))

        chosen = await chosen_jobs(operations, choice, verb=f"move ... to version {to}")
        if not chosen and (number := choice.parts.get("scheduler_version")) is not None:
            await _refuse_unknown(operations, number)
        before = await in_batches(chosen, lambda batch: _versions_of(operations, batch), doing="looking")
        goes = [job_id for job_id, version in zip(chosen, before, strict=True) if version not in (to, None)]
        if not dry_run:
            await in_batches(chosen, act, doing="moving")
        lack = unserved(to, await operations.status.nodes()) if goes else None
        _, empty = await _versions(operations) if goes and not dry_run else ([], [])
        return MovedJobs(goes, sum(version == to for version in before), lack, [n for n in empty if n in before])

    goes, stays, lack, emptied = where.ask(moved)
    if lack:
        notice(f"{lack[0]}; {lack[1]}")
    if as_json:
        print_json({"moved": [] if dry_run else goes, "would_move": goes if dry_run else [], "to_version": to})
        return
    names = f": {', '.join(goes)}" if len(goes) <= LINES_MAX and goes else ""
    deed = f"would go to version {to}" if dry_run else f"moved to version {to}"
    click.echo(f"{counted(len(goes), 'job')} {deed}{names}")
    _print_empty(emptied)
    if stays:
        click.echo(f"{counted(stays, 'job')} there already")


class MovedJobs(NamedTuple):
    goes: list[str]
    stays: int  # jobs that were there already
    lack: tuple[str, str] | None  # that no node serves the version, and the cure
    emptied: list[int]  # versions that have no jobs any more


async def _refuse_unknown(operations: OperationsProtocol, number: int) -> None:
    """A version without jobs has nothing to move; one that does not exist is a mistake."""
    if number not in {version.number for version in await operations.versions.list_versions()}:
        raise NotFound("version", str(number), cure="`pollux migrate` lists them")


async def _versions_of(operations: OperationsProtocol, batch: list[str]) -> list[int | None]:
    found = zip(batch, await operations.jobs.jobs_by_id(batch), strict=True)
    return [await _version_of(operations, job_id) if job is None else job.scheduler_version for job_id, job in found]


async def _version_of(operations: OperationsProtocol, job_id: str) -> int | None:
    """Of a job that cannot be read, which moves like the others; None if it does not exist."""
    try:
        found = await operations.jobs.find_job(job_id)
    except NotFound:
        return None
    return found.version if isinstance(found, Unreadable) else found.scheduler_version


@click.command(cls=TeachingCommand)
@click.argument("one", type=VERSION)
@click.argument("other", type=VERSION)
@click.option("--since", default="1h", show_default=True, metavar="WHEN", help="2h ago, or a moment with its offset.")
@json_option
@store_options
def compare(one: int, other: int, since: str, where: StoreChoice, *, as_json: bool) -> None:
    """Compare two versions of your deployment, side by side, by the runs that ended since then.

    Their leaders count what ended, by the minute.  The times are of the runs that the history still has.

    For example:
      pollux compare 1 2
      pollux compare 1 2 --since 24h --json
    """
    began_ms = since_ms(since)
    figures = where.ask(lambda operations: operations.versions.compare((one, other), since_ms=began_ms))
    if as_json:
        print_json({"since_ms": began_ms, "versions": figures})
        return
    print_table(
        ("", *(f"version {each.version}" for each in figures)),
        ((name, *(cell(each) for each in figures)) for name, cell in ROWS.items()),
    )
    for line in _lacks(figures, began_ms):
        click.echo(line, err=True)


def _lacks(figures: Sequence[VersionFigures], since: int) -> Iterator[str]:
    """What the table lacks of that time."""
    for each in figures:
        if each.counted_from_ms is None:
            yield f"version {each.version}: no leader has counted what ended; these are the runs that the history has"
        elif each.uncounted or since < each.counted_from_ms <= now_ms() - KEPT_MS:
            before = f"version {each.version}: what ended before {moment(each.counted_from_ms)}"
            yield f"{before} is counted only as far as the history still has it"
        if each.unread:
            yield f"version {each.version}: {counted(each.unread, 'end')} that its leader has not read: not counted yet"
        if each.is_cut:
            yield f"version {each.version}: the times are of its newest {each.kept} runs; choose a shorter --since"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else str(part)


ROWS: dict[str, Callable[[VersionFigures], str]] = {
    "jobs": lambda each: str(each.jobs),
    "waiting": lambda each: str(each.waiting),
    "running": lambda each: str(each.running),
    "counted from": lambda each: moment(each.counted_from_ms) or "-",
    "ended": lambda each: str(each.ended),
    "failed": lambda each: _share(each.failed, each.ended),
    "dead": lambda each: str(each.dead),
    "cancelled": lambda each: str(each.cancelled),
    "times of": lambda each: f"{each.kept} of {each.ended} runs",
    "late, half of them": lambda each: _at_most(each.late, each.late.p50_ms),
    "late, 99 of 100": lambda each: _at_most(each.late, each.late.p99_ms),
    "took, half of them": lambda each: _at_most(each.took, each.took.p50_ms),
    "took, 99 of 100": lambda each: _at_most(each.took, each.took.p99_ms),
}


def _at_most(spread: Percentiles, ms: int) -> str:
    return format_ms(ms) if spread.count else "-"


@click.group(cls=ListingGroup)
def migrate() -> None:
    """List the versions of your deployment that share a store, and finish one whose jobs were moved.

    For example:
      pollux migrate                    which there are, and what each has
      pollux migrate finish --from 1    forget version 1, once all of it is moved
    """


@migrate.command("ls")
@json_option
@store_options
def ls(where: StoreChoice, *, as_json: bool) -> None:
    """List the versions that share this store: jobs, runs, and who leads each.

    For example:
      pollux migrate ls --json
    """
    found, empty = where.ask(_versions)
    if as_json:
        print_json({"versions": found})
        return
    print_items(found, VERSION_COLUMNS)
    _print_empty(empty)


VERSION_COLUMNS: Columns[Version] = {
    "version": lambda each: each.number,
    "jobs": lambda each: each.counts.jobs,
    "queued": lambda each: each.counts.ready,
    "held": lambda each: each.counts.held,
    "running": lambda each: each.counts.leased,
    "unread": lambda each: each.counts.feed,
    "term": lambda each: each.term,
    "leader": lambda each: each.leader or "none",
}


async def _versions(operations: OperationsProtocol) -> tuple[list[Version], list[int]]:
    """All, and the numbers of those that have no job, no live run and no node."""
    found, nodes = await operations.versions.list_versions(), await operations.status.nodes()
    served = {node.scheduler_version for node in nodes}
    return found, [each.number for each in found if _is_empty(each) and each.number not in served]


def _is_empty(version: Version) -> bool:
    counts = version.counts
    return not (version.leader or counts.jobs or counts.ready or counts.held or counts.leased)


def _print_empty(numbers: Iterable[int]) -> None:
    for number in numbers:
        what = f"version {number} has no job, no live run and no node"
        notice(f"{what}; if it is done: pollux migrate finish --from {number}")


@migrate.command()
@click.option("--from", "number", type=VERSION, required=True, metavar="N", help="The version that is done.")
@json_option
@store_options
def finish(number: int, where: StoreChoice, *, as_json: bool) -> None:
    """Forget a version whose jobs were moved.  Refused while it has a job, a live run or a node, which are named.

    Its finished runs stay in the history until they are pruned.

    For example:
      pollux migrate finish --from 1
    """
    where.ask(lambda operations: operations.versions.finish_version(number))
    if as_json:
        print_json({"finished": number})
        return
    click.echo(f"version {number} is done; its history stays")
