"""`pollux check`: mistakes in a config or an app, and what a start with it would change.

A file that is being prepared is mostly beside the one that is used, under another name: `new.yaml` beside
`pollux.yaml`.  By its name it would be another source of jobs, so it is compared in the place of the used one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pollux.cli.command_table import USAGE
from pollux.cli.options import app_option, config_option, json_option
from pollux.cli.output import clean, notice, print_json
from pollux.cli.runner import TeachingCommand, complain_all
from pollux.cli.target import (
    answer_of,
    app_argument,
    ask,
    config_path,
    find_code_here,
    overruled,
    refuse_url,
    store_lacks,
    with_own_code,
)
from pollux.config import Config, load_config
from pollux.config.lint import config_warnings, with_jobs_of_code
from pollux.config.load import file_source
from pollux.errors import InvalidConfig, InvalidInput, problems_of
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol, Pollux

JOBS_PAGE = 1_000
as_option = click.option(
    "--as", "as_file", metavar="FILE", help="It is to take the place of this file; else of the one that has its jobs."
)


@click.command(cls=TeachingCommand)
@click.argument("file", required=False, type=click.Path())
@config_option("The config; else ./pollux.yaml.")
@app_option("A Pollux of your own code.")
@click.option("--store", metavar="URL", help="Compare with this store; also POLLUX_STORE.")
@click.option("--diff", is_flag=True, help="Show what a start would change in the store.")
@as_option
@json_option
def check(
    file: str | None, config: str | None, store: str | None, as_file: str | None, *, diff: bool, as_json: bool
) -> int:
    """Look for every mistake in a config or in an app of your own; import the code; change nothing.

    An app is checked as a start would do it: its handlers, the params of its jobs, schedules, addresses, secrets, and
    functions that a child process must find.

    Problems are printed with file, line and cure; the exit code is 2.  Warnings, like a password that is written out,
    do not change the exit code.  With --diff a valid config is compared with the store: + added, ~ changed,
    - removed.  One that has the jobs of another file is compared as the next text of that.

    For example:
      pollux check
      pollux check pollux.yaml --diff
      pollux check new.yaml --diff --as pollux.yaml
      pollux check --app monitor:app --diff
    """
    config = _named_once(file, config)
    path, app = config_path(config), app_argument()
    _refuse_unfit(path, app, as_file, diff=diff)
    if diff:
        refuse_url(store, "check --diff compares with the store itself (`pollux reload --dry-run` asks a node)")
    named = {"store": store, "app": app}
    try:
        loaded, checked, notes = _load(config, path, named, file_source(as_file) if as_file else "", diff=diff)
    except InvalidInput as error:
        problems = _with_those_of_code(problems_of(error), path, named)
        return _report(path, app, problems, InvalidConfig(problems), as_json=as_json)
    changes = _changes(checked) if diff else None
    jobs = checked.declared_jobs()
    warnings = [*notes, *config_warnings(with_jobs_of_code(loaded, jobs), os.environ)]
    if as_json:
        shown = [_problem_json(warning) for warning in warnings]
        print_json(_document(path, loaded.app, warnings=shown, jobs=len(jobs), diff=changes))
        return 0
    for warning in warnings:
        notice(f"warning: {warning}")
    what = " and ".join(filter(None, (path, loaded.app)))
    click.echo(f"{clean(what)}: valid; {counted(len(jobs), 'job')}")
    _print(changes)
    return 0


def _print(changes: list[dict[str, Any]] | None) -> None:
    if changes is not None:
        for line in [line for change in changes for line in change["lines"]] or ["a start would change nothing"]:
            click.echo(clean(line))


def _refuse_unfit(path: str | None, app: str | None, as_file: str | None, *, diff: bool) -> None:
    if as_file and not diff:
        raise InvalidInput("--as is about what would change", cure="give it with --diff")
    if path is not None and path.endswith(".py"):
        module = os.path.relpath(path).removesuffix(".py").replace(os.sep, ".")
        raise InvalidInput(
            f"{path} is Python, and no config", cure=f"name the app in it: pollux check --app {module}:app"
        )
    if path is None and not app:
        cure = "name a file: pollux check FILE; or an app: --app module:attribute; or create ./pollux.yaml"
        raise InvalidInput("there is nothing to check", cure=cure)
    if path is None and as_file:
        raise InvalidInput("--as is about a file, and there is none", cure="leave it out, or name the file")


def _named_once(file: str | None, config: str | None) -> str | None:
    """The file as an argument or by -c; POLLUX_CONFIG only if neither names one."""
    is_option = click.get_current_context().get_parameter_source("config") is ParameterSource.COMMANDLINE
    if file and is_option:
        raise InvalidInput("the file is named twice", cure="name it once: pollux check FILE")
    return file or config


def _load(
    given: str | None, path: str | None, named: dict[str, Any], source: str, *, diff: bool
) -> tuple[Config, Pollux, list[InvalidInput]]:
    from pollux.app import Pollux
    from pollux.server import server_options

    find_code_here()
    loaded = load_config(path, environ=os.environ, arguments=named, source=source)
    notes = [each for each in (overruled(given, loaded),) if each is not None]
    if diff:
        store = with_own_code(loaded).store
        if not source and loaded.jobs and (source := place_for(loaded, store)):
            print_place(loaded, source)
            loaded = load_config(path, environ=os.environ, arguments=named, source=source)
        if store_lacks(store):  # compared with nothing, and nothing is created
            loaded = load_config(path, environ=os.environ, arguments=named | {"store": "memory://"})
    app = Pollux.from_config(loaded)
    app.check_jobs()
    server_options(loaded, plans=True)
    return loaded, app, notes


def _with_those_of_code(found: Sequence[InvalidInput], path: str | None, named: dict[str, Any]) -> list[InvalidInput]:
    """These problems, and those of the code as far as the file can be read: all in one go."""
    from pollux.app import Pollux

    problems = {str(problem): problem for problem in found}
    try:
        loaded = load_config(path, environ=os.environ, arguments=named | {"store": "memory://"}, is_whole=False)
        Pollux.from_config(loaded).check_jobs()
    except InvalidInput as error:
        problems |= {str(problem): problem for problem in problems_of(error)}
    return list(problems.values())


def place_for(config: Config, url: str) -> str:
    """The source that this file would replace, if not its own: the one that all its stored jobs belong to."""
    if url.startswith("memory:") or store_lacks(url):
        return ""
    ids = [job.id for job in config.jobs]

    async def sources(operations: OperationsProtocol) -> set[str]:
        pages = [
            await operations.jobs.jobs_by_id(ids[start : start + JOBS_PAGE]) for start in range(0, len(ids), JOBS_PAGE)
        ]
        return {job.source for page in pages for job in page if job is not None}

    owners = ask(url, sources) if ids else set()
    [owner] = owners if len(owners) == 1 else [""]
    return owner if owner.startswith("file:") and owner != config.source else ""


def print_place(config: Config, source: str) -> None:
    name = Path(config.path).name
    notice(f"{config.path} has jobs of {source}: compared as its next text; --as {name}: as a file of its own")


def _changes(app: Pollux) -> list[dict[str, Any]]:
    diffs = asyncio.run(answer_of(app, lambda _: app.diff()))
    return [{"source": diff.source, "lines": list(diff.lines())} for diff in diffs]


def _report(
    path: str | None, app: str | None, problems: list[InvalidInput], error: InvalidConfig, *, as_json: bool
) -> int:
    if not as_json:
        return complain_all(error)
    print_json(_document(path, app, problems=[_problem_json(problem) for problem in problems]))
    return USAGE


def _document(path: str | None, app: str | None, **found: Any) -> dict[str, Any]:
    return {"config": path, "app": app or None, "problems": [], "warnings": [], "jobs": 0, "diff": None} | found


def _problem_json(problem: InvalidInput) -> dict[str, str]:
    return {"where": problem.where, "what": problem.what, "cure": problem.cure}
