"""Options that commands share: the store or node to ask, the settings of a node, pages and JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, TypeVar

import click

from pollux.cli.target import APP, TOKEN, URL, URL_IS_ARGUMENT, VERBOSE, StoreChoice
from pollux.config.settings import OPTIONS, flag

_Command = TypeVar("_Command", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
store_option = click.option("--store", metavar="URL", help="The store, like sqlite:///pollux.db; also POLLUX_STORE.")


def applied(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    """The command with these options, in the order in which its help lists them."""
    return reduce(lambda made, option: option(made), reversed(options), command)


def config_option(words: str, name: str = "config") -> Callable[[_Command], _Command]:
    return click.option("-c", "--config", name, type=click.Path(), envvar="POLLUX_CONFIG", metavar="FILE", help=words)


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`-c FILE`, `--store URL` and `--app MODULE:ATTRIBUTE`, or `--url URL` and `--token TOKEN`; given as `where`."""

    @wraps(command)
    def run(config: str | None, store: str | None, **given: Any) -> Any:
        return command(where=StoreChoice(config, store), **given)

    return applied(
        run,
        url_options,
        config_option("The config file that names the store."),
        store_option,
        app_option("The store of a Pollux in your own code."),
    )


def url_options(command: _Command) -> _Command:
    """A node instead of the store: `--url URL` and `--token TOKEN`; and `--verbose`, which names what is asked."""
    return applied(
        command,
        click.option(
            "--url",
            metavar="URL",
            envvar="POLLUX_URL",
            expose_value=False,
            callback=_remember_url,
            help="Ask the node there, like https://host:8060; also POLLUX_URL.",
        ),
        click.option(
            "--token",
            metavar="TOKEN",
            envvar="POLLUX_TOKEN",
            expose_value=False,
            callback=_remembers(TOKEN),
            help="For that node; @FILE reads it from a file; also POLLUX_TOKEN.",
        ),
        click.option(
            "--verbose", is_flag=True, expose_value=False, callback=_remembers(VERBOSE), help="Name what is asked."
        ),
    )


def app_option(words: str) -> Callable[[_Command], _Command]:
    """`--app MODULE:ATTRIBUTE`, or POLLUX_APP; `target.app_argument` returns it."""
    return click.option(
        "--app",
        metavar="MODULE:ATTRIBUTE",
        envvar="POLLUX_APP",
        expose_value=False,
        callback=_remembers(APP),
        help=words,
    )


def _remembers(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def remember(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        ctx.meta[key] = value

    return remember


def _remember_url(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    source = ctx.get_parameter_source(param.name or "")
    ctx.meta[URL], ctx.meta[URL_IS_ARGUMENT] = value, source is click.core.ParameterSource.COMMANDLINE


def page_options(command: _Command) -> _Command:
    return applied(
        command,
        click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Rows at most."),
        click.option("--after", metavar="CURSOR", help="Go on after this cursor of the page before."),
    )


# options of a node, each by the name of its setting


def node_options(command: _Command) -> _Command:
    return applied(
        command,
        click.option("--app", metavar="MODULE:ATTRIBUTE", help="A Pollux of your own code."),
        store_option,
        click.option("--seats", type=click.IntRange(1, 10_000), metavar="N", help="Runs at the same time."),
        click.option("--release", type=click.IntRange(0), metavar="N", help="The number of this release of your code."),
        click.option("--scheduler-version", metavar="N", help="Which deployment on the store it belongs to; 2."),
        click.option("--leader-key", metavar="NAME", help="The leadership's name; the same on all nodes of a store."),
        click.option("--metrics-port", type=click.IntRange(0, 65_535), metavar="N", help="A port for /metrics; none."),
        click.option("--metrics-host", metavar="HOST", help="Where that port listens; this machine alone."),
    )


def leader_options(command: _Command) -> _Command:
    return applied(
        command,
        click.option("--leader-ttl", metavar="TIME", help="After this long a silent leader is replaced; 15s."),
        click.option("--leader-renew", metavar="TIME", help="How often the leader renews its term; a third of that."),
    )


def every_option(command: _Command) -> _Command:
    """A flag for every option of the config file that the command does not list itself: POLLUX_GRACE, --grace."""
    listed = {param.name for param in getattr(command, "__click_params__", ())}
    for option in OPTIONS:
        if option.argument in listed:
            continue
        name = option.argument.replace("_", "-")
        if option.read is flag:
            command = click.option(f"--{name}/--no-{name}", option.argument, default=None, hidden=True)(command)
        else:
            command = click.option(f"--{name}", option.argument, hidden=True)(command)
    return command
