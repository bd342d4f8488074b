"""`pollux set`: change an option of all nodes, while they run."""

from __future__ import annotations

from typing import Any

import click

from pollux.cli.options import StoreChoice, ask, existing_store, json_option, store_options
from pollux.cli.output import ago, now_ms, print_json, print_table
from pollux.cli.runner import TeachingCommand
from pollux.errors import InvalidInput


@click.command("set", cls=TeachingCommand)
@click.argument("option", metavar="[OPTION]", required=False)
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--unset", is_flag=True, help="Let the file, or the default, decide again.")
@json_option
@store_options
def set_option(
    option: str | None, value: str | None, config: str | None, store: str | None, *, unset: bool, as_json: bool
) -> None:
    """Change an option for all nodes, now and over restarts; without arguments list what was changed.

    The environment and the arguments of a node win over it: `pollux config` says which value holds and why.  Options
    that need a restart are refused: change them in the file.

    For example:
      pollux set pool.seats 50
      pollux set --unset pool.seats
      pollux set
    """
    if option is None:
        _list(StoreChoice(config, store), as_json=as_json, is_confused=unset)
        return
    if unset == (value is not None):
        raise InvalidInput("an option has a value, or is unset", cure="pollux set pool.seats 50, or --unset pool.seats")
    url = existing_store(StoreChoice(config, store))
    if unset:
        was_set = ask(url, lambda operations: operations.settings.unset_setting(option))
        if as_json:
            print_json({"unset": [option] if was_set else []})
        else:
            click.echo(f"{option} is {'unset: the file decides again' if was_set else 'not set for all nodes'}")
        return
    setting = ask(url, lambda operations: operations.settings.set_setting(option, value))
    if as_json:
        print_json({"setting": setting})
    else:
        click.echo(f"{setting.path} is {setting.value} for all nodes; `pollux set --unset {setting.path}` ends it")


def _list(where: StoreChoice, *, as_json: bool, is_confused: bool) -> None:
    if is_confused:
        raise InvalidInput("say what to unset", cure="pollux set --unset pool.seats")
    found: list[Any] = ask(existing_store(where), lambda operations: operations.settings.list_settings())
    if as_json:
        print_json({"settings": found})
        return
    now = now_ms()
    print_table(
        ("option", "value", "by", "when", "meaning"),
        ((each.path, each.value, each.by, ago(each.at_ms, now=now), each.meaning) for each in found),
    )
    if not found:
        click.echo("nothing is changed for all nodes; `pollux config` shows every option", err=True)
