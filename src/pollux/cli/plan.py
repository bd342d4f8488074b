"""`pollux plan`: the firings of the next hours, and how many fall into one minute."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pollux.cli.histogram import picture
from pollux.cli.options import (
    StoreChoice,
    app_option,
    app_said,
    ask_target,
    config_path,
    existing_store,
    find_code_here,
    json_option,
    store_lacks,
    with_own_code,
)
from pollux.cli.output import ago, clean, clock, local_zone, now_ms, print_json, print_table, say_unreadable, span
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import node_url, url_options
from pollux.errors import InvalidInput
from pollux.units import counted, duration_ms, format_moment, moment_ms, zone_of

if TYPE_CHECKING:
    from pollux.app.forecast import ForecastInput
    from pollux.cli.target import Target

NAMED = 5  # jobs of each kind that are named on one line

_KINDS = {
    "paused": "paused: their due times are skipped",
    "undeclared": "declared by nobody: their due times are skipped",
    "disabled": "disabled",
    "broken": "without a schedule that works",
    "asked": "run when asked",
    "over": "over: once-jobs that have fired",
}


class ForecastBasis(NamedTuple):
    """What the forecast is made of."""

    words: str
    jobs: Any
    known: Any
    seats: int
    is_stored: bool


@click.command(cls=TeachingCommand)
@click.option("-c", "--config", envvar="POLLUX_CONFIG", metavar="FILE", help="The config; else ./pollux.yaml.")
@app_option("A Pollux of your own code.")
@click.option("--store", metavar="URL", help="What is stored there; also POLLUX_STORE.")
@click.option("--for", "duration", default="6h", show_default=True, metavar="DURATION", help="How far to look.")
@click.option("--at", metavar="MOMENT", help="From then on, like 2030-03-31T00:00:00+01:00; without it from now on.")
@click.option("--tz", metavar="ZONE", help="Show times in this zone instead of the machine's.")
@click.option("--job", "job_id", metavar="ID", help="Only this job.")
@click.option("--group", metavar="G", help="Only jobs of this group.")
@click.option("--target", metavar="T", help="Only jobs of this target.")
@click.option("--tag", metavar="TAG", help="Only jobs with this tag.")
@click.option("--limit", type=click.IntRange(0, 10_000), default=20, show_default=True, help="Firings listed at most.")
@json_option
@url_options
def plan(
    config: str | None,
    store: str | None,
    duration: str,
    at: str | None,
    tz: str | None,
    limit: int,
    *,
    as_json: bool,
    **choice: str | None,
) -> None:
    """Show what fires in the next hours: the first firings, and how many there are per minute.

    Of a file or an app that was never started, as if it were started now; of one whose store is there, as if it were
    started on it; with --store, of what is stored.  All firings are counted, however many; nothing is changed.

    For example:
      pollux plan -c pollux.yaml
      pollux plan --app monitor:app
      pollux plan --for 24h --tz Europe/Berlin
      pollux plan --store sqlite:///pollux.db --group edge --json
      pollux plan -c pollux.yaml --at 2030-03-31T00:00:00+01:00 --for 6h
    """
    from pollux.app.forecast import foretell

    zone = local_zone() if tz is None else tz
    zone_of(zone)
    now = now_ms()
    basis = _basis(config, store, now if at is None else moment_ms(at))
    start, end = _window(at, duration, now, is_stored=basis.is_stored)
    told = foretell(
        basis.jobs,
        basis.known,
        now_ms=now if basis.is_stored else start,
        from_ms=start,
        to_ms=end,
        rows_max=limit,
        zones=(zone,),
        choose=_chooser(**choice),
    )
    if as_json:
        print_json(_as_json(told, basis, zone))
        return
    _print(told, basis, zone)


def _basis(config: str | None, store: str | None, start: int) -> ForecastBasis:
    """Whose jobs, and placed how?"""
    is_asked = bool(store or node_url(store))  # what is stored is meant, whatever file lies here
    path, app = config if is_asked and not config else config_path(config), app_said()
    if path is None and (is_asked or not app):
        known, name = _known(StoreChoice(None, store))
        return ForecastBasis(f"stored in {name}", known.jobs, known, known.seats, is_stored=True)
    from pollux.app.forecast import NOTHING, declared_by, laid_over
    from pollux.config import load_config

    find_code_here()
    loaded = load_config(path, environ=os.environ, arguments={"store": store, "app": app})
    own, origin = with_own_code(loaded), path or loaded.app
    declared = declared_by(loaded)
    if not node_url(store) and (own.store.startswith("memory:") or store_lacks(own.store)):
        jobs = laid_over((), declared, now_ms=start)
        return ForecastBasis(f"{origin}, started then on an empty store", jobs, NOTHING, own.seats, is_stored=False)
    known, name = _known(StoreChoice(path, store))
    jobs = laid_over(known.jobs, declared, now_ms=now_ms())
    return ForecastBasis(f"{origin}, started now on {name}", jobs, known, known.seats or own.seats, is_stored=True)


def _known(where: StoreChoice) -> tuple[ForecastInput, str]:
    """What the store knows, and its name."""
    from pollux.app.forecast import known_of

    async def question(target: Target) -> tuple[ForecastInput, str]:
        return await known_of(target.operations), target.store_url

    known, name = ask_target(existing_store(where), question)
    say_unreadable(known.unreadable)
    return known, name


def _window(at: str | None, duration: str, now: int, *, is_stored: bool) -> tuple[int, int]:
    start, length = now if at is None else moment_ms(at), duration_ms(duration)
    if length == 0:
        raise InvalidInput("a window of nothing has no firings", where="--for", cure="give a duration, like 6h")
    if is_stored and start < now:
        what = f"{at} is past, and a store plans from now on"
        raise InvalidInput(what, where="--at", cure="give a moment to come; what was is in `pollux runs`")
    return start, start + length


def _chooser(
    job_id: str | None, group: str | None, target: str | None, tag: str | None
) -> Callable[[Any], bool] | None:
    if job_id is None and group is None and target is None and tag is None:
        return None

    def choose(job: Any) -> bool:
        return (
            job_id in (None, job.id)
            and group in (None, job.group)
            and target in (None, job.target)
            and (tag is None or tag in job.tags)
        )

    return choose


# for people


def _print(told: Any, basis: ForecastBasis, zone: str) -> None:
    jobs, firings = counted(len(basis.jobs), "job"), counted(told.total, "time")
    click.echo(clean(f"{basis.words}: {told.jobs} of {jobs} fire {firings}"))
    click.echo(_window_words(told, zone))
    if told.firings:
        click.echo()
        local = () if zone == "UTC" else (zone,)
        notes = any(row.at_ms != row.due_ms for row in told.firings)
        columns = (*local, "utc", "job", "schedule", *(("note",) if notes else ()))
        print_table(columns, (_row(row, zone)[: len(columns)] for row in told.firings))
        more = told.total - len(told.firings)
        if more:
            click.echo(f"and {more} more in this window")
    if told.total:
        click.echo(f"\nfirings per {span(told.bucket_ms)}, in {zone}:")
        for line in picture(told, zone):
            click.echo(line)
        click.echo(_peak(told, basis, zone))
    for line in _remarks(told, basis):
        click.echo(clean(line))


def _window_words(told: Any, zone: str) -> str:
    length = span(told.to_ms - told.from_ms)
    words = f"from {clock(told.from_ms, zone)} to {clock(told.to_ms, zone)} {zone}, {length}"
    if zone == "UTC":
        return words
    return f"{words} ({format_moment(_second(told.from_ms))} to {format_moment(_second(told.to_ms))})"


def _row(row: Any, zone: str) -> tuple[str, ...]:
    note = "" if row.at_ms == row.due_ms else f"was due {ago(row.due_ms, now=row.at_ms)}"
    local = () if zone == "UTC" else (clock(row.at_ms, zone),)
    return (*local, format_moment(_second(row.at_ms)), row.job_id, row.schedule, note)


def _second(ms: int) -> int:
    return ms - ms % 1_000


def _peak(told: Any, basis: ForecastBasis, zone: str) -> str:
    peak = told.peak
    start = max(told.from_ms, told.start_ms + peak * told.bucket_ms)
    words = f"peak at {clock(start, zone)}: {counted(told.counts[peak], 'firing')} in {span(told.bucket_ms)}"
    if told.untimed == told.jobs:
        return f"{words}; how many seats that needs is known once they have run"
    need = told.seats(peak)
    words += f", work for {counted(need, 'seat')} by the last durations"
    if told.untimed:
        words += f" ({told.untimed} of the jobs {'has' if told.untimed == 1 else 'have'} not run yet)"
    return f"{words}; there: {counted(basis.seats, 'seat')}" if basis.seats else f"{words}; no node lives"


def _remarks(told: Any, basis: ForecastBasis) -> Iterator[str]:
    """What else should be known: jumps of the clocks, what is late, what stays quiet, what is held."""
    for change in told.changes:
        way = "forward" if change.by_ms > 0 else "back"
        yield f"! the clocks of {change.tz} go {way} by {span(abs(change.by_ms))} at {format_moment(change.at_ms)}"
    if told.late:
        yield f"! overdue: {counted(told.late, 'firing')}; they come as soon as a node leads, at a bounded pace"
    for quiet in told.quiet:
        some = ", ".join(silent.job_id for silent in quiet.some[:NAMED]) + (", ..." if quiet.count > NAMED else "")
        yield f"{quiet.count} {_KINDS[quiet.kind]} ({some})"
        if quiet.kind in {"paused", "broken"}:
            yield from dict.fromkeys(f"    {silent.reason}" for silent in quiet.some[:NAMED])
    if basis.known.held_count:
        count = basis.known.held_count
        many = counted(count, "run") if count <= 10_000 else "more than 10,000 runs"
        yield f"held now, and coming besides: {many}"
        yield from (f"    {run.id}: {run.held_reason}" for run in basis.known.held[:NAMED])
    if basis.is_stored and not basis.known.nodes:
        yield "! no node lives on this store: nothing fires before one is started (`pollux serve`)"


# for machines


def _as_json(told: Any, basis: ForecastBasis, zone: str) -> dict[str, Any]:
    peak = told.peak
    buckets = [
        {"at_ms": told.start_ms + index * told.bucket_ms, "firings": count, "seats": told.seats(index)}
        for index, count in enumerate(told.counts)
        if count
    ]
    return {
        "basis": basis.words,
        "tz": zone,
        "from_ms": told.from_ms,
        "to_ms": told.to_ms,
        "jobs": len(basis.jobs),
        "firing_jobs": told.jobs,
        "untimed_jobs": told.untimed,
        "total": told.total,
        "overdue": told.late,
        "firings": told.firings,
        "bucket_ms": told.bucket_ms,
        "buckets": buckets,
        "peak": None
        if peak is None
        else next(b for b in buckets if b["at_ms"] == told.start_ms + peak * told.bucket_ms),
        "seats": basis.seats,
        "nodes": basis.known.nodes,
        "held": basis.known.held_count,
        "quiet": told.quiet,
        "changes": told.changes,
    }
