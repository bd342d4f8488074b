"""`pollux check`: mistakes in a config or an app, and what a start with it would change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pollux.cli.command_table import USAGE
from pollux.cli.diff import as_option, place_for, say_place
from pollux.cli.options import config_path, find_code_here, overruled, store_lacks, with_own_code
from pollux.cli.output import clean, print_json
from pollux.cli.runner import TeachingCommand, complain_all
from pollux.cli.target import refuse_url
from pollux.config.lint import config_warnings, with_jobs_of_code
from pollux.config.load import file_source
from pollux.errors import InvalidConfig, InvalidInput, problems_of
from pollux.units import counted

if TYPE_CHECKING:
    from pollux.app import Pollux


@click.command(cls=TeachingCommand)
@click.argument("file", required=False, type=click.Path())
@click.option(
    "-c", "--config", type=click.Path(), envvar="POLLUX_CONFIG", metavar="FILE", help="The config; else ./pollux.yaml."
)
@click.option("--app", metavar="MODULE:ATTRIBUTE", envvar="POLLUX_APP", help="A Pollux of your own code.")
@click.option("--store", metavar="URL", help="Compare with this store; also POLLUX_STORE.")
@click.option("--diff", is_flag=True, help="Show what a start would change in the store.")
@as_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(
    file: str | None,
    config: str | None,
    app: str | None,
    store: str | None,
    as_file: str | None,
    *,
    diff: bool,
    as_json: bool,
) -> int:
    """Look for every mistake in a config or in an app of your own; import the code; change nothing.

    An app is looked at as a start would: its handlers, the params of its jobs, schedules, addresses, secrets, and
    functions that a child process must find.

    Problems are printed with file, line and cure; the exit code is 2.  Warnings, like a password that is written out,
    change nothing about the exit code.  With --diff a right config is compared with the store: + is added, ~ changes,
    - goes.  One that has the jobs of another file is compared as the next text of that.

    For example:
      pollux check
      pollux check pollux.yaml --diff
      pollux check new.yaml --diff --as pollux.yaml
      pollux check --app monitor:app --diff
    """
    config = _named_once(file, config)
    path = config_path(config)
    _refuse_unfit(path, app, as_file, diff=diff)
    if diff:
        refuse_url(store, "check --diff compares with the store itself (`pollux reload --dry-run` asks a node)")
    said = {"store": store, "app": app}
    try:
        loaded, checked, aside = _load(config, path, said, file_source(as_file) if as_file else "", diff=diff)
    except InvalidInput as error:
        problems = _with_those_of_code(problems_of(error), path, said)
        return _report(path, app, problems, InvalidConfig(problems), as_json=as_json)
    changes = _changes(checked) if diff else None
    jobs = checked.declared_jobs()
    warnings = [*aside, *config_warnings(with_jobs_of_code(loaded, jobs), os.environ)]
    if as_json:
        told = [_told(warning) for warning in warnings]
        print_json(_document(path, loaded.app, warnings=told, jobs=len(jobs), diff=changes))
        return 0
    for warning in warnings:
        click.echo(f"pollux: warning: {clean(str(warning))}", err=True)
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
    given: str | None, path: str | None, said: dict[str, Any], source: str, *, diff: bool
) -> tuple[Any, Any, list[InvalidInput]]:
    from pollux.app import Pollux
    from pollux.config import load_config
    from pollux.server import server_options

    find_code_here()
    loaded = load_config(path, environ=os.environ, arguments=said, source=source)
    aside = [each for each in (overruled(given, loaded),) if each is not None]
    if diff:
        store = with_own_code(loaded).store
        if not source and loaded.jobs and (source := place_for(loaded, store)):
            say_place(loaded, source)
            loaded = load_config(path, environ=os.environ, arguments=said, source=source)
        if store_lacks(store):  # compared with nothing, and nothing is created
            loaded = load_config(path, environ=os.environ, arguments=said | {"store": "memory://"})
    app = Pollux.from_config(loaded)
    app.check_jobs()
    server_options(loaded, plans=True)
    return loaded, app, aside


def _with_those_of_code(found: Sequence[InvalidInput], path: str | None, said: dict[str, Any]) -> list[InvalidInput]:
    """These problems, and those that a look at the code has, as far as the file can be read: all in one go."""
    from pollux.app import Pollux
    from pollux.config import load_config

    told = {str(problem): problem for problem in found}
    try:
        loaded = load_config(path, environ=os.environ, arguments=said | {"store": "memory://"}, is_whole=False)
        Pollux.from_config(loaded).check_jobs()
    except InvalidInput as error:
        told |= {str(problem): problem for problem in problems_of(error)}
    return list(told.values())


def _changes(app: Pollux) -> list[dict[str, Any]]:
    import asyncio

    async def compare() -> list[dict[str, Any]]:
        await app.open()
        try:
            return [{"source": diff.source, "lines": list(diff.lines())} for diff in await app.diff()]
        finally:
            await app.close()

    return asyncio.run(compare())


def _report(
    path: str | None, app: str | None, problems: list[InvalidInput], error: InvalidConfig, *, as_json: bool
) -> int:
    if not as_json:
        return complain_all(error)
    print_json(_document(path, app, problems=[_told(problem) for problem in problems]))
    return USAGE


def _document(path: str | None, app: str | None, **found: Any) -> dict[str, Any]:
    return {"config": path, "app": app or None, "problems": [], "warnings": [], "jobs": 0, "diff": None} | found


def _told(problem: InvalidInput) -> dict[str, str]:
    return {"where": problem.where, "what": problem.what, "cure": problem.cure}
