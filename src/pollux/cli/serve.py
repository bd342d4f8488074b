"""`pollux serve` and `pollux worker`: run a node, with its live table.

Once a second the app is asked for an overview of as many jobs as the screen has lines; that is all the table costs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.options import applied, config_option, every_option, leader_options, node_options
from pollux.cli.output import clean, notice, span
from pollux.cli.runner import TeachingCommand
from pollux.cli.target import config_path, find_code_here, overruled
from pollux.config import Config, load_config
from pollux.config.lint import config_warnings, ineffective_variables, with_jobs_of_code
from pollux.errors import PolluxError
from pollux.units import counted, shell_word

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pollux.app import Pollux
    from pollux.server import ServerOptions

LOOK_SECONDS = 1.0
PIPE_SECONDS = 5.0  # without a terminal a table is printed now and then,
PIPE_COLUMNS = 160  # and its width has no other limit
NEWS = 5  # log lines below the table
FRAME_LINES = 10  # of the screen, for everything but rows
ROWS_MAX = 200
WARNINGS_SHOWN = 5
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
FIRST_JOB = '{id: home, python: "checks:home", interval: 30s}'


def _serve_options(command: Any) -> Any:
    return applied(
        command,
        config_option("The config; else ./pollux.yaml."),
        node_options,
        click.option("--watch/--no-watch", default=None, help="The live table; the default on a terminal."),
        click.option("--reload/--no-reload", default=None, help="Read the config again when it changes; the default."),
        click.option("--host", metavar="HOST", help="Where the HTTP API listens; localhost."),
        click.option(
            "--behind-proxy/--not-behind-proxy",
            default=None,
            help="A proxy in front encrypts: it may listen beyond this machine.",
        ),
        click.option("--port", type=click.IntRange(0, 65_535), metavar="N", help="The HTTP API's port; 8060."),
        click.option("--server/--no-server", default=None, help="The HTTP API; the default of serve."),
        click.option("--log-level", type=click.Choice(LEVELS), help="The least that is logged; info."),
        click.option("--log-format", type=click.Choice(FORMATS), help="Lines for people or for machines; text."),
        click.option("--verbose", is_flag=True, help="Log every run: --log-level debug."),
    )


@click.command(cls=TeachingCommand)
@every_option
@leader_options
@click.option("--plans/--no-plans", default=None, help="Take part in planning; the default.")
@click.option("--replace", is_flag=True, help="Take the place of another text or program of the same name, this once.")
@_serve_options
def serve(config: str | None, *, watch: bool | None, verbose: bool, replace: bool, **arguments: Any) -> None:
    """Plan and run the jobs of a config file, of an app, or of both, until it is stopped.

    On a terminal it shows a live table; elsewhere it writes log lines to stderr.  Ctrl-C or SIGTERM drains: running
    handlers may finish within the grace, the rest is handed back.  A second one ends at once.  Start as many as you
    like on one store: one of them plans, and all run.  The file is read again when it changes, and at SIGHUP.  Every
    option that `pollux config` shows is an argument, too: --grace, --history-keep, ...

    A set of jobs is refused at the same release if it would take away jobs of a file beside a living node that has
    others, more than half of an app's jobs beside such a node, or more than half of all (and at least five) in any
    case: give it a name, a higher release, or once --replace.  A set that this file or app had before (the last 20
    are remembered) may take most jobs away, but none from a living node.  The start waits up
    to 48 s for a heartbeat of such a node: if one comes, it ends with exit code 1, else it takes its place.

    For example:
      pollux serve -c pollux.yaml
      pollux serve --app monitor:app --store sqlite:///monitor.db --seats 50
      pollux serve -c pollux.yaml --no-watch --log-format json 2> pollux.log
    """
    _serve(config, arguments, verbose=verbose, plans=True, watch=watch, replace=replace)


@click.command(cls=TeachingCommand)
@every_option
@_serve_options
def worker(config: str | None, *, watch: bool | None, verbose: bool, **arguments: Any) -> None:
    """Run only: claim what others plan.  It needs the same code and store as they have.

    For example:
      pollux worker --app monitor:app --store sqlite:///monitor.db --seats 50
    """
    _serve(config, arguments, verbose=verbose, plans=False, watch=watch)


def _serve(
    config: str | None,
    arguments: dict[str, Any],
    *,
    verbose: bool,
    plans: bool,
    watch: bool | None,
    replace: bool = False,
) -> None:
    from pollux.app import Pollux, run_to_end
    from pollux.server import server_options

    find_code_here()
    level = {"log_level": "debug"} if verbose else {}
    loaded = load_config(config_path(config), environ=os.environ, arguments=arguments | level)
    warnings = [str(each) for each in (overruled(config, loaded), ineffective_variables(os.environ)) if each]
    app = Pollux.from_config(loaded, plans=plans, runs=True)
    app.program = _program(loaded)
    warnings += _config_warnings(loaded, app)
    options = server_options(loaded, plans=plans, store_url=app.store_url)
    if sys.stdout.isatty() if watch is None else watch:
        news = RecentLog()
        log_to(news, loaded, datefmt="%H:%M:%S")
        news.lines += [clean(line) for line in (greeting(app, loaded), *warnings)]
        run_to_end(_watched_until_signalled(app, options, news, replace=replace))
    else:
        log_to(logging.StreamHandler(), loaded)
        log = logging.getLogger("pollux")
        log.info("%s", greeting(app, loaded))
        for warning in warnings:
            log.warning("%s", warning)
        run_to_end(_until_signalled(app, options, replace=replace))
    _end_without_threads()


def _config_warnings(config: Config, app: Pollux) -> list[str]:
    """Secrets that are written out, and the like: a few, and how many more there are."""
    try:
        found = [str(each) for each in config_warnings(with_jobs_of_code(config, app.declared_jobs()), os.environ)]
    except PolluxError:  # what cannot be resolved is reported where it is needed
        return []
    more = len(found) - WARNINGS_SHOWN
    return [*found[:WARNINGS_SHOWN], *([f"{more} more like these; `pollux check` lists all"] if more > 0 else [])]


def _program(config: Config) -> str:
    """What starts such a node again; the options that the command line named besides are left out."""
    words = ["pollux", "serve"]
    for flag, option, value in (
        ("-c", "", config.path),
        ("--app", "app", config.app),
        ("--store", "store", config.store),
        ("--scheduler-version", "scheduler_version", str(config.scheduler_version)),
    ):
        if value and (not option or config.origins.get(option, "").startswith("argument")):
            words += [flag, shell_word(value)]
    return " ".join(words)


async def _until_signalled(app: Pollux, options: ServerOptions | None, *, replace: bool) -> None:
    from pollux.app import listen_for_signals
    from pollux.server import served

    stop = asyncio.Event()
    listen_for_signals(stop)
    async with served(app, options, stop=stop, replace=replace) as server:
        if server is not None and server.first_token and sys.stderr.isatty():
            click.echo(f"the first token, shown this once: {server.first_token}", err=True)
        await stop.wait()


class RecentLog(logging.Handler):
    """Keeps the last lines of the log, which are shown below the table."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=NEWS)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(clean(self.format(record).splitlines()[0]))


