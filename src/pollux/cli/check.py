"""`pollux check`: is the config right, and what would it change?"""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from pollux.cli.commands import Taught, complain_all
from pollux.cli.menu import USAGE
from pollux.cli.options import Where, config_path, find_code_here, overruled, store_lacks, store_url
from pollux.cli.preview import as_option, place_for, say_place
from pollux.cli.show import clean, print_json
from pollux.cli.way import refuse_url
from pollux.config.doubts import doubts
from pollux.config.load import file_source
from pollux.errors import InvalidConfig, InvalidInput


@click.command(cls=Taught)
@click.argument("file", required=False, type=click.Path())
@click.option(
    "-c", "--config", type=click.Path(), envvar="POLLUX_CONFIG", metavar="FILE", help="The config; else ./pollux.yaml."
)
@click.option("--store", metavar="URL", help="Compare with this store; also POLLUX_STORE.")
@click.option("--diff", is_flag=True, help="Show what a start would change in the store.")
@as_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def check(
    file: str | None, config: str | None, store: str | None, as_file: str | None, *, diff: bool, as_json: bool
) -> int:
    """Look for every mistake in a config; import the code that it names; change nothing.

    Problems are printed with file, line and cure; the exit code is 2.  Warnings, like a password that is written out,
    change nothing about the exit code.  With --diff a right config is compared with the store: + is added, ~ changes,
    - goes.  One that has the jobs of another file is compared as the next text of that.

    For example:
      pollux check
      pollux check pollux.yaml --diff
      pollux check new.yaml --diff --as pollux.yaml
    """
    config = _named_once(file, config)
    if as_file and not diff:
        raise InvalidInput("--as is about what would change", cure="give it with --diff")
    if diff:
        refuse_url(store, "check --diff compares with the store itself (`pollux reload --dry-run` asks a node)")
    path = config_path(config)
    if path is None:
        raise InvalidInput("there is nothing to check", cure="name a file: pollux check FILE, or create ./pollux.yaml")
    try:
        loaded, app, aside = _load(config, path, store, file_source(as_file) if as_file else "", diff=diff)
    except InvalidConfig as error:
        return _report(path, list(error.problems), error, as_json=as_json)
    except InvalidInput as error:
        return _report(path, [error], InvalidConfig([error]), as_json=as_json)
    changes = _changes(app) if diff else None
    warnings = [*aside, *doubts(loaded, os.environ)]
    if as_json:
        told = [_told(warning) for warning in warnings]
        print_json({"config": path, "problems": [], "warnings": told, "jobs": len(loaded.jobs), "diff": changes})
        return 0
    for warning in warnings:
        click.echo(f"pollux: warning: {clean(str(warning))}", err=True)
    count = len(loaded.jobs)
    click.echo(f"{path}: right; {count} job{'' if count == 1 else 's'}")
    if changes is not None:
        for line in [line for change in changes for line in change["lines"]] or ["a start would change nothing"]:
            click.echo(clean(line))
    return 0


def _named_once(file: str | None, config: str | None) -> str | None:
    """The file as an argument or by -c; POLLUX_CONFIG only if neither names one."""
    is_option = click.get_current_context().get_parameter_source("config") is ParameterSource.COMMANDLINE
    if file and is_option:
        raise InvalidInput("the file is named twice", cure="name it once: pollux check FILE")
    return file or config


def _load(
    given: str | None, path: str, store: str | None, source: str, *, diff: bool
) -> tuple[Any, Any, list[InvalidInput]]:
    from pollux.app import Pollux
    from pollux.config import load_config
    from pollux.server import server_options

    find_code_here()
    loaded = load_config(path, environ=os.environ, arguments={"store": store}, source=source)
    aside = [each for each in (overruled(given, loaded),) if each is not None]
    if diff and not source and (source := place_for(loaded, store_url(Where(path, store)))):
        say_place(loaded, source)
        loaded = load_config(path, environ=os.environ, arguments={"store": store}, source=source)
    if diff and store_lacks(loaded.store):  # compared with nothing, and nothing is created
        loaded = load_config(path, environ=os.environ, arguments={"store": "memory://"})
    app = Pollux.from_config(loaded)
    app.check_secrets()
    server_options(loaded, plans=True)
    return loaded, app, aside


def _changes(app: Any) -> list[dict[str, Any]]:
    import asyncio

    async def compare() -> list[dict[str, Any]]:
        await app.open()
        try:
            return [{"source": diff.source, "lines": list(diff.lines())} for diff in await app.diff()]
        finally:
            await app.close()

    return asyncio.run(compare())


def _report(path: str, problems: list[InvalidInput], error: InvalidConfig, *, as_json: bool) -> int:
    if not as_json:
        return complain_all(error)
    told = [_told(problem) for problem in problems]
    print_json({"config": path, "problems": told, "warnings": [], "jobs": 0, "diff": None})
    return USAGE


def _told(problem: InvalidInput) -> dict[str, str]:
    return {"where": problem.where, "what": problem.what, "cure": problem.cure}
