"""`pollux config`: the value of every option and where it comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pollux.cli.option_flags import every_option
from pollux.cli.options import config_path, json_option, leader_options, loaded_or_said, node_options, with_own_code
from pollux.cli.output import print_json, print_table
from pollux.cli.runner import TeachingCommand
from pollux.cli.running_config import (
    as_announced,
    live_of,
    node_by,
    options_of_node,
    silent_node,
    tell_refused,
    tell_restarts,
)

if TYPE_CHECKING:
    from pollux.config import Config
    from pollux.config.descriptions import EffectiveOption


@click.command(cls=TeachingCommand)
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
    A node that reads the file and has refused its text runs by the one before: then that is shown, and why.
    Without a file it shows by what a node here runs: of --app or POLLUX_APP, or one that runs from this folder; where
    none does, what the code of --app says.
    Passwords are never shown.

    For example:
      pollux config -c pollux.yaml
      pollux config -c pollux.yaml --seats 50 --only-set
      pollux config --app monitor:app --only-set
      pollux config --example > pollux.yaml
    """
    if example:
        from pollux.config.descriptions import example_config

        click.echo(example_config(), nl=False)
        return
    path = config_path(path)
    loaded, wrong = loaded_or_said(path, arguments, guesses=True)
    node = node_by(loaded)
    is_other = node is not None and not node.is_there
    if wrong is not None and not is_other:
        raise wrong
    is_start = any(value is not None for name, value in arguments.items() if name != "store") and wrong is None
    running = None if is_start or path else options_of_node(loaded)
    found = running or (node.options if node is not None and is_other and not is_start else None)
    found = found or _of_start(_as_known(with_own_code(loaded), is_told=is_start or bool(node)), is_asked=bool(node))
    lines = [line for line in found if line.is_set or not only_set]
    if as_json:
        refused = node.refused if node is not None else ()
        print_json({"config": loaded.path or None, "options": lines, "refused": refused})
        return
    print_table(
        ("option", "value", "default", "from"), ((line.option, line.value, line.default, line.origin) for line in lines)
    )
    for line in lines:
        if line.live:
            click.echo(f"{line.option}: {line.origin} overrules what is set for all nodes: {line.live}", err=True)
    if not lines:
        click.echo("nobody set anything: every option has its default", err=True)
    if node is not None and is_other:
        tell_refused(loaded, node, wrong, is_start=is_start)
    elif node is not None:
        tell_restarts(node)


def _as_known(config: Config, *, is_told: bool) -> Config:
    """What a start would take, and of a node that does not answer what it announced."""
    silent = None if is_told else silent_node(config)
    return config if silent is None else as_announced(config, silent)


def _of_start(config: Config, *, is_asked: bool) -> list[EffectiveOption]:
    """What a start would make of the file, the environment and these arguments."""
    from pollux.config.descriptions import effective_options
    from pollux.config.settings import is_overruled, with_live

    live = live_of(config, is_asked=is_asked)
    overruled = {path: f"{said.value}, {said.origin}" for path, said in live.items() if is_overruled(config, path)}
    return effective_options(with_live(config, live), overruled)
