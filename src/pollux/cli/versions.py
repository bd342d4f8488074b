"""`pollux jobs move`, `pollux compare` and `pollux migrate`: the change from one deployment on a store to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.completion import job_ids
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import moment, now_ms, print_json, print_table
from pollux.cli.runner import ListingGroup, TeachingCommand
from pollux.cli.selection import LINES_MAX, choice_of, chosen_jobs, in_batches, job_filter_options, since_ms
from pollux.errors import NotFound, Unreadable
from pollux.model import VERSION_MAX, unserved
from pollux.units import MINUTE_MS, WEEK_MS, counted, format_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol

KEPT_MS = WEEK_MS - MINUTE_MS  # what was counted longer ago is forgotten about now
VERSION = click.IntRange(1, VERSION_MAX)


@click.command("move", cls=TeachingCommand)
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=job_ids)
@job_filter_options
@click.option("--from-version", "scheduler_version", type=VERSION, metavar="N", help="Those of this version.")
@click.option("--to-version", "to", type=VERSION, required=True, metavar="N", help="Where they go.")
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@json_option
@store_options
def move(
    ids: tuple[str, ...], to: int, config: str | None, store: str | None, *, dry_run: bool, as_json: bool, **given: Any
) -> None:
    """Take jobs over to another version of your deployment on the same store: one, some or all.

    Each goes at once and whole: next due, memory, and runs that wait or run.  Nothing fires twice, nothing is missed.

    For example:
      pollux jobs move home --to-version 2
      pollux jobs move --group edge --to-version 2 --dry-run
      pollux jobs move --from-version 1 --to-version 2 --yes
    """
    choice = choice_of("job", ids, given | ({"yes": True} if dry_run else {}))
    url = existing_store(StoreChoice(config, store))
    chosen = chosen_jobs(url, choice, verb=f"move ... to version {to}")
    if not chosen and (number := given["scheduler_version"]) is not None:
        ask(url, lambda operations: _is_there(operations, number))
    there = in_batches(url, chosen, _versions_of, doing="looking")
    goes = [job_id for job_id, version in zip(chosen, there, strict=True) if version not in (to, None)]
    if not dry_run:
        in_batches(url, chosen, lambda operations, batch: _move(operations, batch, to), doing="moving")
    if goes and (lack := unserved(to, ask(url, lambda operations: operations.status.nodes()))):
        click.echo(f"pollux: {lack[0]}; {lack[1]}", err=True)
    if as_json:
        print_json({"moved": [] if dry_run else goes, "would_move": goes if dry_run else [], "to_version": to})
        return
    names = f": {', '.join(goes)}" if len(goes) <= LINES_MAX and goes else ""
    says = f"would go to version {to}" if dry_run else f"moved to version {to}"
    click.echo(f"{counted(len(goes), 'job')} {says}{names}")
    if goes and not dry_run:
        _, empty = ask(url, _versions)
        _say_empty(number for number in empty if number in there)
    stays = len([version for version in there if version == to])
    if stays:
        click.echo(f"{counted(stays, 'job')} there already")


async def _is_there(operations: OperationsProtocol, number: int) -> None:
    """Nothing goes from a version without jobs; from one that nobody knows it is a slip of the pen."""
    if number not in {version.number for version in await operations.versions.list_versions()}:
        raise NotFound("version", str(number), cure="`pollux migrate` lists them")


async def _versions_of(operations: OperationsProtocol, batch: list[str]) -> list[int | None]:
    found = zip(batch, await operations.jobs.jobs_by_id(batch), strict=True)
    return [await _version_of(operations, job_id) if job is None else job.scheduler_version for job_id, job in found]


async def _version_of(operations: OperationsProtocol, job_id: str) -> int | None:
    """Of one that cannot be read: it goes like all others; None if it is not there."""
    try:
        found = await operations.jobs.find_job(job_id)
    except NotFound:
        return None
    version: int | None = found.version if isinstance(found, Unreadable) else found.scheduler_version
    return version


async def _move(operations: OperationsProtocol, batch: list[str], to: int) -> list[Any]:
    return list(await operations.versions.move_jobs(batch, to))


@click.command(cls=TeachingCommand)
@click.argument("one", type=VERSION)
@click.argument("other", type=VERSION)
@click.option("--since", default="1h", show_default=True, metavar="WHEN", help="2h ago, or a moment with its offset.")
@json_option
@store_options
def compare(one: int, other: int, since: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """How do two versions of your deployment do, side by side?  Of the runs that ended since then.

    Their leaders count what ended, by the minute.  The times are of the runs that the history still has.

    For example:
      pollux compare 1 2
      pollux compare 1 2 --since 24h --json
    """
    began_ms = since_ms(since)
    url = existing_store(StoreChoice(config, store))
    figures = ask(url, lambda operations: operations.versions.compare((one, other), since_ms=began_ms))
    if as_json:
        print_json({"since_ms": began_ms, "versions": figures})
        return
    print_table(
        ("", *(f"version {each.version}" for each in figures)),
        ((name, *(told(each) for each in figures)) for name, told in ROWS.items()),
    )
    for line in _lacks(figures, began_ms):
        click.echo(line, err=True)


def _lacks(figures: Any, since: int) -> Iterator[str]:
    """What the table cannot tell of the time that was asked for."""
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


ROWS: dict[str, Callable[[Any], str]] = {
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


def _at_most(spread: Any, ms: int) -> str:
    return format_ms(ms) if spread.count else "-"


@click.group(cls=ListingGroup)
def migrate() -> None:
    """See which versions of your deployment share a store, and end one that has handed over.

    For example:
      pollux migrate                    which there are, and what each has
      pollux migrate finish --from 1    forget version 1, once all of it is moved
    """


@migrate.command("ls")
@json_option
@store_options
def ls(config: str | None, store: str | None, *, as_json: bool) -> None:
    """List the versions that share this store: jobs, runs, and who leads each.

    For example:
      pollux migrate ls --json
    """
    found, empty = ask(existing_store(StoreChoice(config, store)), _versions)
    if as_json:
        print_json({"versions": found})
        return
    print_table(
        ("version", "jobs", "ready", "held", "running", "unread", "term", "leader"),
        (
            (
                str(each.number),
                *map(str, (each.counts.jobs, each.counts.ready, each.counts.held, each.counts.leased)),
                str(each.counts.feed),
                str(each.term),
                each.leader or "nobody",
            )
            for each in found
        ),
    )
    _say_empty(empty)


async def _versions(operations: OperationsProtocol) -> tuple[list[Any], list[int]]:
    """All, and the numbers of those that have nothing and nobody."""
    found, nodes = await operations.versions.list_versions(), await operations.status.nodes()
    served = {node.scheduler_version for node in nodes}
    return found, [each.number for each in found if _is_empty(each) and each.number not in served]


def _is_empty(version: Any) -> bool:
    counts = version.counts
    return not (version.leader or counts.jobs or counts.ready or counts.held or counts.leased)


def _say_empty(numbers: Iterable[int]) -> None:
    for number in numbers:
        what = f"version {number} has no job, no live run and no node"
        click.echo(f"pollux: {what}; if it is done: pollux migrate finish --from {number}", err=True)


@migrate.command()
@click.option("--from", "number", type=VERSION, required=True, metavar="N", help="The version that is done.")
@json_option
@store_options
def finish(number: int, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Forget a version that has handed over.  Refused while it has a job, a live run or a node, which are named.

    Its finished runs stay in the history until they are pruned.

    For example:
      pollux migrate finish --from 1
    """
    ask(existing_store(StoreChoice(config, store)), lambda operations: operations.versions.finish_version(number))
    if as_json:
        print_json({"finished": number})
        return
    click.echo(f"version {number} is done; its history stays")
