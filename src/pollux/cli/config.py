"""`pollux config`: which value holds, and who said so?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from pollux.cli.commands import Taught
from pollux.cli.every_option import every_option
from pollux.cli.options import ask, config_path, json_option, leader_options, node_options, sqlite_path
from pollux.cli.show import clean, print_json, print_table
from pollux.errors import StoreError

if TYPE_CHECKING:
    from pollux.config.live import Live


@click.command(cls=Taught)
@every_option
@click.option("-c", "--config", "path", envvar="POLLUX_CONFIG", metavar="FILE", help="The config; else ./pollux.yaml.")
@node_options
@leader_options
@click.option("--only-set", is_flag=True, help="Leave out what nobody set.")
@click.option("--example", is_flag=True, help="Print a commented file with every option instead.")
@json_option
def config(path: str | None, *, only_set: bool, example: bool, as_json: bool, **arguments: Any) -> None:
    """Show every option: its value, its default, and where the value came from.

    Arguments win over the environment, that over what is live (`pollux set`), that over the file, that over the
    defaults.  Take a `pollux serve` command line and write `config` for `serve` to see what it would start with.
    Passwords are never shown.

    For example:
      pollux config -c pollux.yaml
      pollux config -c pollux.yaml --seats 50 --only-set
      pollux config --example > pollux.yaml
    """
    if example:
        from pollux.config.example import example_config

        click.echo(example_config(), nl=False)
        return
    from pollux.config import load_config
    from pollux.config.live import is_overruled, with_live
    from pollux.config.told import told

    loaded = load_config(config_path(path), environ=os.environ, arguments=arguments, with_jobs=False)
    live = _live(loaded.store)
    overruled = {path: f"{said.value}, {said.origin}" for path, said in live.items() if is_overruled(loaded, path)}
    lines = [line for line in told(with_live(loaded, live), overruled) if line.is_set or not only_set]
    if as_json:
        print_json({"config": loaded.path or None, "options": lines})
        return
    print_table(
        ("option", "value", "default", "from"), ((line.option, line.value, line.default, line.origin) for line in lines)
    )
    for line in lines:
        if line.live:
            click.echo(f"{line.option}: {line.origin} overrules what is set for all nodes: {line.live}", err=True)
    if not lines:
        click.echo("nobody set anything: every option has its default", err=True)


def _live(url: str) -> dict[str, Live]:
    """What is set for all nodes of that store; nothing where there is no store yet."""
    file = sqlite_path(url)
    if url.startswith("memory:") or (file is not None and not file.exists()):
        return {}
    from pollux.config.live import read_live
    from pollux.model import SETTING

    async def question(app: Any) -> dict[str, Live]:
        return read_live(await app.backend.notes(SETTING))

    try:
        return ask(url, question)
    except StoreError as error:
        click.echo(f"pollux: what is set for all nodes cannot be told: {clean(str(error))}", err=True)
        return {}
