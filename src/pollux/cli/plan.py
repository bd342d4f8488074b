"""`pollux plan`: the firings of the next hours, and how many fall into one minute."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from pollux.cli.options import app_option, config_option, json_option, url_options
from pollux.cli.output import (
    BARS,
    PLAIN_BARS,
    ago,
    can_show,
    clean,
    clock,
    local_zone,
    now_ms,
    print_json,
    print_table,
    print_unreadable,
    span,
)
from pollux.cli.runner import TeachingCommand
from pollux.cli.selection import job_filter
from pollux.cli.target import (
    StoreChoice,
    Target,
    app_argument,
    config_path,
    find_code_here,
    node_url,
    store_lacks,
    with_own_code,
)
from pollux.config import load_config
from pollux.errors import InvalidInput
from pollux.model import Job
from pollux.store.contract import JobFilter
from pollux.store.filters import job_fits
from pollux.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, counted, duration_ms, format_moment, moment_ms, zone_of

if TYPE_CHECKING:
    from pollux.app.forecast import ComingFiring, FiringForecast, ForecastInput

NAMED = 5  # jobs of each kind that are named on one line

_KINDS = {
    "paused": "paused: their due times are skipped",
    "undeclared": "no longer declared: their due times are skipped",
    "disabled": "disabled",
    "broken": "without a schedule that works",
    "asked": "run when asked",
    "over": "over: once-jobs that have fired",
}


class ForecastBasis(NamedTuple):
    """What the forecast is made of."""

    words: str
    jobs: Sequence[Job]
    known: ForecastInput
    seats: int
    is_stored: bool


@click.command(cls=TeachingCommand)
@config_option("The config; else ./pollux.yaml.")
@app_option("A Pollux of your own code.")
@click.option("--store", metavar="URL", help="What is stored there; also POLLUX_STORE.")
@click.option("--for", "duration", default="6h", show_default=True, metavar="DURATION", help="How far to look.")
@click.option("--at", metavar="MOMENT", help="From then on, like 2030-03-31T00:00:00+01:00; without it from now on.")
@click.option("--tz", metavar="ZONE", help="Show times in this zone instead of the machine's.")
@click.option("--job", "job_id", metavar="ID", help="Only this job.")
@job_filter
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
    job_id: str | None,
    *,
    as_json: bool,
    **parts: Any,
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

    zone, selected = local_zone() if tz is None else tz, JobFilter(**parts)
    zone_of(zone)
    now = now_ms()
    basis = _basis(config, store, now if at is None else moment_ms(at))
    start, end = _window(at, duration, now, is_stored=basis.is_stored)
    forecast = foretell(
        basis.jobs,
        basis.known,
        now_ms=now if basis.is_stored else start,
        from_ms=start,
        to_ms=end,
        rows_max=limit,
        zones=(zone,),
        choose=lambda job: job_id in (None, job.id) and job_fits(job, selected),
    )
    if as_json:
        print_json(_as_json(forecast, basis, zone))
        return
    _print(forecast, basis, zone)


def _basis(config: str | None, store: str | None, start: int) -> ForecastBasis:
    """The jobs of the forecast, and from when on each is due."""
    is_asked = bool(store or node_url(store))  # what is stored is meant, whatever file lies here
    path, app = config if is_asked and not config else config_path(config), app_argument()
    if path is None and (is_asked or not app):
        known, name = _known(StoreChoice(None, store))
        return ForecastBasis(f"stored in {name}", known.jobs, known, known.seats, is_stored=True)
    from pollux.app.forecast import NOTHING, declared_by, laid_over

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

    async def read(target: Target) -> tuple[ForecastInput, str]:
        return await known_of(target.operations), target.store_url

    known, name = where.ask_target(read)
    print_unreadable(known.unreadable)
    return known, name


def _window(at: str | None, duration: str, now: int, *, is_stored: bool) -> tuple[int, int]:
    start, length = now if at is None else moment_ms(at), duration_ms(duration)
    if length == 0:
        raise InvalidInput("a window of nothing has no firings", where="--for", cure="give a duration, like 6h")
    if is_stored and start < now:
        what = f"{at} is past, and a store plans from now on"
        raise InvalidInput(what, where="--at", cure="give a moment to come; what was is in `pollux runs`")
    return start, start + length


# for people


def _print(forecast: FiringForecast, basis: ForecastBasis, zone: str) -> None:
    jobs, firings = counted(len(basis.jobs), "job"), counted(forecast.total, "time")
    click.echo(clean(f"{basis.words}: {forecast.jobs} of {jobs} fire {firings}"))
    click.echo(_window_words(forecast, zone))
    if forecast.firings:
        click.echo()
        local = () if zone == "UTC" else (zone,)
        notes = any(row.at_ms != row.due_ms for row in forecast.firings)
        columns = (*local, "utc", "job", "schedule", *(("note",) if notes else ()))
        print_table(columns, (_row(row, zone)[: len(columns)] for row in forecast.firings))
        more = forecast.total - len(forecast.firings)
        if more:
            click.echo(f"and {more} more in this window")
    if forecast.total:
        click.echo(f"\nfirings per {span(forecast.bucket_ms)}, in {zone}:")
        for line in histogram(forecast, zone):
            click.echo(line)
        click.echo(_peak(forecast, basis, zone))
    for line in _remarks(forecast, basis):
        click.echo(clean(line))


def _window_words(forecast: FiringForecast, zone: str) -> str:
    length = span(forecast.to_ms - forecast.from_ms)
    words = f"from {clock(forecast.from_ms, zone)} to {clock(forecast.to_ms, zone)} {zone}, {length}"
    if zone == "UTC":
        return words
    return f"{words} ({format_moment(_second(forecast.from_ms))} to {format_moment(_second(forecast.to_ms))})"


def _row(row: ComingFiring, zone: str) -> tuple[str, ...]:
    note = "" if row.at_ms == row.due_ms else f"was due {ago(row.due_ms, now=row.at_ms)}"
    local = () if zone == "UTC" else (clock(row.at_ms, zone),)
    return (*local, format_moment(_second(row.at_ms)), row.job_id, row.schedule, note)


def _second(ms: int) -> int:
    return ms - ms % 1_000


def _peak(forecast: FiringForecast, basis: ForecastBasis, zone: str) -> str:
    peak = forecast.peak
    assert peak is not None, "something fires"
    start = max(forecast.from_ms, forecast.start_ms + peak * forecast.bucket_ms)
    words = f"peak at {clock(start, zone)}: {counted(forecast.counts[peak], 'firing')} in {span(forecast.bucket_ms)}"
    if forecast.untimed == forecast.jobs:
        return f"{words}; how many seats that needs is known once they have run"
    need = forecast.seats(peak)
    words += f", work for {counted(need, 'seat')} by the last durations"
    if forecast.untimed:
        words += f" ({forecast.untimed} of the jobs {'has' if forecast.untimed == 1 else 'have'} not run yet)"
    return f"{words}; there: {counted(basis.seats, 'seat')}" if basis.seats else f"{words}; no node lives"


def _remarks(forecast: FiringForecast, basis: ForecastBasis) -> Iterator[str]:
    """Jumps of the clocks, what is late, what does not fire, what is held."""
    for change in forecast.changes:
        way = "forward" if change.by_ms > 0 else "back"
        yield f"! the clocks of {change.tz} go {way} by {span(abs(change.by_ms))} at {format_moment(change.at_ms)}"
    if forecast.late:
        yield f"! overdue: {counted(forecast.late, 'firing')}; they come as soon as a node leads, at a bounded pace"
    for quiet in forecast.quiet:
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


# the histogram

_LINES_MS = {
    SECOND_MS: MINUTE_MS,
    MINUTE_MS: HOUR_MS,
    5 * MINUTE_MS: 6 * HOUR_MS,
    10 * MINUTE_MS: 12 * HOUR_MS,
    30 * MINUTE_MS: DAY_MS,
    HOUR_MS: DAY_MS,
    6 * HOUR_MS: 7 * DAY_MS,
    DAY_MS: 28 * DAY_MS,
    7 * DAY_MS: 364 * DAY_MS,
}


def histogram(forecast: FiringForecast, tz: str) -> Iterator[str]:
    """A line an hour (or another round time), a character a minute, as high as its firings are many; marks the peak.

    09:00  ▁▁▁▁▁█▁▁▁▁▁▁▁▁▁▁...   63
    10:00  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁...   60

    A line begins at a round local time, so a jump of the clocks breaks it: the lost hour has no line, the hour that
    comes twice has two.
    """
    line_ms, peak = _LINES_MS[forecast.bucket_ms], forecast.peak
    top = 0 if peak is None else forecast.counts[peak]
    day = ""
    for first, buckets in _lines(forecast, tz, line_ms):
        label = clock(forecast.start_ms + first * forecast.bucket_ms, tz)
        label, day = (label[11:] if label[:10] == day else label), label[:10]
        counts = [forecast.counts[index] for index in buckets]
        width = line_ms // forecast.bucket_ms
        indent = (_local_ms(forecast.start_ms + first * forecast.bucket_ms, tz) % line_ms) // forecast.bucket_ms
        bars = " " * indent + "".join(_bar(count, top) for count in counts)
        mark = f"  < peak {top}" if peak in buckets else ""
        mark += "  < the clocks jumped" if first and _jumps(forecast, tz, first) else ""
        yield f"{label:>19}  {bars:<{width}}  {sum(counts)}" + click.style(mark, fg="red", bold=True)


def _bar(count: int, top: int) -> str:
    """As high as the share of the top; nothing is a dot, little is never nothing."""
    if not count:
        return "."
    return (BARS if can_show(BARS) else PLAIN_BARS)[max(0, -(-count * 8 // top) - 1)]


def _lines(forecast: FiringForecast, tz: str, line_ms: int) -> Iterator[tuple[int, range]]:
    """The buckets of each line; a new one begins at a round local time, and where the clock jumps."""
    first, line, last = 0, None, None
    for index in range(len(forecast.counts)):
        wall = _local_ms(forecast.start_ms + index * forecast.bucket_ms, tz)
        if last is not None and (wall // line_ms != line or wall != last + forecast.bucket_ms):
            yield first, range(first, index)
            first = index
        line, last = wall // line_ms, wall
    if forecast.counts:
        yield first, range(first, len(forecast.counts))


def _jumps(forecast: FiringForecast, tz: str, index: int) -> bool:
    """Does the wall clock jump where this bucket begins?"""
    at_ms = forecast.start_ms + index * forecast.bucket_ms
    return _local_ms(at_ms, tz) - _local_ms(at_ms - forecast.bucket_ms, tz) != forecast.bucket_ms


def _local_ms(ms: int, tz: str) -> int:
    """The local time, as milliseconds that can be divided."""
    return moment_ms(clock(ms, tz).replace(" ", "T") + "Z") + ms % 1_000


# for programs


def _as_json(forecast: FiringForecast, basis: ForecastBasis, zone: str) -> dict[str, Any]:
    peak = forecast.peak
    buckets = [
        {"at_ms": forecast.start_ms + index * forecast.bucket_ms, "firings": count, "seats": forecast.seats(index)}
        for index, count in enumerate(forecast.counts)
        if count
    ]
    return {
        "basis": basis.words,
        "tz": zone,
        "from_ms": forecast.from_ms,
        "to_ms": forecast.to_ms,
        "jobs": len(basis.jobs),
        "firing_jobs": forecast.jobs,
        "untimed_jobs": forecast.untimed,
        "total": forecast.total,
        "overdue": forecast.late,
        "firings": forecast.firings,
        "bucket_ms": forecast.bucket_ms,
        "buckets": buckets,
        "peak": None
        if peak is None
        else next(b for b in buckets if b["at_ms"] == forecast.start_ms + peak * forecast.bucket_ms),
        "seats": basis.seats,
        "nodes": basis.known.nodes,
        "held": basis.known.held_count,
        "quiet": forecast.quiet,
        "changes": forecast.changes,
    }