async def _watched_until_signalled(
    app: Pollux, options: ServerOptions | None, news: RecentLog, *, replace: bool
) -> None:
    from rich.console import Console
    from rich.live import Live

    from pollux.app import listen_for_signals
    from pollux.server import served

    stop = asyncio.Event()
    listen_for_signals(stop)
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)

    def say(words: str) -> None:
        console.print(clean(words), style="yellow", highlight=False, markup=False, soft_wrap=True)

    async with served(app, options, stop=stop, say=say, replace=replace) as server:
        if server is not None and server.first_token and console.is_terminal:
            console.print(f"the first token, shown this once: {server.first_token}", highlight=False, soft_wrap=True)
        api = "" if server is None else server.url
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                while not stop.is_set():
                    live.update(await _frame(app, news, console.height, api=api, cut=True), refresh=True)
                    await _rest(stop, LOOK_SECONDS)
        else:
            while not stop.is_set():
                console.print(await _frame(app, news, ROWS_MAX, api=api, cut=False))
                await _rest(stop, PIPE_SECONDS)
        if app.runtime is not None:
            console.print("draining: running handlers may finish; Ctrl-C again ends at once")
    console.print("stopped")


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def _frame(app: Pollux, news: RecentLog, height: int, *, api: str, cut: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from pollux.cli.live_table import footer, header, jobs_table

    limit = max(1, min(ROWS_MAX, height - FRAME_LINES - len(news.lines)))
    try:
        overview = await app.operations.status.overview(limit=limit)
    except PolluxError as error:
        return Text(clean(f"the store does not answer: {error}"), style="red")
    late = app.runtime.status().start_late if app.runtime is not None else None
    lateness = f"99% start within {span(late.at_most_ms(0.99))} of due" if late is not None and late.count else ""
    return Group(
        header(overview, store=app.store_url, lateness=lateness),
        jobs_table(overview, cut=cut),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in news.lines),
        footer(overview, app.store_url, api),
    )


def _end_without_threads() -> None:
    """A handler's `asyncio.to_thread` may never come back; its run was handed back, and Python would wait for it."""
    from pollux.app import threads_left

    left = threads_left()
    if left:
        notice(f"ends without {len(left)} of its handlers' threads: {', '.join(left[:5])}")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def log_to(handler: logging.Handler, config: Config, *, datefmt: str | None = None) -> None:
    """Every log line of this process goes to `handler`, as the config sets it; below the live table always as text."""
    from pollux.log_format import write_lines

    kind = "text" if datefmt else config.log_format
    colours = not datefmt and sys.stderr.isatty() and "NO_COLOR" not in os.environ
    write_lines(handler, kind, config.log_level.upper(), datefmt=datefmt, colours=colours)


def greeting(app: Pollux, config: Config) -> str:
    """What is about to run; without any job, how to add one."""
    count = len(app.declared_jobs())
    if count:
        return f"{counted(count, 'job')} on {app.store_url}; Ctrl-C stops"
    file = config.path or "pollux.yaml, and name it with -c"
    return f"no jobs are declared; add one to {file}: jobs: [{FIRST_JOB}]; waiting on {app.store_url}, Ctrl-C stops"
