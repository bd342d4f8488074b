"""Command-line flags for every option of the config file, named like its variable: POLLUX_GRACE, --grace.

The options that are needed often are in the help of a command; these are the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pollux.config.settings import OPTIONS, flag

_Command = TypeVar("_Command", bound=Callable[..., Any])


def every_option(command: _Command) -> _Command:
    """Every option of the table that the command does not name itself."""
    named = {param.name for param in getattr(command, "__click_params__", ())}
    for option in OPTIONS:
        if option.argument in named:
            continue
        name = option.argument.replace("_", "-")
        if option.read is flag:
            command = click.option(f"--{name}/--no-{name}", option.argument, default=None, hidden=True)(command)
        else:
            command = click.option(f"--{name}", option.argument, hidden=True)(command)
    return command
