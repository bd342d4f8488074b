"""`pollux jobs`: list, show, run, cancel, delete and move jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pollux.cli.command_table import FAILED
from pollux.cli.completion import job_ids
from pollux.cli.enqueue import params_of
from pollux.cli.job_page import JobDetails, print_job, row_json
from pollux.cli.options import StoreChoice, ask, existing_store, json_option, page_options, store_options
from pollux.cli.output import ago, now_ms, print_json, print_more, print_table, say_unreadable, unreadable_json
from pollux.cli.pause import say_drained, say_unreadable_jobs
from pollux.cli.runner import ListingGroup
from pollux.cli.selection import LINES_MAX, choice_of, chosen_jobs, how_cancelled, in_batches, job_filter_options
from pollux.cli.versions import move
from pollux.errors import Conflict, InvalidInput, NotFound, StoreError, StoreFull, Unreadable
from pollux.model import API_SOURCE
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import JobRow, OperationsProtocol


@click.group(cls=ListingGroup)
def jobs() -> None:
    """List jobs, show one, run some now, cancel, delete, move them; `pollux pause` stops some.

    For example:
      pollux jobs                       all, a page at a time
      pollux jobs --group edge --json   those of a group, for a program
      pollux jobs show home             one, in full
      pollux jobs run home              now, whatever its schedule says
    """


@jobs.command("ls")
@click.option("--group", help="Of this group.")
@click.option("--target", help="Of this target.")
@click.option("--tag", help="With this tag.")
@click.option("--source", help="Declared by this: file:pollux.yaml, code:shop, or api.")
@click.option("--text", help="With this text in the id or name.")
@page_options
@json_option
@store_options
def ls(
    group: str | None,
    target: str | None,
    tag: str | None,
    source: str | None,
    text: str | None,
    limit: int,
    after: str | None,
    config: str | None,
    store: str | None,
    *,
    as_json: bool,
) -> None:
    """List jobs: schedule, last outcome, next due, and what they do or what holds them up.

    For example:
      pollux jobs ls --text api
      pollux jobs ls --target db-1 --limit 20
    """
    from pollux.store.contract import JobFilter

    where = JobFilter(group=group, target=target, tag=tag, source=source, text=text)

    async def question(operations: OperationsProtocol) -> tuple[Any, Any, Any, bool]:
        page = await operations.jobs.list_jobs(where, after=after, limit=limit)
        return page, *await _rows(operations, page.jobs), len(await operations.versions.list_versions()) > 1

    page, rows, spoilt, has_versions = ask(existing_store(StoreChoice(config, store)), question)
    if as_json:
        unreadable = {"unreadable": unreadable_json(page.unreadable), "unreadable_runs": unreadable_json(spoilt)}
        print_json({"jobs": [row_json(row) for row in rows], "next": page.next, **unreadable})
        return
    _print_rows(rows, has_versions=has_versions)
    say_unreadable(page.unreadable)
    say_unreadable(spoilt, "run")
    if not rows and not page.unreadable:
        click.echo(
            "there are no jobs" if where == JobFilter() and after is None else "there are no such jobs", err=True
        )
    print_more(page.next)


def _print_rows(rows: Sequence[JobRow], *, has_versions: bool) -> None:
    now = now_ms()
    print_table(
        ("id", *(("version",) if has_versions else ()), "schedule", "last", "ended", "fresh", "next due", "now"),
        (
            (
                row.job.id,
                *((str(row.job.scheduler_version),) if has_versions else ()),
                row.schedule,
                row.last or "-",
                ago(row.job.memory.last_end_ms, now=now),
                f"{row.freshness.score:.0%}" if row.freshness.age_ms is not None else "-",
                ago(row.next_due_ms, now=now) or "-",
                _now(row),
            )
            for row in rows
        ),
    )


def _now(row: JobRow) -> str:
    """What it does, what holds it up, or that it fails; what holds it up says that it fails, too."""
    return row.held or row.progress or row.failing or ("running" if row.answer == "running" else "")


@jobs.command()
@click.argument("job_id", metavar="ID", shell_complete=job_ids)
@json_option
@store_options
def show(job_id: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Show one job in full: what it is, how it went, what it does now, what comes next.

    The line of its latest runs has one character each, the newest on the right: the higher the longer it took, a cross
    if it failed.

    For example:
      pollux jobs show home
    """

    async def question(operations: OperationsProtocol) -> JobDetails:
        [row], spoilt = await _rows(operations, (await operations.jobs.get_job(job_id),))
        say_unreadable(spoilt, "run")
        live = await _live_of(operations, job_id)
        has_versions = len(await operations.versions.list_versions()) > 1
        return JobDetails(row, tuple(live), await operations.status.why(job_id), has_versions)

    print_job(ask(existing_store(StoreChoice(config, store)), question), as_json=as_json)


