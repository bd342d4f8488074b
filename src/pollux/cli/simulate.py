"""`pollux simulate`: the real core in virtual time, with stand-ins for the handlers."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.options import app_option, config_option, json_option, url_options
from pollux.cli.output import now_ms, print_json, print_table, print_unreadable, progress, span
from pollux.cli.runner import TeachingCommand
from pollux.cli.selection import pages
from pollux.cli.target import StoreChoice, app_argument, app_of, config_path, is_url_argument, with_own_code
from pollux.config import Config, load_config
from pollux.errors import InvalidInput
from pollux.model import Job, RunState, definition
from pollux.store.contract import RunFilter
from pollux.units import MINUTE_MS, SECOND_MS, counted, duration_ms, format_moment, format_ms, moment_ms

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.simulate import Forecast, HandlerBehaviour, Scenario

FIRINGS_PER_SECOND = 6_000  # of a simulation, on a small machine; more if many fall together
PAGES_MAX = 100  # of history that is read
SAMPLES_MIN = 5  # runs of a job before its own durations count
JOBS_SHOWN = 20
BARS_MAX = 24
BAR_WIDTH = 40
SEATS_MAX = 10  # what-ifs at once
EIGHTHS = " ▏▎▍▌▋▊▉█"


@click.command(cls=TeachingCommand)
@config_option("The jobs; else ./pollux.yaml.")
@app_option("A Pollux of your own code.")
@click.option("--store", metavar="URL", help="Learn from its history how long runs take and how often they fail.")
@click.option("--for", "window", default="24h", show_default=True, metavar="SPAN", help="How long, in virtual time.")
@click.option("--from", "begin", metavar="MOMENT", help="From when on; without an offset it is UTC.  Else now.")
@click.option("--seats", metavar="N[,N...]", help="How many seats; several are compared.  Else those of the config.")
@click.option(
    "--duration", default="200ms", show_default=True, metavar="SPAN", help="Of a run; 200ms..2s: half, 95 % of them."
)
@click.option("--failing", default="0%", show_default=True, metavar="SHARE", help="Which share of attempts fails.")
@click.option("--scale", default=1, show_default=True, metavar="N", help="The same jobs so many times over.")
@click.option("--seed", default=1, show_default=True, metavar="N", help="Of the dice: the same seed, the same result.")
@click.option("--grain", metavar="SPAN", help="Round times up to this; coarse is fast.  Else by the number of firings.")
@click.option("--all", "everything", is_flag=True, help=f"Show every job, not only the {JOBS_SHOWN} worst.")
@json_option
@url_options
def simulate(config: str | None, store: str | None, *, everything: bool, as_json: bool, **options: Any) -> int:
    """Simulate a day of a config or of an app in a few seconds: firings, lateness, skips, seats, clock changes.

    The real planner, dispatcher and workers run in virtual time on a store in memory, from a fresh start.  No handler
    of yours is called: stand-ins take --duration and fail as often as --failing sets, or as the runs in --store did.
    Without a config the jobs of --store are simulated.

    For example:
      pollux simulate -c pollux.yaml --for 24h
      pollux simulate -c pollux.yaml --duration 200ms..5s --failing 2% --seats 5,10,20
      pollux simulate -c pollux.yaml --from 2026-03-29T00:00 --for 6h     the night the clocks change
      pollux simulate -c pollux.yaml --scale 100 --json
      pollux simulate --app monitor:app --for 24h
    """
    from pollux.simulate import scaled

    path, loaded, jobs, habits = _given(config, store)
    times = options["scale"]
    jobs = scaled(jobs, times)
    habits |= {f"{job_id}~{n}": habit for job_id, habit in habits.items() for n in range(2, times + 1)}
    scenarios = _scenarios(loaded, jobs, habits, options)
    _announce(jobs, scenarios)
    forecasts = _play(jobs, scenarios)
    if as_json:
        others = [{"seats": other.seats, **_compared(other)} for other in forecasts]
        print_json({"config": path, "forecast": forecasts[0], "seats": others})
        return 0
    _show(forecasts[0], everything=everything)
    if len(forecasts) > 1:
        click.echo("\nWith other numbers of seats:")
        rows = [[str(other.seats), *(str(value) for value in _compared(other).values())] for other in forecasts]
        print_table(["seats", *_compared(forecasts[0])], rows)
    return 0


# the scenarios


def _given(config: str | None, store: str | None) -> tuple[str, Config, list[Job], dict[str, HandlerBehaviour]]:
    """The jobs of the config, or of the store if there is none; what the store knows of them."""
    path, is_asked = config_path(config), store is not None or is_url_argument()
    if path is None and not is_asked and not app_argument():
        cure = "name a file with -c, or a store with --store, or an app with --app"
        raise InvalidInput("there is nothing to simulate", cure=cure)
    loaded = with_own_code(load_config(path, environ=os.environ, arguments={"app": app_argument()}))
    habits: dict[str, HandlerBehaviour] = {}
    jobs = [*loaded.jobs, *(app_of(loaded).declared_jobs() if loaded.app else ())]
    if is_asked:
        stored, habits = StoreChoice(path, store).ask(_learn)
        jobs = jobs if path is not None or loaded.app else stored
    return path or loaded.app, loaded, jobs, habits


async def _learn(operations: OperationsProtocol) -> tuple[list[Job], dict[str, HandlerBehaviour]]:
    """The jobs of a store, and how their finished runs went."""
    jobs: list[Job] = []
    async for page in pages(lambda after: operations.jobs.list_jobs(after=after, limit=1_000)):
        jobs += [definition(job) for job in page.jobs]
        print_unreadable(page.unreadable)
    seen: dict[str, list[tuple[int, bool]]] = {}
    where = RunFilter(states=(RunState.DONE, RunState.DEAD))
    left = PAGES_MAX
    async for history in pages(lambda after: operations.runs.list_runs(where, after=after, limit=1_000)):
        for run in history.runs:
            if run.started_ms is not None and run.finished_ms is not None:
                failed = run.failed or run.state is RunState.DEAD
                seen.setdefault(run.job_id, []).append((max(0, run.finished_ms - run.started_ms), failed))
        left -= 1
        if not left:
            break
    return jobs, {job_id: _habit(runs) for job_id, runs in seen.items() if len(runs) >= SAMPLES_MIN}


def _habit(runs: Sequence[tuple[int, bool]]) -> HandlerBehaviour:
    from pollux.simulate import HandlerBehaviour

    durations = sorted(duration for duration, _ in runs)
    share = sum(failed for _, failed in runs) / len(runs)
    return HandlerBehaviour(durations[len(durations) // 2], durations[int(len(durations) * 0.95)], share)


def _scenarios(
    loaded: Config, jobs: list[Job], habits: dict[str, HandlerBehaviour], options: dict[str, Any]
) -> list[Scenario]:
    from pollux.simulate import Scenario, fine_enough_ms, firings_expected, habit_of

    from_ms, for_ms = _begin(options["begin"]), duration_ms(options["window"])
    firings = firings_expected(jobs, from_ms, from_ms + for_ms)
    grain_ms = duration_ms(options["grain"]) if options["grain"] else fine_enough_ms(firings, for_ms)
    return [
        Scenario(
            from_ms=from_ms,
            for_ms=for_ms,
            seats=seats,
            seed=options["seed"],
            habit=habit_of(options["duration"], options["failing"]),
            habits=habits,
            turn_rest_ms=5 if loaded.store.startswith("memory:") else 20,
            grain_ms=grain_ms,
        )
        for seats in _seats(options["seats"], loaded.seats)
    ]


def _seats(text: str | None, usual: int) -> list[int]:
    if text is None:
        return [usual]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts) or len(parts) > SEATS_MAX:
        cure = f"write one number or up to {SEATS_MAX}: --seats 5,10,20"
        raise InvalidInput(f"{text[:60]!r} are no seats", where="--seats", cure=cure)
    return list(dict.fromkeys(int(part) for part in parts))


def _begin(text: str | None) -> int:
    if text is None:
        return now_ms() // MINUTE_MS * MINUTE_MS
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        cure = "write it like 2026-03-29T00:00 (UTC) or 2026-03-29T00:00+01:00"
        raise InvalidInput(f"{text[:60]!r} is not a moment", where="--from", cure=cure) from error
    return moment_ms(moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC))


# playing


def _announce(jobs: Sequence[Job], scenarios: Sequence[Scenario]) -> None:
    """How long it will take, before it does."""
    from pollux.simulate import firings_expected

    first = scenarios[0]
    firings = firings_expected(jobs, first.from_ms, first.until_ms)
    times = "" if len(scenarios) == 1 else f", {len(scenarios)} times"
    took_ms = max(1, firings * len(scenarios) // FIRINGS_PER_SECOND) * SECOND_MS
    grain = "" if first.grain_ms == 1 else f"; times are rounded up to {format_ms(first.grain_ms)}"
    what = f"{counted(len(jobs), 'job')}, {counted(firings, 'due time')}{times}"
    click.echo(f"{what}: about {span(took_ms)}{grain}", err=True)


def _play(jobs: Sequence[Job], scenarios: Sequence[Scenario]) -> list[Forecast]:
    from pollux.simulate import simulate as play

    forecasts: list[Forecast] = []
    was_enabled = gc.isenabled()
    gc.disable()  # millions of small values that no cycle holds
    try:
        with progress() as show:
            for n, scenario in enumerate(scenarios):

                def on(share: float, done: int = n) -> None:
                    percent = round((done + share) / len(scenarios) * 100)
                    show(f"simulating: {percent}%", percent, 100)

                forecasts.append(play(jobs, scenario, progress=on))
                gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    return forecasts


# showing


def _show(forecast: Forecast, *, everything: bool) -> None:
    window = span(forecast.until_ms - forecast.from_ms)
    seats = counted(forecast.seats, "seat")
    click.echo(f"{window} from {format_moment(forecast.from_ms)}, {seats}, seed {forecast.seed}\n")
    late = forecast.late
    skips = ", ".join(f"{reason} {count:,}" for reason, count in forecast.skipped.items())
    click.echo(
        f"fired     {forecast.fired:,}; skipped {sum(forecast.skipped.values()):,}{f' ({skips})' if skips else ''}"
    )
    click.echo(
        f"began     p50 {span(late.p50_ms)}, p95 {span(late.p95_ms)}, p99 {span(late.p99_ms)}, "
        f"at most {span(late.max_ms)} after the due time"
    )
    click.echo(f"seats     {forecast.peak_seats} taken at the peak, {forecast.mean_seats:.2f} on average")
    click.echo(f"attempts  {forecast.attempts:,}; {forecast.failed:,} failed, {forecast.dead:,} dead")
    if forecast.waiting:
        click.echo(f"waiting   {counted(forecast.waiting, 'run')} had no seat yet when the time was over")
    _show_load(forecast)
    _show_jobs(forecast, everything=everything)
    for change in forecast.clock_changes:
        click.echo(f"\n{change.words}")
        for firing in change.firings:
            click.echo(f"  {firing}")
        if change.more:
            click.echo(f"  and {change.more} more")
    for n, warning in enumerate(forecast.warnings):
        click.echo(f"{'' if n else chr(10)}! {warning}")


def _show_load(forecast: Forecast) -> None:
    minutes = forecast.load
    width = -(-len(minutes) // BARS_MAX)
    buckets = [minutes[start : start + width] for start in range(0, len(minutes), width)]
    sums = [sum(minute.fired for minute in bucket) for bucket in buckets]
    most = max(sums, default=0)
    if most == 0:
        return
    click.echo(f"\nFirings in every {span(width * MINUTE_MS)}:")
    for bucket, count in zip(buckets, sums, strict=True):
        peak = counted(max(minute.peak_seats for minute in bucket), "seat")
        bar = _bar(count / most)
        click.echo(f"  {format_moment(bucket[0].at_ms)[5:16].replace('T', ' ')} {bar} {count:,}, {peak}")
    click.echo("Busiest minutes:")
    for minute in forecast.busiest:
        late = f"at most {span(minute.late_ms)} late"
        load = f"{counted(minute.fired, 'firing')}, {counted(minute.peak_seats, 'seat')}"
        click.echo(f"  {format_moment(minute.at_ms)[:16]}  {load}, {late}")


def _bar(share: float) -> str:
    eighths = round(share * BAR_WIDTH * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(BAR_WIDTH)


def _show_jobs(forecast: Forecast, *, everything: bool) -> None:
    shown = forecast.jobs if everything else forecast.jobs[:JOBS_SHOWN]
    click.echo("\nJobs, the worst first:" if len(shown) > 1 else "")
    rows = []
    for job in shown:
        skips = ", ".join(f"{reason} {count}" for reason, count in job.skipped.items())
        late = (span(job.late.p95_ms), span(job.late.max_ms))
        rows.append([job.id, job.schedule, str(job.fired), skips, *late, str(job.failed), str(job.dead)])
    print_table(["id", "schedule", "fired", "skipped", "late p95", "late max", "failed", "dead"], rows)
    if len(shown) < len(forecast.jobs):
        click.echo(f"and {len(forecast.jobs) - len(shown)} more: --all shows them")


def _compared(forecast: Forecast) -> dict[str, Any]:
    return {
        "fired": forecast.fired,
        "skipped": sum(forecast.skipped.values()),
        "late_p50_ms": forecast.late.p50_ms,
        "late_p99_ms": forecast.late.p99_ms,
        "late_max_ms": forecast.late.max_ms,
        "peak_seats": forecast.peak_seats,
        "mean_seats": round(forecast.mean_seats, 2),
        "waiting": forecast.waiting,
    }
