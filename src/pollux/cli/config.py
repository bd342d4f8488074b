"""`pollux config`: which value holds, and who said so?"""

from __future__ import annotations

import os
from typing import Any

import click

from pollux.cli.commands import Taught
from pollux.cli.options import config_path, json_option, leader_options, node_options
from pollux.cli.show import print_json, print_table


@click.command(cls=Taught)
@click.option("-c", "--config", "path", envvar="POLLUX_CONFIG", metavar="FILE", help="The config; else ./pollux.yaml.")
@node_options
@leader_options
@click.option("--only-set", is_flag=True, help="Leave out what nobody set.")
@click.option("--example", is_flag=True, help="Print a commented file with every option instead.")
@json_option
def config(path: str | None, *, only_set: bool, example: bool, as_json: bool, **arguments: Any) -> None:
    """Show every option: its value, its default, and where the value came from.

    Arguments win over the environment, that over the file, that over the defaults.  Take a `pollux serve` command line
    and write `config` for `serve` to see what it would start with.  Passwords are never shown.

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
    from pollux.config.told import told

    loaded = load_config(config_path(path), environ=os.environ, arguments=arguments, with_jobs=False)
    lines = [line for line in told(loaded) if line.is_set or not only_set]
    if as_json:
        print_json({"config": loaded.path or None, "options": lines})
        return
    print_table(
        ("option", "value", "default", "from"), ((line.option, line.value, line.default, line.origin) for line in lines)
    )
    if not lines:
        click.echo("nobody set anything: every option has its default", err=True)
