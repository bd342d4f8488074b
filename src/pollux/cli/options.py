"""Options of every command: the store or node to ask, and the call that asks it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from pollux.cli.target import app_at, live_socket, may_open, node_url, refuse_url, said_hello, tell_way, url_options
from pollux.errors import InvalidConfig, InvalidInput, PolluxError, StoreError, StoreMoved, StoreRefused

if TYPE_CHECKING:
    from pollux.app import OperationsProtocol
    from pollux.cli.target import Target
    from pollux.config import Config
    from pollux.store.local_files import AnnouncedNode

CONFIG_HERE = "pollux.yaml"
PROGRAM = "pollux"
NOT_CHANGED = "nothing was changed: nobody works on this store any more"
APP_WORDS = "--app MODULE:ATTRIBUTE"
STORES_NAMED_MAX = 5
APP = "pollux.app"  # in a context of click: the app that was named,
SAID_WRONG = "pollux.said_wrong"  # was it said that the file has mistakes?
_T = TypeVar("_T")
_Command = TypeVar("_Command", bound=Callable[..., Any])


class StoreChoice(NamedTuple):
    """What was said about the store."""

    config: str | None
    store: str | None


def store_options(command: _Command) -> _Command:
    """`-c FILE`, `--store URL` and `--app MODULE:ATTRIBUTE`; or `--url URL` and `--token TOKEN`."""
    command = app_option("The store of a Pollux in your own code.")(command)
    command = click.option("--store", metavar="URL", help="The store, like sqlite:///pollux.db; also POLLUX_STORE.")(
        command
    )
    command = click.option(
        "-c",
        "--config",
        type=click.Path(),
        envvar="POLLUX_CONFIG",
        metavar="FILE",
        help="The config file that names the store.",
    )(command)
    return url_options(command)


def app_option(words: str) -> Callable[[_Command], _Command]:
    """`--app MODULE:ATTRIBUTE`, or POLLUX_APP; `app_said` tells what was said."""
    return click.option(
        "--app", metavar="MODULE:ATTRIBUTE", envvar="POLLUX_APP", expose_value=False, callback=_remember_app, help=words
    )


def app_said() -> str | None:
    said: str | None = click.get_current_context().meta.get(APP)
    return said


def _remember_app(ctx: click.Context, param: click.Parameter, value: str | None) -> None:  # noqa: ARG001  click's
    ctx.meta[APP] = value


def node_options(command: _Command) -> _Command:
    """What can be said of any node; each has the name of the setting that it is."""
    for option in (
        click.option("--metrics-host", metavar="HOST", help="Where that port listens; this machine alone."),
        click.option("--metrics-port", type=click.IntRange(0, 65_535), metavar="N", help="A port for /metrics; none."),
        click.option("--leader-key", metavar="NAME", help="The leadership's name; the same on all nodes of a store."),
        click.option("--scheduler-version", metavar="N", help="Which deployment on the store it belongs to; 2."),
        click.option("--release", type=click.IntRange(0), metavar="N", help="The number of this release of your code."),
        click.option("--seats", type=click.IntRange(1, 10_000), metavar="N", help="Runs at the same time."),
        click.option("--store", metavar="URL", help="The store, like sqlite:///pollux.db; also POLLUX_STORE."),
        click.option("--app", metavar="MODULE:ATTRIBUTE", help="A Pollux of your own code."),
    ):
        command = option(command)
    return command


def leader_options(command: _Command) -> _Command:
    """What can be said of a node that takes part in leading."""
    for option in (
        click.option("--leader-renew", metavar="TIME", help="How often the leader renews its term; a third of that."),
        click.option("--leader-ttl", metavar="TIME", help="After this long a silent leader is replaced; 15s."),
    ):
        command = option(command)
    return command


def json_option(command: _Command) -> _Command:
    return click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")(command)


def page_options(command: _Command) -> _Command:
    command = click.option("--after", metavar="CURSOR", help="Go on after this cursor of the page before.")(command)
    return click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Rows at most.")(
        command
    )


def config_path(given: str | None) -> str | None:
    """The file that was named, or the one that lies here."""
    return given or (CONFIG_HERE if Path(CONFIG_HERE).is_file() else None)


def find_code_here() -> None:
    """Modules in the current folder can be named, as with `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def program_name() -> str:
    """What to type for this program: `pollux`, or the way it was called if that would find none or another."""
    called = Path(sys.argv[0])
    if called.name != PROGRAM:
        return f"{Path(sys.executable).name} -m {PROGRAM}"
    found = shutil.which(PROGRAM)
    return PROGRAM if found is not None and Path(found).resolve() == called.resolve() else str(called)


def store_url(where: StoreChoice) -> str:
    """What the command line says, else the environment, else the file, else the app's own, else the default."""
    return _store_of(_loaded(where), where)


def _loaded(where: StoreChoice) -> Config:
    """What names the store; a mistake elsewhere in the file or the environment is said, and stops nobody."""
    ctx = click.get_current_context(silent=True)
    path = None if where.store else config_path(where.config)
    app = None if where.store or ctx is None else ctx.meta.get(APP)
    config, wrong = loaded_or_said(path, {"store": where.store, "app": app})
    if wrong is not None and ctx is not None and not ctx.meta.get(SAID_WRONG):
        ctx.meta[SAID_WRONG] = True
        say_wrong(path, wrong)
    return config


def say_wrong(path: str | None, wrong: InvalidConfig) -> None:
    """Mistakes that stop nobody here."""
    from pollux.cli.output import clean
    from pollux.config.load import variables_in

    for problem in wrong.problems:
        if variables_in(InvalidConfig([problem]), os.environ):
            click.echo(f"pollux: {clean(str(problem))} (left out here)", err=True)
        elif path is not None:
            words = "has mistakes (`pollux check` tells them); the store that it names is asked"
            click.echo(f"pollux: {path} {words}", err=True)
            path = None  # said once


def loaded_or_said(
    path: str | None, arguments: dict[str, Any], *, guesses: bool = False, raw: bytes | None = None
) -> tuple[Config, InvalidConfig | None]:
    """The options that hold; with mistakes among them as much as tells where the store is, and the mistakes.

    `raw`: what the file is to hold, in place of what it holds.
    """
    from pollux.config import load_config
    from pollux.config.load import store_of_invalid

    try:
        return load_config(path, environ=os.environ, arguments=arguments, with_jobs=False, raw=raw), None
    except InvalidConfig as error:
        said = store_of_invalid(path, error, environ=os.environ, arguments=arguments, guesses=guesses, raw=raw)
        if said is None:
            raise
        return said, error


def _store_of(config: Config, where: StoreChoice) -> str:
    if where.store or not config.app or config.is_given("store"):
        return config.store
    from pollux.app.setup import as_configured

    return as_configured(_url_in_code(config), config)


def _url_in_code(config: Config) -> str:
    """The store that the app names itself; nothing has told it of another yet."""
    url: str = _app_of(config).store_url
    return url


def _app_of(config: Config) -> Any:
    from pollux.app import Pollux
    from pollux.app.setup import load_app

    find_code_here()
    return load_app(config.app, Pollux, beside=Path(config.path).resolve().parent if config.path else None)


def with_own_code(config: Config) -> Config:
    """The configuration with what the code of its app says, if it names one."""
    if not config.app:
        return config
    found: Config = _app_of(config).as_config(config)
    return found


def overruled(given: str | None, config: Config) -> InvalidInput | None:
    """Somebody named an app, and a file that nobody named is read as well and has another store; that is said.

    An app that names no store of its own leaves that to the file.  To be asked before the app is configured.
    """
    in_file = f"{CONFIG_HERE}:"
    is_implied = given is None and config.origins["store"].startswith(in_file)
    if not is_implied or not config.app or config.origins["app"].startswith(in_file):
        return None
    from pollux.config import Config
    from pollux.secrets import hide
    from pollux.store.urls import place_of

    own = _url_in_code(config)
    if place_of(own) in {place_of(config.store), Config().store}:
        return None
    what = f"it is read, too: its store {hide(config.store)} is used, and not {hide(own)}, which {config.app} names"
    return InvalidInput(what, where=config.origins["store"], cure="name the one that is meant by --store")


def existing_store(where: StoreChoice) -> str:
    """Whom to ask: the address of a node, or the store's URL if it is there; looking creates none."""
    return _there(whom_to_ask(where), where)


def own_store(where: StoreChoice, what: str) -> str:
    """The store itself if it is there, for what no node can do for us: `what` says why."""
    refuse_url(where.store, what)
    return _there(store_url(where), where)


def _there(url: str, where: StoreChoice) -> str:
    tell_way(url)
    if url.startswith("memory:"):
        raise StoreRefused(
            "a memory store lives inside the one process that made it, and no node of it runs from this folder; "
            "use sqlite:///pollux.db to look from outside"
        )
    from pollux.client import is_address
    from pollux.secrets import hide
    from pollux.units import shell_word

    if not is_address(url) and (missing := store_lacks(url)):
        file = None if where.store or os.environ.get("POLLUX_STORE") else config_path(where.config)
        app = None if where.store else _loaded(where).app
        how = f"-c {file}" if file else f"--app {app}" if app else f"--store {shell_word(hide(url))}"
        own = ", or your program if it calls app.run()" if app and not file else ""
        cure = f"start one with `pollux serve {how}`{own}, or name the right one with --store, {APP_WORDS} or -c"
        is_named = file or app or _loaded(where).is_given("store")
        raise StoreRefused(f"there is no store {hide(url)} ({missing}); {'' if is_named else _others_here()}{cure}")
    return url


def _others_here() -> str:
    """Where nobody named a store: those that lie in this folder, as an app leaves them behind."""
    from pollux.cli.output import clean
    from pollux.store.local_files import stores_in
    from pollux.units import shell_word

    found = stores_in(Path.cwd())[:STORES_NAMED_MAX]
    how = f"name it with --store {clean(shell_word(found[0]))}" if len(found) == 1 else "name the one with --store"
    return f"this folder has {clean(', '.join(found))}: {how}; or " if found else ""


def store_lacks(url: str) -> str:
    """What is missing for this store to be there, in words; nothing if it is.  Looking creates none."""
    from pollux.store.urls import lacking

    return asyncio.run(lacking(url))


def whom_to_ask(where: StoreChoice) -> str:
    """The node that was named, else a node of the store by its socket here, else the store itself.

    Where nothing says which store is meant, and there is none of the usual name, a node that runs from this folder.
    """
    url, socket = ways_to(where)
    return _node_at(socket, url) or node_here(_loaded(where), url) or url


def node_here(config: Config, url: str) -> str:
    """The address of a node that runs from this folder on another store than the usual one; "": there is none.

    The store that it announced if the node does not answer, as with one that is found in any other way.
    """
    from pollux.cli.output import clean
    from pollux.client import is_address
    from pollux.store.local_files import announced_in

    is_memory = url.startswith("memory:")
    if is_address(url) or (not is_memory and (config.is_given("store") or config.path or config.app)):
        return ""
    found = [each for each in announced_in(Path.cwd()) if may_open(Path(each.socket))]
    # On this very store it was asked before, by its socket, and does not answer.
    found = [each for each in found if (each.store.startswith("memory") if is_memory else each.store != url)]
    if not found:
        return ""
    words = "; ".join(f"pid {each.pid} on {clean(each.store)}" for each in found)
    if not is_memory and not store_lacks(url):
        click.echo(f"pollux: a node here works on another store ({words}); this is about {url}: see --store", err=True)
        return ""
    if len(found) > 1:
        raise InvalidInput(f"several nodes run from this folder: {words}", cure="name one by --store or --app")
    return _node_or_announced(found[0])


def _node_or_announced(node: AnnouncedNode) -> str:
    from pollux.client import socket_url
    from pollux.secrets import MASK

    url = socket_url(Path(node.socket))
    try:
        asyncio.run(said_hello(url))
    except PolluxError as error:
        if node.store.startswith("memory") or MASK in node.store or store_lacks(node.store):  # a password is not told
            what = f"the node that runs from this folder (pid {node.pid} on {node.store}) cannot be asked"
            raise StoreError(f"{what}: {error}") from error
        return node.store
    return url


def node_or_store(config: Config) -> str:
    """A node on the store of this config by its socket here, else that store."""
    return _node_at(socket_of(config, config.store), config.store) or config.store


def _node_at(socket: Path | None, url: str) -> str:
    return asyncio.run(live_socket(socket, url))


def ways_to(where: StoreChoice) -> tuple[str, Path | None]:
    """The node that was named, or the store; and where a node of that store may listen, if it may be asked instead."""
    if url := node_url(where.store):
        return url, None
    config = _loaded(where)
    url = _store_of(config, where)
    return url, None if where.store else socket_of(config, url)


def socket_of(config: Config, url: str) -> Path | None:
    """Where a node on this store listens for commands on the same machine.

    One memory store cannot be told from another by its URL, so their sockets must be named.
    """
    from pollux.store.local_files import socket_path

    if url.startswith("memory:") and not config.server_socket:
        return None
    return socket_path(config.server_socket, url)


def sqlite_path(url: str) -> Path | None:
    """The file behind the URL, if it is one."""
    from pollux.store.urls import sqlite_file

    file = sqlite_file(url)
    return None if file is None else Path(file)


def version_meant(where: StoreChoice, url: str) -> int | None:
    """Which deployment on the store is meant, if the store itself is asked; a node speaks for its own."""
    from pollux.client import is_address

    return None if is_address(url) else _loaded(where).scheduler_version


def ask(url: str, question: Callable[[OperationsProtocol], Awaitable[_T]], *, version: int | None = None) -> _T:
    """Open the store, or the connection to a node; ask its operations; close it.

    A store that was moved elsewhere may still be read.
    """
    return ask_target(url, lambda target: question(target.operations), version=version)


def ask_target(url: str, question: Callable[[Target], Awaitable[_T]], *, version: int | None = None) -> _T:
    """As `ask`, for questions about the store or the node itself."""

    async def asked() -> _T:
        app, words = app_at(url, "cli", version=version), ""
        try:
            await app.open(sealed=True)
            if words := await app.sealed():
                click.echo(f"pollux: {words}", err=True)
            return await question(app)
        except StoreMoved as error:
            raise StoreRefused(NOT_CHANGED) if words else error from None  # the rest was said above
        finally:
            await app.close()

    return asyncio.run(asked())
