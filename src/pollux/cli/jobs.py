"""`pollux jobs`: list, show, run, cancel and delete jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pollux.cli.command_table import FAILED
from pollux.cli.completion import job_ids
from pollux.cli.enqueue import params_of
from pollux.cli.options import json_option, page_options, store_options
from pollux.cli.output import (
    Columns,
    ago,
    clean,
    full,
    moment,
    now_ms,
    print_block,
    print_items,
    print_json,
    print_page_end,
    print_pairs,
    print_unreadable,
    span,
    sparkline,
    unreadable_json,
)
from pollux.cli.pause import drain_warnings
from pollux.cli.runner import ListingGroup
from pollux.cli.runs import PRIORITIES, state_words
from pollux.cli.selection import (
    LINES_MAX,
    Selection,
    chosen_jobs,
    how_cancelled,
    in_batches,
    job_filter,
    print_unreadable_jobs,
    selecting,
)
from pollux.cli.target import StoreChoice
from pollux.cli.versions import move
from pollux.errors import Conflict, InvalidInput, NotFound, StoreError, StoreFull, Unreadable
from pollux.model import API_SOURCE, LIVE, Job, Memory, Run
from pollux.store.contract import JobFilter, JobPage, RunAnswer, RunFilter
from pollux.units import counted, format_ms

if TYPE_CHECKING:
    from pollux.app import JobRow, OperationsProtocol
    from pollux.app.operations.status import JobHistory


@click.group(cls=ListingGroup)
def jobs() -> None:
    """List jobs, show one, run some now, cancel, delete, move them; `pollux pause` stops some.

    For example:
      pollux jobs                       all, a page at a time
      pollux jobs --group edge --json   those of a group, for a program
      pollux jobs show home             one, in full
      pollux jobs run home              now, whatever its schedule
    """


@jobs.command("ls")
@job_filter
@page_options
@json_option
@store_options
def ls(limit: int, after: str | None, where: StoreChoice, *, as_json: bool, **parts: Any) -> None:
    """List jobs: schedule, last outcome, next due, and what they do or what holds them up.

    For example:
      pollux jobs ls --text api
      pollux jobs ls --target db-1 --limit 20
    """
    selected = JobFilter(**parts)

    async def read(operations: OperationsProtocol) -> tuple[JobPage, Sequence[JobRow], Sequence[Unreadable], bool]:
        page = await operations.jobs.list_jobs(selected, after=after, limit=limit)
        return page, *await _rows(operations, page.jobs), len(await operations.versions.list_versions()) > 1

    page, rows, spoilt, has_versions = where.ask(read)
    if as_json:
        unreadable = {"unreadable": unreadable_json(page.unreadable), "unreadable_runs": unreadable_json(spoilt)}
        print_json({"jobs": [row_json(row) for row in rows], "next": page.next, **unreadable})
        return
    print_items(rows, _columns(now_ms(), has_versions=has_versions))
    print_unreadable(spoilt, "run")
    is_all = selected == JobFilter() and after is None
    print_page_end(page, kind="job", none="there are no jobs" if is_all else "there are no such jobs")


def _columns(now: int, *, has_versions: bool) -> Columns[JobRow]:
    version: Columns[JobRow] = {"version": lambda row: row.job.scheduler_version}
    return {
        "id": lambda row: row.job.id,
        **(version if has_versions else {}),
        "schedule": lambda row: row.schedule,
        "last": lambda row: row.last or "-",
        "ended": lambda row: ago(row.job.memory.last_end_ms, now=now),
        "fresh": lambda row: f"{row.freshness.score:.0%}" if row.freshness.age_ms is not None else "-",
        "next due": lambda row: ago(row.next_due_ms, now=now) or "-",
        "now": _now,
    }


def _now(row: JobRow) -> str:
    """What it does, what holds it up, or that it fails; the reason of a hold names a failure, too."""
    return row.held or row.progress or row.failing or ("running" if row.answer == "running" else "")


@jobs.command()
@click.argument("job_id", metavar="ID", shell_complete=job_ids)
@json_option
@store_options
def show(job_id: str, where: StoreChoice, *, as_json: bool) -> None:
    """Show one job in full: what it is, how it went, what it does now, what comes next.

    The line of its latest runs has one character each, the newest on the right: the higher the longer it took, a cross
    if it failed.

    For example:
      pollux jobs show home
    """

    async def read(operations: OperationsProtocol) -> JobDetails:
        [row], spoilt = await _rows(operations, (await operations.jobs.get_job(job_id),))
        print_unreadable(spoilt, "run")
        live = await _live_of(operations, job_id)
        has_versions = len(await operations.versions.list_versions()) > 1
        return JobDetails(row, live, await operations.status.why(job_id), has_versions)

    print_job(where.ask(read), as_json=as_json)


@jobs.command()
@selecting("job", job_filter)
@click.option("--anyway", is_flag=True, help="Also if another run of it is in the way.")
@click.option("--params", metavar="JSON", help="Laid over the job's own params.")
@json_option
@store_options
def run(choice: Selection, params: str | None, where: StoreChoice, *, anyway: bool, as_json: bool) -> int:
    """Run jobs now, in spite of their schedule or a pause.  By id, or by filter.

    For example:
      pollux jobs run home
      pollux jobs run report --params '{"day": "2026-11-30"}'
      pollux jobs run --group edge
    """
    payload = params_of(params)

    async def run_all(operations: OperationsProtocol) -> tuple[list[Run | JobRefusal], list[str]]:
        async def act(batch: list[str]) -> list[Run | JobRefusal]:
            return [await _run_or_refusal(operations, job_id, payload, anyway=anyway) for job_id in batch]

        chosen = await chosen_jobs(operations, choice, verb="run")
        if len(choice.ids) == 1:  # its refusal is the answer
            made: list[Run | JobRefusal] = [await run_one(operations, chosen[0], payload, anyway=anyway)]
        else:
            made = await in_batches(chosen, act, doing="running")
        return made, await drain_warnings(operations) if made else []

    made, warnings = where.ask(run_all)
    refused = [each._asdict() for each in made if isinstance(each, JobRefusal)]
    if as_json:
        print_json({"runs": [each for each in made if not isinstance(each, JobRefusal)], "refused": refused})
    else:
        for each in made:
            if isinstance(each, JobRefusal):
                click.echo(f"job {each.id}: {each.why}", err=True)
            else:
                words = f"run {each.id} of job {each.job_id} is {each.state.value}"
                click.echo(f"{words}; see it with `pollux runs show {each.id}`" if len(made) == 1 else words)
        _print_none(made)
    for words in warnings:
        click.echo(words, err=True)
    return FAILED if refused else 0


@jobs.command()
@selecting("job", job_filter)
@click.option("--reason", default="", help="Kept with the cancelled runs.")
@json_option
@store_options
def cancel(choice: Selection, reason: str, where: StoreChoice, *, as_json: bool) -> None:
    """Cancel all live runs of jobs: waiting ones at once, running ones by request.  Their schedules stay.

    For example:
      pollux jobs cancel home --reason "wrong params"
      pollux jobs cancel --target db-1
    """

    async def cancelled(operations: OperationsProtocol) -> tuple[list[str], list[RunAnswer], dict[str, str]]:
        async def act(batch: list[str]) -> list[RunAnswer]:
            answers = []
            for job_id in batch:
                await operations.jobs.find_job(job_id)
                answers += await operations.runs.cancel(job_id, reason=reason)
            await print_unreadable_jobs(operations, batch)
            return answers

        chosen = await chosen_jobs(operations, choice, verb="cancel all runs of")
        answers = await in_batches(chosen, act, doing="cancelling")
        return chosen, answers, {} if as_json else await how_cancelled(operations, answers)

    chosen, answers, words = where.ask(cancelled)
    if as_json:
        print_json({"runs": answers})
        return
    for answer in answers:
        click.echo(f"run {answer.id}: {words.get(answer.id, 'cancelled, or asked to stop')}")
    if not answers:
        click.echo(f"job {chosen[0]} has no live run" if len(chosen) == 1 else "there is no such live run")


@jobs.command()
@selecting("job", job_filter)
@click.option("--reason", default="", help="Kept with the runs that are cancelled by it.")
@json_option
@store_options
def delete(choice: Selection, reason: str, where: StoreChoice, *, as_json: bool) -> None:
    """Delete jobs.  Waiting runs are cancelled, running ones may end; finished ones stay in the history.

    A job of a file or an app is refused while a node of that lives: it would come back.  Take it out of the file, or
    pause it.  --source deletes all jobs of a source that was removed for good.

    For example:
      pollux jobs delete old-1 old-2
      pollux jobs delete --tag old
      pollux jobs delete --source code:shop
    """
    from pollux.app.operations.jobs import place_of

    sources: set[str] = set()  # that may declare them again

    async def deleted(operations: OperationsProtocol) -> list[str]:
        async def act(batch: list[str]) -> list[str]:
            before = await operations.jobs.jobs_by_id(batch)
            await operations.jobs.delete_jobs(batch, reason=reason)
            found = (job for job in before if job is not None and job.declared)
            sources.update(job.source for job in found if job.source != API_SOURCE)
            return batch

        return await in_batches(await chosen_jobs(operations, choice, verb="delete"), act, doing="deleting")

    done = where.ask(deleted)
    if as_json:
        print_json({"deleted": done, "come_back_with": sorted(sources)})
    elif done:
        click.echo(f"deleted {', '.join(done) if len(done) <= LINES_MAX else counted(len(done), 'job')}")
        for source in sorted(sources):
            what = f"what {place_of(source)} declares comes back when a node of it is started: take it out there, too"
            click.echo(what, err=True)
    else:
        _print_none(done)


class JobRefusal(NamedTuple):
    id: str
    why: str


async def run_one(
    operations: OperationsProtocol, job_id: str, params: dict[str, Any] | None = None, *, anyway: bool = False
) -> Run:
    """A run of a job now; a `Conflict` names the command that runs it all the same."""
    from pollux.app.operations.runs import ANYWAY

    try:
        return await operations.runs.run_now(job_id, params, anyway=anyway)
    except Conflict as error:
        raise Conflict(error.what, cure=error.cure.replace(ANYWAY, f"`pollux jobs run {job_id} --anyway`")) from None


async def _run_or_refusal(
    operations: OperationsProtocol, job_id: str, params: dict[str, Any] | None, *, anyway: bool
) -> Run | JobRefusal:
    try:
        return await run_one(operations, job_id, params, anyway=anyway)
    except (Conflict, NotFound, InvalidInput, StoreFull) as error:
        return JobRefusal(job_id, str(error))
    except StoreError as error:  # of a node it is of no closer class
        if not isinstance(await operations.jobs.find_job(job_id), Unreadable):
            raise
        return JobRefusal(job_id, str(error))


def _print_none(done: Sequence[Any]) -> None:
    if not done:
        click.echo("there are no such jobs")


async def _rows(
    operations: OperationsProtocol, found: Sequence[Job]
) -> tuple[tuple[JobRow, ...], tuple[Unreadable, ...]]:
    """Rows as the live table has them, and the live runs that cannot be read."""
    from pollux.app.operations.status import live_by_job, live_runs, progress_by_job, rows_of

    at_ms = now_ms()
    live = await live_runs(operations.runs, job_id=found[0].id if len(found) == 1 else None)
    rows = rows_of(
        found,
        live=live_by_job(live.runs, at_ms),
        stops=await operations.pauses.stops(),
        nodes=await operations.status.nodes(),
        progress=progress_by_job(live.runs),
        now_ms=at_ms,
    )
    return rows, live.unreadable


async def _live_of(operations: OperationsProtocol, job_id: str) -> tuple[Run, ...]:

    return (await operations.runs.list_runs(RunFilter(states=tuple(sorted(LIVE)), job_id=job_id), limit=LINES_MAX)).runs


jobs.add_command(move)

# the page of one job


class JobDetails(NamedTuple):
    row: JobRow  # as in the list
    live: tuple[Run, ...]
    why: Any
    has_versions: bool  # there is more than one on the store


def print_job(shown: JobDetails, *, as_json: bool) -> None:
    from pollux.app.operations.status import history_of

    history = history_of(shown.row.job)
    if as_json:
        figures = full(history) | {"success_rate": history.success_rate}
        print_json({"job": row_json(shown.row), "why": shown.why, "history": figures, "live": shown.live})
        return
    now = now_ms()
    version = (("version", shown.row.job.scheduler_version),) if shown.has_versions else ()
    present = (
        ("next due", _moment_and_age(shown.row.job.next_due_ms, now)),
        ("progress", shown.row.progress),
        ("now", clean(shown.why.reason)),
        ("cure", shown.why.cure),
    )
    print_pairs((*_definition(shown.row), *version, *_past(shown.row, history, now), *present))
    print_block("live runs", (f"{run.id}  {state_words(run)}" for run in shown.live))


def row_json(row: JobRow) -> dict[str, Any]:
    """A job with the columns of the list that are not its own."""
    job: dict[str, Any] = full(row.job)
    return job | {
        "schedule_text": row.schedule,
        "state": row.state,
        "last": row.last,
        "freshness": full(row.freshness),
        "held": row.held,
        "progress": row.progress,
        "failing": row.failing,
    }


def _definition(row: JobRow) -> tuple[tuple[str, Any], ...]:
    job = row.job
    return (
        ("id", job.id),
        ("name", job.name),
        ("handler", job.handler),
        ("params", json.dumps(full(job.params), ensure_ascii=False) if job.params else ""),
        ("schedule", row.schedule),
        ("enabled", "" if job.enabled else "no"),
        ("priority", PRIORITIES[job.priority]),
        ("group", job.group),
        ("target", job.target),
        ("tags", ", ".join(job.tags)),
        ("timeout", format_ms(job.timeout_ms)),
        ("attempts", job.retry.attempts_max),
        ("overlap", job.overlap.value),
        ("misfire", job.misfire.value),
        ("isolate", job.isolate.value),
        ("source", f"{job.source}, release {job.release}" if job.release else job.source),
        ("revision", job.revision),
    )


def _past(row: JobRow, history: JobHistory, now: int) -> tuple[tuple[str, Any], ...]:
    memory = row.job.memory
    fresh = row.freshness
    planned = f", planned every {span(fresh.planned_ms)}" if fresh.planned_ms else ""
    return (
        ("runs ended", memory.ended),
        ("latest", sparkline([mark.at_most_ms for mark in history.marks], [mark.failed for mark in history.marks])),
        ("succeeded", _rate(history)),
        ("took", _durations(memory, history)),
        ("last run", f"{row.last or 'none'} {_moment_and_age(memory.last_end_ms, now)}".strip()),
        ("failures in a row", memory.failures or ""),
        ("failing since", _moment_and_age(row.failing_since_ms, now)),
        ("fresh", f"{fresh.score:.0%} ({span(fresh.age_ms)} old{planned})" if fresh.age_ms is not None else ""),
        ("last success", _moment_and_age(memory.last_success_ms, now)),
        ("last change", _moment_and_age(memory.last_change_ms, now)),
        (
            "last error",
            f"{_moment_and_age(memory.last_error_ms, now)}: {memory.last_error}" if memory.last_error_ms else "",
        ),
        ("skipped", ", ".join(f"{count} ({reason})" for reason, count in memory.skips.items())),
        ("last due", _moment_and_age(row.job.last_due_ms, now)),
    )


def _rate(history: JobHistory) -> str:
    count = len(history.marks)
    if not count:
        return ""
    share = f"{history.succeeded} of the latest {count} ({history.success_rate:.0%})"
    return f"{share}; {history.changed} of them found a change"


def _durations(memory: Memory, history: JobHistory) -> str:
    if memory.last_end_ms is None:
        return ""
    usual = f"; half within {span(history.p50_ms)}, 95% within {span(history.p95_ms)}" if history.marks else ""
    return f"{span(memory.duration_ms)}{usual}"


def _moment_and_age(ms: int | None, now: int) -> str:
    return "" if ms is None else f"{moment(ms)} ({ago(ms, now=now)})"
