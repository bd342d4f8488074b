"""`pollux jobs`: which jobs are there, and what about one of them?"""

from __future__ import annotations

import json
from typing import Any

import click

from pollux.cli.commands import Listing
from pollux.cli.options import Where, ask, existing_store, json_option, page_options, store_options
from pollux.cli.show import ago, full, moment, now_ms, print_json, print_more, print_pairs, print_table, span
from pollux.errors import InvalidInput
from pollux.units import format_ms

LIVE_MAX = 1_000  # live runs that are looked at for the column "held"


@click.group(cls=Listing)
def jobs() -> None:
    """List jobs, show one, run it now, pause, resume, cancel, delete it.

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
@click.option("--text", help="With this text in the id or name.")
@page_options
@json_option
@store_options
def ls(
    group: str | None,
    target: str | None,
    tag: str | None,
    text: str | None,
    limit: int,
    after: str | None,
    config: str | None,
    store: str | None,
    *,
    as_json: bool,
) -> None:
    """List jobs: schedule, last outcome, next due, and what holds them up.

    For example:
      pollux jobs ls --text api
      pollux jobs ls --target db-1 --limit 20
    """
    from pollux.store.contract import JobFilter

    where = JobFilter(group=group, target=target, tag=tag, text=text)
    rows, cursor = ask(existing_store(Where(config, store)), lambda app: job_rows(app, where, after, limit))
    if as_json:
        print_json({"jobs": [_row_json(row) for row in rows], "next": cursor})
        return
    now = now_ms()
    print_table(
        ("id", "schedule", "last", "when", "fresh", "next due", "held"),
        (
            (
                row.job.id,
                row.schedule,
                row.last or "-",
                ago(row.job.memory.last_end_ms, now=now),
                f"{row.freshness.score:.0%}" if row.freshness.age_ms is not None else "-",
                ago(row.next_due_ms, now=now) or "-",
                row.held,
            )
            for row in rows
        ),
    )
    if not rows:
        click.echo("there are no such jobs", err=True)
    print_more(cursor)


@jobs.command()
@click.argument("job_id", metavar="ID")
@json_option
@store_options
def show(job_id: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Show one job in full: what it is, how it went, what comes next.

    For example:
      pollux jobs show home
    """

    async def question(app: Any) -> tuple[Any, Any]:
        [row] = await _rows(app, (await app.get_job(job_id),))
        return row, await app.why(job_id)

    row, why = ask(existing_store(Where(config, store)), question)
    if as_json:
        print_json({"job": _row_json(row), "why": why})
        return
    job, memory, now = row.job, row.job.memory, now_ms()
    skipped = ", ".join(f"{count} ({reason})" for reason, count in memory.skips.items())
    print_pairs(
        (
            ("id", job.id),
            ("name", job.name),
            ("handler", job.handler),
            ("params", json.dumps(full(job.params), ensure_ascii=False) if job.params else ""),
            ("schedule", row.schedule),
            ("enabled", "" if job.enabled else "no"),
            ("priority", {1: "high", 2: "normal", 3: "low"}[job.priority]),
            ("group", job.group),
            ("target", job.target),
            ("tags", ", ".join(job.tags)),
            ("timeout", format_ms(job.timeout_ms)),
            ("attempts", job.retry.attempts_max),
            ("overlap", job.overlap.value),
            ("misfire", job.misfire.value),
            ("source", f"{job.source}, release {job.release}" if job.release else job.source),
            ("revision", job.revision),
            ("next due", _both(job.next_due_ms, now)),
            ("last due", _both(job.last_due_ms, now)),
            ("last run", f"{row.last or 'none'} {_both(memory.last_end_ms, now)}".strip()),
            ("took", span(memory.duration_ms) if memory.last_end_ms else ""),
            ("runs ended", memory.ended),
            ("failures in a row", memory.failures or ""),
            ("last success", _both(memory.last_success_ms, now)),
            ("last change", _both(memory.last_change_ms, now)),
            ("last error", f"{_both(memory.last_error_ms, now)}: {memory.last_error}" if memory.last_error_ms else ""),
            ("skipped", skipped),
            ("now", why.reason),
            ("cure", why.cure),
        )
    )


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--anyway", is_flag=True, help="Also if a run of it is live.")
@click.option("--params", metavar="JSON", help="Laid over the job's own params.")
@json_option
@store_options
def run(job_id: str, params: str | None, config: str | None, store: str | None, *, anyway: bool, as_json: bool) -> None:
    """Run a job now, whatever its schedule or a pause says.

    For example:
      pollux jobs run home
      pollux jobs run report --params '{"day": "2026-11-30"}'
    """
    given = params_of(params)
    made = ask(existing_store(Where(config, store)), lambda app: app.run_now(job_id, given, anyway=anyway))
    if as_json:
        print_json({"run": made})
    else:
        click.echo(f"run {made.id} of job {job_id} is {made.state.value}; see it with `pollux runs show {made.id}`")


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--for", "duration", metavar="DURATION", help="Like 30m or 2h; without it until resumed.")
@click.option("--reason", default="", help="Shown to everybody who asks why.")
@store_options
def pause(job_id: str, duration: str | None, reason: str, config: str | None, store: str | None) -> None:
    """Stop a job for a while or until it is resumed; it keeps its definition and memory.

    For example:
      pollux jobs pause home --for 1h --reason "moving house"
    """
    url = existing_store(Where(config, store))
    ask(url, lambda app: app.pause(job_id, reason=reason, duration=duration))
    click.echo(f"job {job_id} is paused{f' for {duration}' if duration else ''}; `pollux jobs resume {job_id}` ends it")