@jobs.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=job_ids)
@job_filter_options
@click.option("--anyway", is_flag=True, help="Also if another run of it is in the way.")
@click.option("--params", metavar="JSON", help="Laid over the job's own params.")
@json_option
@store_options
def run(
    ids: tuple[str, ...],
    params: str | None,
    config: str | None,
    store: str | None,
    *,
    anyway: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Run jobs now, whatever their schedule or a pause says.  By id, or by what they are.

    For example:
      pollux jobs run home
      pollux jobs run report --params '{"day": "2026-11-30"}'
      pollux jobs run --group edge
    """
    choice, payload = choice_of("job", ids, given), params_of(params)
    url = existing_store(StoreChoice(config, store))
    chosen = chosen_jobs(url, choice, verb="run")
    if len(choice.ids) == 1:  # what stands against it is the answer
        made = [ask(url, lambda operations: run_one(operations, chosen[0], payload, anyway=anyway))]
    else:
        made = in_batches(
            url, chosen, lambda operations, batch: _run_each(operations, batch, payload, anyway=anyway), doing="running"
        )
    refused = [each._asdict() for each in made if isinstance(each, JobRefusal)]
    if as_json:
        print_json({"runs": [each for each in made if not isinstance(each, JobRefusal)], "refused": refused})
    else:
        for each in made:
            if isinstance(each, JobRefusal):
                click.echo(f"job {each.id}: {each.why}", err=True)
            else:
                says = f"run {each.id} of job {each.job_id} is {each.state.value}"
                click.echo(f"{says}; see it with `pollux runs show {each.id}`" if len(made) == 1 else says)
        _say_none(made)
    if made:
        ask(url, say_drained)
    return FAILED if refused else 0


@jobs.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=job_ids)
@job_filter_options
@click.option("--reason", default="", help="Kept with the cancelled runs.")
@json_option
@store_options
def cancel(
    ids: tuple[str, ...], reason: str, config: str | None, store: str | None, *, as_json: bool, **given: Any
) -> None:
    """Cancel all live runs of jobs: waiting ones at once, running ones by request.  Their schedules stay.

    For example:
      pollux jobs cancel home --reason "wrong params"
      pollux jobs cancel --target db-1
    """
    choice = choice_of("job", ids, given)
    url = existing_store(StoreChoice(config, store))
    chosen = chosen_jobs(url, choice, verb="cancel all runs of")

    async def act(operations: OperationsProtocol, batch: list[str]) -> list[Any]:
        answers = []
        for job_id in batch:
            await operations.jobs.find_job(job_id)
            answers += await operations.runs.cancel(job_id, reason=reason)
        await say_unreadable_jobs(operations, batch)
        return answers

    answers = in_batches(url, chosen, act, doing="cancelling")
    if as_json:
        print_json({"runs": answers})
        return
    words = how_cancelled(url, answers)
    for answer in answers:
        click.echo(f"run {answer.id}: {words.get(answer.id, 'cancelled, or asked to stop')}")
    if not answers:
        click.echo(f"job {chosen[0]} has no live run" if len(chosen) == 1 else "there is no such live run")


@jobs.command()
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=job_ids)
@job_filter_options
@click.option("--reason", default="", help="Kept with the runs that are cancelled by it.")
@json_option
@store_options
def delete(
    ids: tuple[str, ...], reason: str, config: str | None, store: str | None, *, as_json: bool, **given: Any
) -> None:
    """Take jobs away.  Waiting runs are cancelled, running ones may end; finished ones stay in the history.

    A job of a file or an app is refused while a node of that lives: it would come back.  Take it out of the file, or
    pause it.  Of a source that is gone for good all jobs go by --source.

    For example:
      pollux jobs delete old-1 old-2
      pollux jobs delete --tag old
      pollux jobs delete --source code:shop
    """
    choice = choice_of("job", ids, given)
    url = existing_store(StoreChoice(config, store))
    chosen = chosen_jobs(url, choice, verb="delete")

    sources: set[str] = set()  # that may declare them again

    async def act(operations: OperationsProtocol, batch: list[str]) -> list[str]:
        before = await operations.jobs.jobs_by_id(batch)
        await operations.jobs.delete_jobs(batch, reason=reason)
        sources.update(job.source for job in before if job is not None and job.declared and job.source != API_SOURCE)
        return batch

    done = in_batches(url, chosen, act, doing="deleting")
    if as_json:
        print_json({"deleted": done, "come_back_with": sorted(sources)})
    elif done:
        click.echo(f"deleted {', '.join(done) if len(done) <= LINES_MAX else counted(len(done), 'job')}")
        _say_back(sorted(sources))
    else:
        _say_none(done)


def _say_back(sources: Sequence[str]) -> None:
    from pollux.app.operations.jobs import place_of

    for source in sources:
        what = f"what {place_of(source)} declares comes back when a node of it is started: take it out there, too"
        click.echo(what, err=True)


class JobRefusal(NamedTuple):
    id: str
    why: str


async def run_one(
    operations: OperationsProtocol, job_id: str, params: dict[str, Any] | None = None, *, anyway: bool = False
) -> Any:
    """A run of a job now; what stands against it names the command that goes over it."""
    from pollux.app.operations.runs import ANYWAY

    try:
        return await operations.runs.run_now(job_id, params, anyway=anyway)
    except Conflict as error:
        raise Conflict(error.what, cure=error.cure.replace(ANYWAY, f"`pollux jobs run {job_id} --anyway`")) from None


async def _run_each(
    operations: OperationsProtocol, batch: list[str], params: dict[str, Any] | None, *, anyway: bool
) -> list[Any]:
    """A run of each; one that is refused keeps nobody else from running."""
    made: list[Any] = []
    for job_id in batch:
        try:
            made.append(await run_one(operations, job_id, params, anyway=anyway))
        except (Conflict, NotFound, InvalidInput, StoreFull) as error:
            made.append(JobRefusal(job_id, str(error)))
        except StoreError as error:  # from a node it is of no closer class
            if not isinstance(await operations.jobs.find_job(job_id), Unreadable):
                raise
            made.append(JobRefusal(job_id, str(error)))
    return made


def _say_none(done: Sequence[Any]) -> None:
    if not done:
        click.echo("there are no such jobs")


async def _rows(
    operations: OperationsProtocol, found: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Unreadable, ...]]:
    """Rows as the live table has them, and the live runs that cannot be read."""
    from pollux.app.operations.status import live_by_job, live_runs, rows_of, told_by

    at_ms = now_ms()
    live = await live_runs(operations.runs, job_id=found[0].id if len(found) == 1 else None)
    rows = rows_of(
        found,
        live=live_by_job(live.runs, at_ms),
        stops=await operations.pauses.stops(),
        nodes=await operations.status.nodes(),
        progress=told_by(live.runs),
        now_ms=at_ms,
    )
    return rows, live.unreadable


async def _live_of(operations: OperationsProtocol, job_id: str) -> Sequence[Any]:
    from pollux.model import LIVE
    from pollux.store.contract import RunFilter

    page = await operations.runs.list_runs(RunFilter(states=tuple(sorted(LIVE)), job_id=job_id), limit=LINES_MAX)
    runs: Sequence[Any] = page.runs
    return runs


jobs.add_command(move)
