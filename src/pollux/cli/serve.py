"""`pollux serve` and `pollux worker`: run it, and let people watch."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import click

from pollux.cli.commands import Taught
from pollux.cli.options import config_path, find_code_here
from pollux.config import Config, load_config

LINE = "%(asctime)s %(levelname)-7s %(message)s"
FIRST_JOB = '{id: home, python: "checks:home", interval: 30s}'


def _serve_options(command: Any) -> Any:
    for option in (
        click.option("--verbose", is_flag=True, help="Log every run."),
        click.option("--watch/--no-watch", default=None, help="The live table; the default on a terminal."),
        click.option("--seats", type=click.IntRange(1, 10_000), metavar="N", help="Runs at the same time."),
        click.option("--store", metavar="URL", help="The store, like sqlite:///pollux.db; also POLLUX_STORE."),
        click.option("--app", "app_spec", metavar="MODULE:ATTRIBUTE", help="A Pollux of your own code."),
        click.option("-c", "--config", envvar="POLLUX_CONFIG", metavar="FILE", help="The config; else ./pollux.yaml."),
    ):
        command = option(command)
    return command


@click.command(cls=Taught)
@_serve_options
def serve(
    config: str | None,
    app_spec: str | None,
    store: str | None,
    seats: int | None,
    *,
    watch: bool | None,
    verbose: bool,
) -> None:
    """Plan and run the jobs of a config file, of an app, or of both, until it is told to stop.

    On a terminal it shows a live table; elsewhere it writes log lines to stderr.  Ctrl-C or SIGTERM drains: running
    handlers may finish within the grace, the rest is handed back.  A second one ends at once.

    For example:
      pollux serve -c pollux.yaml
      pollux serve --app monitor:app --store sqlite:///monitor.db --seats 50
      pollux serve -c pollux.yaml --no-watch 2> pollux.log
    """
    arguments = {"app": app_spec, "store": store, "seats": seats}
    _serve(config, arguments, plans=True, watch=watch, verbose=verbose)


@click.command(cls=Taught)
@_serve_options
def worker(
    config: str | None,
    app_spec: str | None,
    store: str | None,
    seats: int | None,
    *,
    watch: bool | None,
    verbose: bool,
) -> None:
    """Run only: claim what others plan.  It needs the same code and store as they have.

    For example:
      pollux worker --app monitor:app --store sqlite:///monitor.db --seats 50
    """
    arguments = {"app": app_spec, "store": store, "seats": seats}
    _serve(config, arguments, plans=False, watch=watch, verbose=verbose)


def _serve(config: str | None, arguments: dict[str, Any], *, plans: bool, watch: bool | None, verbose: bool) -> None:
    from pollux.app import Pollux

    find_code_here()
    loaded = load_config(config_path(config), environ=os.environ, arguments=arguments)
    app = Pollux.from_config(loaded, plans=plans, runs=True)
    if sys.stdout.isatty() if watch is None else watch:
        from pollux.cli.watch import run_watched

        run_watched(app, loaded, verbose=verbose)
    else:
        log_to(logging.StreamHandler(), verbose=verbose)
        logging.getLogger("pollux").info("%s", greeting(app, loaded))
        app.run()
    _end_without_threads()


def _end_without_threads() -> None:
    """A handler's `asyncio.to_thread` may never come back; its run was handed back, and Python would wait for it."""
    from pollux.app import threads_left

    left = threads_left()
    if left:
        click.echo(f"pollux: ends without {len(left)} of its handlers' threads: {', '.join(left[:5])}", err=True)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def log_to(handler: logging.Handler, *, verbose: bool, moments: str | None = None) -> None:
    """Every log line of this process goes to `handler`, whoever wrote it."""
    handler.setFormatter(logging.Formatter(LINE, datefmt=moments))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def greeting(app: Any, config: Config) -> str:
    """What is about to run; without any job, how to add one."""
    count = len(app.declared_jobs())
    if count:
        return f"{count} job{'' if count == 1 else 's'} on {app.store_url}; Ctrl-C stops"
    file = config.path or "pollux.yaml, and name it with -c"
    return f"no jobs are declared; add one to {file}: jobs: [{FIRST_JOB}]; waiting on {app.store_url}, Ctrl-C stops"