@jobs.command()
@click.argument("job_id", metavar="ID")
@store_options
def resume(job_id: str, config: str | None, store: str | None) -> None:
    """End a job's pause.

    For example:
      pollux jobs resume home
    """
    was_paused = ask(existing_store(Where(config, store)), lambda app: app.resume(job_id))
    click.echo(f"job {job_id} {'goes on' if was_paused else 'was not paused'}")


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--reason", default="", help="Kept with the cancelled runs.")
@json_option
@store_options
def cancel(job_id: str, reason: str, config: str | None, store: str | None, *, as_json: bool) -> None:
    """Cancel all live runs of a job: waiting ones at once, running ones by request.  Its schedule stays.

    For example:
      pollux jobs cancel home --reason "wrong params"
    """

    async def question(app: Any) -> Any:
        await app.get_job(job_id)
        return await app.cancel(job_id, reason=reason)

    answers = ask(existing_store(Where(config, store)), question)
    if as_json:
        print_json({"runs": answers})
    elif not answers:
        click.echo(f"job {job_id} has no live run")
    for answer in () if as_json else answers:
        click.echo(f"run {answer.id}: cancelled, or asked to stop")


@jobs.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with the runs that are cancelled by it.")
@store_options
def delete(job_ids: tuple[str, ...], reason: str, config: str | None, store: str | None) -> None:
    """Take jobs away.  Waiting runs are cancelled, running ones may end; finished ones stay in the history.

    A job of a file or an app comes back with its next start: take it away there, too.

    For example:
      pollux jobs delete old-1 old-2
    """
    ask(existing_store(Where(config, store)), lambda app: app.delete_jobs(job_ids, reason=reason))
    click.echo(f"deleted {', '.join(job_ids)}")


def params_of(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        params = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--params is no JSON: {error}", cure="""write it like --params '{"depth": 2}'""") from error
    if not isinstance(params, dict):
        raise InvalidInput("--params is no JSON object", cure="""write it like --params '{"depth": 2}'""")
    return params


async def job_rows(app: Any, where: Any, after: str | None, limit: int) -> tuple[Any, str | None]:
    page = await app.list_jobs(where, after=after, limit=limit)
    return await _rows(app, page.jobs), page.next


async def _rows(app: Any, found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rows as the live table has them; what running handlers say of their progress is known in their process only."""
    from pollux.app.overview import rows_of
    from pollux.model import LIVE
    from pollux.store.contract import RunFilter

    states = tuple(sorted(LIVE))
    alone = found[0].id if len(found) == 1 else None
    live = await app.list_runs(RunFilter(states=states, job_id=alone), limit=LIVE_MAX)
    return rows_of(
        found,
        live={run.job_id: run for run in live.runs},
        stops=await app.stops(),
        nodes=await app.nodes(),
        progress={},
        now_ms=now_ms(),
    )


def _row_json(row: Any) -> dict[str, Any]:
    job: dict[str, Any] = full(row.job)
    return job | {
        "schedule_text": row.schedule,
        "last": row.last,
        "freshness": full(row.freshness),
        "held": row.held,
    }


def _both(ms: int | None, now: int) -> str:
    return "" if ms is None else f"{moment(ms)} ({ago(ms, now=now)})"
